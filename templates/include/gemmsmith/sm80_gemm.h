/* A GEMM on mma.sync (Volta to Ada), from CUTLASS's 2.x kernels.
 *
 * `Traits` decides all types and is what the template generates; `Sm80Gemm<Traits>` builds the kernel
 * type and `Sm80Operation<Traits, Kernel>` the functions of its table entry.
 *
 * 2.x epilogues write row-major tiles. A column-major D is computed as D^T = B^T A^T, with the roles
 * of A and B, M and N exchanged in this file alone.
 */
#pragma once

#include <cuda_runtime.h>

#include "cutlass/cutlass.h"
#include "cutlass/device_kernel.h"
#include "cutlass/epilogue/thread/linear_combination.h"
#include "cutlass/gemm/kernel/default_gemm_universal.h"
#include "cutlass/gemm/threadblock/threadblock_swizzle.h"
#include "gemmsmith/abi.h"
#include "gemmsmith/finish.h"
#include "gemmsmith/status.h"

namespace gemmsmith {

template <class Layout>
struct TransposedLayout;
template <>
struct TransposedLayout<cutlass::layout::RowMajor> {
  using Type = cutlass::layout::ColumnMajor;
};
template <>
struct TransposedLayout<cutlass::layout::ColumnMajor> {
  using Type = cutlass::layout::RowMajor;
};

template <class Traits, bool kTransposed>
struct Sm80Operands {
  using ElementA = typename Traits::ElementA;
  using ElementB = typename Traits::ElementB;
  using LayoutA = typename Traits::LayoutA;
  using LayoutB = typename Traits::LayoutB;
  using Tile = typename Traits::Tile;
  using Warp = typename Traits::Warp;
  static constexpr int kAlignmentA = Traits::kAlignmentA;
  static constexpr int kAlignmentB = Traits::kAlignmentB;
};
template <class Traits>
struct Sm80Operands<Traits, true> {
  using ElementA = typename Traits::ElementB;
  using ElementB = typename Traits::ElementA;
  using LayoutA = typename TransposedLayout<typename Traits::LayoutB>::Type;
  using LayoutB = typename TransposedLayout<typename Traits::LayoutA>::Type;
  using Tile = cutlass::gemm::GemmShape<Traits::Tile::kN, Traits::Tile::kM, Traits::Tile::kK>;
  using Warp = cutlass::gemm::GemmShape<Traits::Warp::kN, Traits::Warp::kM, Traits::Warp::kK>;
  static constexpr int kAlignmentA = Traits::kAlignmentB;
  static constexpr int kAlignmentB = Traits::kAlignmentA;
};

/* Integers: the sum saturates at the ends of s32 and does not wrap. CUTLASS has no other. */
template <class Element>
struct Sm80Operator {
  using Type = cutlass::arch::OpMultiplyAdd;
};
template <>
struct Sm80Operator<int8_t> {
  using Type = cutlass::arch::OpMultiplyAddSaturate;
};

template <class Traits>
struct Sm80Gemm {
  static constexpr bool kTransposed =
      cutlass::platform::is_same<typename Traits::LayoutD, cutlass::layout::ColumnMajor>::value;
  using Operands = Sm80Operands<Traits, kTransposed>;
  using ElementD = typename Traits::ElementD;
  using ElementCompute = typename Traits::ElementCompute;
  using Epilogue = cutlass::epilogue::thread::LinearCombination<ElementD, Traits::kAlignmentD,
                                                                typename Traits::ElementAccumulator,
                                                                typename Traits::ElementCompute>;
  using Kernel = typename cutlass::gemm::kernel::DefaultGemmUniversal<
      typename Operands::ElementA, typename Operands::LayoutA, cutlass::ComplexTransform::kNone,
      Operands::kAlignmentA, typename Operands::ElementB, typename Operands::LayoutB,
      cutlass::ComplexTransform::kNone, Operands::kAlignmentB, ElementD, cutlass::layout::RowMajor,
      typename Traits::ElementAccumulator, cutlass::arch::OpClassTensorOp, typename Traits::Arch,
      typename Operands::Tile, typename Operands::Warp, typename Traits::Instruction, Epilogue,
      cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<8>, Traits::kStages,
      typename Sm80Operator<typename Operands::ElementA>::Type>::GemmKernel;
};

/* `Kernel` derives from Sm80Gemm<Traits>::Kernel; its name is what a profiler shows. */
template <class Traits, class Kernel>
struct Sm80Operation {
  using Types = Sm80Gemm<Traits>;
  static constexpr int kShared = static_cast<int>(sizeof(typename Kernel::SharedStorage));
  static constexpr int kThreads = Kernel::kThreadCount;

  static typename Kernel::Arguments arguments(gemmsmith_gemm const &call) {
    constexpr bool kT = Types::kTransposed;
    /* The epilogue has one source: C, or the bias as a matrix whose rows all lie at the same place. */
    bool const residual = Traits::kResidual && call.c != nullptr && call.beta != 0.0f;
    bool const bias = Traits::kBias && !residual && call.bias != nullptr;
    void const *source = residual ? call.c : bias ? call.bias : nullptr;
    using Scalar = typename Types::ElementCompute;
    Scalar const beta = static_cast<Scalar>(residual ? call.beta : bias ? 1.0f : 0.0f);
    auto const mode = call.batch > 1 ? cutlass::gemm::GemmUniversalMode::kBatched
                                     : cutlass::gemm::GemmUniversalMode::kGemm;
    cutlass::gemm::GemmCoord const size(static_cast<int>(kT ? call.n : call.m),
                                        static_cast<int>(kT ? call.m : call.n), static_cast<int>(call.k));
    return {mode,
            size,
            static_cast<int>(call.batch > 1 ? call.batch : 1),
            {static_cast<Scalar>(call.alpha), beta},
            kT ? call.b : call.a,
            kT ? call.a : call.b,
            source,
            call.d,
            kT ? call.b_batch : call.a_batch,
            kT ? call.a_batch : call.b_batch,
            residual ? call.c_batch : 0,
            call.d_batch,
            kT ? call.ldb : call.lda,
            kT ? call.lda : call.ldb,
            residual ? call.ldc : 0,
            call.ldd};
  }

  static gemmsmith_status can_run(gemmsmith_gemm const *call) {
    for (int64_t size : {call->m, call->n, call->k, call->batch}) {
      if (size < 1 || size > INT32_MAX) {
        return status_of(cutlass::Status::kErrorInvalidProblem);
      }
    }
    return status_of(Kernel::can_implement(arguments(*call)));
  }

  static typename Kernel::Params params(gemmsmith_gemm const &call) {
    return typename Kernel::Params(arguments(call), call.sm_count, 1);
  }

  static gemmsmith_status workspace_bytes(gemmsmith_gemm const *call, uint64_t *bytes) {
    *bytes = params(*call).get_workspace_size();
    return 0;
  }

  static gemmsmith_status launch(gemmsmith_gemm const *call, void *workspace, void *stream_) {
    cudaStream_t const stream = static_cast<cudaStream_t>(stream_);
    auto *kernel = cutlass::Kernel2<Kernel>;
    gemmsmith_status const status = allow_shared_memory<Kernel>(kernel, kShared, call->device);
    if (status != 0) {
      return status;
    }
    typename Kernel::Params parameters = params(*call);
    cutlass::Status const prepared = parameters.init_workspace(workspace, stream);
    if (prepared != cutlass::Status::kSuccess) {
      return status_of(prepared);
    }
    cudaLaunchConfig_t config{};
    config.gridDim = parameters.get_grid_dims();
    config.blockDim = dim3(kThreads);
    config.dynamicSmemBytes = kShared;
    config.stream = stream;
    void *pointers[] = {&parameters};
    return status_of(cudaLaunchKernelExC(&config, reinterpret_cast<void const *>(kernel), pointers));
  }

  static gemmsmith_status blocks_per_sm(int32_t *blocks) {
    auto *kernel = cutlass::Kernel2<Kernel>;
    int device = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error != cudaSuccess) {
      return status_of(error);
    }
    gemmsmith_status const status = allow_shared_memory<Kernel>(kernel, kShared, device);
    if (status != 0) {
      return status;
    }
    return status_of(cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, kernel, kThreads, kShared));
  }

  static constexpr gemmsmith_kernel entry(const char *name) {
    return {name, kThreads, kShared, Traits::kStages, can_run, workspace_bytes, launch, blocks_per_sm, explain};
  }
};

}  // namespace gemmsmith
