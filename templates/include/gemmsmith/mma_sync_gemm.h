/* A GEMM on mma.sync (Volta to Ada), from CUTLASS's 2.x kernels.
 *
 * `Traits` decides all types and is what the template generates; `MmaSyncGemm<Traits>` builds the kernel
 * type and `MmaSyncOperation<Traits, Kernel>` the functions of its table entry.
 *
 * 2.x epilogues write row-major tiles. A column-major D is computed as D^T = B^T A^T, with the roles
 * of A and B, M and N exchanged in this file alone.
 */
#pragma once

#include <cuda_runtime.h>

#include "cutlass/cutlass.h"
#include "cutlass/device_kernel.h"
#include "cutlass/epilogue/thread/linear_combination.h"
#include "cutlass/epilogue/threadblock/epilogue_base_streamk.h"
#include "cutlass/epilogue/threadblock/epilogue_with_visitor_callbacks.h"
#include "cutlass/gemm/kernel/default_gemm_universal.h"
#include "cutlass/gemm/kernel/gemm_universal_with_visitor.h"
#include "cutlass/gemm/threadblock/threadblock_swizzle.h"
#include "gemmsmith/abi.h"
#include "gemmsmith/host.h"
#include "gemmsmith/mma_sync_epilogue.h"
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
struct MmaSyncOperands {
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
struct MmaSyncOperands<Traits, true> {
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
struct MmaSyncOperator {
  using Type = cutlass::arch::OpMultiplyAdd;
};
template <>
struct MmaSyncOperator<int8_t> {
  using Type = cutlass::arch::OpMultiplyAddSaturate;
};

template <class Traits>
struct MmaSyncGemm {
  static constexpr bool kTransposed =
      cutlass::platform::is_same<typename Traits::LayoutD, cutlass::layout::ColumnMajor>::value;
  using Operands = MmaSyncOperands<Traits, kTransposed>;
  using ElementD = typename Traits::ElementD;
  using Swizzle = cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<8>;
  /* Its main loop and the iterators of its epilogue are used, its operation is not. */
  using Usual = typename cutlass::gemm::kernel::DefaultGemmUniversal<
      typename Operands::ElementA, typename Operands::LayoutA, cutlass::ComplexTransform::kNone,
      Operands::kAlignmentA, typename Operands::ElementB, typename Operands::LayoutB,
      cutlass::ComplexTransform::kNone, Operands::kAlignmentB, ElementD, cutlass::layout::RowMajor,
      typename Traits::ElementAccumulator, cutlass::arch::OpClassTensorOp, typename Traits::Arch,
      typename Operands::Tile, typename Operands::Warp, typename Traits::Instruction,
      cutlass::epilogue::thread::LinearCombination<ElementD, Traits::kAlignmentD,
                                                   typename Traits::ElementAccumulator,
                                                   typename Traits::ElementCompute>,
      Swizzle, Traits::kStages, typename MmaSyncOperator<typename Operands::ElementA>::Type>::GemmKernel;
  using Finish = MmaSyncFinish<Traits, kTransposed, typename Operands::Tile,
                            typename Usual::Epilogue::OutputTileIterator>;
  static constexpr int kEpilogueStages = 1; /* steps whose accumulators are in shared memory at once */
  /* Functions are long: one copy for each step of a tile would be five times the rest of the kernel. */
  static constexpr bool kUnroll =
      Traits::kActivation == Activation::kNone || Traits::kActivation == Activation::kRelu;
  using Epilogue = cutlass::epilogue::threadblock::EpilogueWithVisitorCallbacks<typename Usual::Epilogue, Finish,
                                                                                kEpilogueStages, kUnroll>;
  using Kernel = cutlass::gemm::kernel::GemmWithEpilogueVisitor<typename Usual::Mma, Epilogue, Swizzle>;
};

/* `Kernel` derives from MmaSyncGemm<Traits>::Kernel; its name is what a profiler shows. */
template <class Traits, class Kernel>
struct MmaSyncOperation {
  using Types = MmaSyncGemm<Traits>;
  static constexpr int kShared = static_cast<int>(sizeof(typename Kernel::SharedStorage));
  static constexpr int kThreads = Kernel::kThreadCount;

  static typename Kernel::Arguments arguments(gemmsmith_gemm const &call) {
    constexpr bool kT = Types::kTransposed;
    auto const mode = call.batch > 1 ? cutlass::gemm::GemmUniversalMode::kBatched
                                     : cutlass::gemm::GemmUniversalMode::kGemm;
    cutlass::gemm::GemmCoord const size(static_cast<int>(kT ? call.n : call.m),
                                        static_cast<int>(kT ? call.m : call.n), static_cast<int>(call.k));
    using Finish = typename Types::Finish;
    using ElementD = typename Types::ElementD;
    bool const residual = call.c != nullptr && call.beta != 0.0f;
    typename Finish::Arguments const finish{
        {call.alpha, call.out_scale, static_cast<Activation>(call.activation)},
        call.beta,
        call.a_scale,
        call.b_scale,
        call.a_zero,
        call.b_sum,
        static_cast<typename Traits::ElementBias const *>(call.bias),
        residual ? static_cast<ElementD const *>(call.c) : nullptr,
        static_cast<ElementD *>(call.d),
        call.ldc,
        call.ldd,
        call.c_batch,
        call.d_batch};
    return {mode,
            size,
            static_cast<int>(call.batch > 1 ? call.batch : 1),
            finish,
            kT ? call.b : call.a,
            kT ? call.a : call.b,
            call.c,
            call.d,
            kT ? call.b_batch : call.a_batch,
            kT ? call.a_batch : call.b_batch,
            call.c_batch,
            call.d_batch,
            kT ? call.ldb : call.lda,
            kT ? call.lda : call.ldb,
            call.ldc,
            call.ldd};
  }

  static gemmsmith_status can_run(gemmsmith_gemm const *call) {
    gemmsmith_status const sizes = check_sizes(*call);
    if (sizes != 0) {
      return sizes;
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
    void *pointers[] = {&parameters};
    return status_of(cudaLaunchKernel(reinterpret_cast<void const *>(kernel), parameters.get_grid_dims(),
                                      dim3(kThreads), pointers, kShared, stream));
  }

  static gemmsmith_status blocks_per_sm(int32_t *blocks) {
    return count_blocks_per_sm<Kernel>(cutlass::Kernel2<Kernel>, kThreads, kShared, blocks);
  }

  static constexpr gemmsmith_kernel entry(const char *name) {
    return {name, kThreads, kShared, Traits::kStages, 0, can_run, workspace_bytes, launch, blocks_per_sm, explain};
  }
};

}  // namespace gemmsmith
