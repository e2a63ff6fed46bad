/* A GEMM on Hopper's wgmma and TMA, from CUTLASS's 3.x collectives.
 *
 * `Traits` decides all types and is what the template generates; `Sm90Gemm<Traits>` builds the kernel
 * type and `Sm90Operation<Traits, Kernel>` the functions of its table entry.
 *
 * Traits speak in the caller's frame (D = A B). With kSwap the device computes D^T = B^T A^T: this
 * file is the one place where A and B, M and N, row and column change roles.
 */
#pragma once

#include <cuda_runtime.h>

#include "cute/tensor.hpp"
#include "cutlass/cutlass.h"
#include "cutlass/epilogue/collective/collective_builder.hpp"
#include "cutlass/gemm/collective/collective_builder.hpp"
#include "cutlass/gemm/kernel/gemm_universal.hpp"
#include "cutlass/gemm/kernel/tile_scheduler.hpp"
#include "gemmsmith/abi.h"
#include "gemmsmith/cluster_launch.h"
#include "gemmsmith/dependent_launch.h"
#include "gemmsmith/direct_epilogue.h"
#include "gemmsmith/finish.h"
#include "gemmsmith/gate_epilogue.h"
#include "gemmsmith/host.h"
#include "gemmsmith/status.h"

namespace gemmsmith {

struct TmaStore {};    /* epilogue: through shared memory, bulk tensor store */
struct DirectStore {}; /* epilogue: registers to memory */
struct GateStore {};   /* epilogue: half as many columns, through strips of shared memory */

template <class Layout>
using Transposed = cute::conditional_t<cute::is_same_v<Layout, cutlass::layout::RowMajor>,
                                       cutlass::layout::ColumnMajor, cutlass::layout::RowMajor>;

/* A number that the call gives by value. CUTLASS's node asks for one by address too, and would read
 * it when the epilogue is set up: before a kernel that starts early has waited. */
template <class Element>
struct ByValue : cutlass::epilogue::fusion::Sm90ScalarBroadcast<Element> {
  using Base = cutlass::epilogue::fusion::Sm90ScalarBroadcast<Element>;

  CUTLASS_HOST_DEVICE ByValue() {}
  CUTLASS_HOST_DEVICE ByValue(typename Base::Params const &params, typename Base::SharedStorage const &) {
    Base::params_ptr = &params;
    Base::scalar = params.scalars[0];
  }
  template <class... Args>
  CUTLASS_DEVICE auto get_producer_load_callbacks(
      cutlass::epilogue::fusion::ProducerLoadArgs<Args...> const &) {
    return cutlass::epilogue::fusion::EmptyProducerLoadCallbacks{};
  }
  template <bool kReferenceSource, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(
      cutlass::epilogue::fusion::ConsumerStoreArgs<Args...> const &) {
    return typename Base::ConsumerStoreCallbacks(Base::scalar);
  }
};

/* The tree of operations on an accumulator: finish(acc) + beta * C, less what the kernel leaves out;
 * finish.h says what it is. Vectors along tokens lie along the device's N where operands are swapped,
 * those along features along its M. A null vector is all ones (scales) or zeros (bias, zero points).
 */
template <class Traits>
struct Sm90Fusion {
  using ElementD = typename Traits::ElementD;
  using ElementBias = typename Traits::ElementBias;
  using Compute = typename Traits::ElementCompute;
  using Scalar = ByValue<Compute>;
  template <template <class> class Operation, class Output, class ComputeIn, class... Leaves>
  using Node = cutlass::epilogue::fusion::Sm90EVT<
      cutlass::epilogue::fusion::Sm90Compute<Operation, Output, ComputeIn, cutlass::FloatRoundStyle::round_to_nearest>,
      Leaves...>;

  template <class Element, class ComputeIn>
  using AlongM = cutlass::epilogue::fusion::Sm90ColBroadcast<
      0, typename Traits::DeviceTile, Element, ComputeIn, cute::Stride<cute::_1, cute::_0, int64_t>>;
  template <class Element, class ComputeIn>
  using AlongN = cutlass::epilogue::fusion::Sm90RowBroadcast<
      0, typename Traits::DeviceTile, Element, ComputeIn, cute::Stride<cute::_0, cute::_1, int64_t>>;
  template <class Element, class ComputeIn = Compute>
  using OfTokens = cute::conditional_t<Traits::kSwap, AlongN<Element, ComputeIn>, AlongM<Element, ComputeIn>>;
  template <class Element, class ComputeIn = Compute>
  using OfFeatures = cute::conditional_t<Traits::kSwap, AlongM<Element, ComputeIn>, AlongN<Element, ComputeIn>>;

  using Accumulator = cutlass::epilogue::fusion::Sm90AccFetch;
  using Corrected = Node<cutlass::homogeneous_multiply_add, int32_t, int32_t, OfTokens<int32_t, int32_t>,
                         OfFeatures<int32_t, int32_t>, Accumulator>; /* acc - a_zero * b_sum, see arguments */
  using Sum = cute::conditional_t<Traits::kZeroPoint, Corrected, Accumulator>;

  static constexpr bool kPlain = Traits::kActivation == Activation::kNone && !Traits::kScaled &&
                                 !cute::is_same_v<ElementD, int8_t>;
  template <class Fragment>
  using FinishFunction = Finish<Traits::kActivation, Traits::kScaled, Traits::kBias,
                                cute::is_same_v<ElementD, int8_t>, Fragment>;

  using Bias = OfFeatures<ElementBias>;
  using Scale = float;
  template <class Output>
  using Plain = cute::conditional_t<Traits::kBias,
                                    Node<cutlass::homogeneous_multiply_add, Output, Compute, Scalar, Sum, Bias>,
                                    Node<cutlass::multiplies, Output, Compute, Scalar, Sum>>;
  template <class Output, class... Leaves>
  using Rich = cute::conditional_t<Traits::kBias, Node<FinishFunction, Output, Compute, Sum, Leaves..., Bias>,
                                   Node<FinishFunction, Output, Compute, Sum, Leaves...>>;
  template <class Output>
  using Finished = cute::conditional_t<
      kPlain, Plain<Output>,
      cute::conditional_t<Traits::kScaled, Rich<Output, OfTokens<Scale>, OfFeatures<Scale>>, Rich<Output>>>;
  using Tree = cute::conditional_t<
      Traits::kResidual,
      Node<cutlass::homogeneous_multiply_add, ElementD, Compute, Scalar,
           cutlass::epilogue::fusion::Sm90SrcFetch<ElementD>, Finished<Compute>>,
      Finished<ElementD>>;

  static typename Sum::Arguments sum(gemmsmith_gemm const &call) {
    if constexpr (Traits::kZeroPoint) { /* b_sum holds the negative sums of B's columns */
      return {{call.a_zero, 0, {}}, {call.b_sum, 0, {}}, {}, {}};
    } else {
      return {};
    }
  }

  template <class Output>
  static typename Finished<Output>::Arguments finished(gemmsmith_gemm const &call) {
    auto const *bias = static_cast<ElementBias const *>(call.bias);
    FinishArguments const finish{call.alpha, call.out_scale, static_cast<Activation>(call.activation)};
    if constexpr (kPlain && Traits::kBias) {
      return {{{static_cast<Compute>(call.alpha)}}, sum(call), {bias, ElementBias(0), {}}, {}};
    } else if constexpr (kPlain) {
      return {{{static_cast<Compute>(call.alpha)}}, sum(call), {}};
    } else if constexpr (Traits::kScaled && Traits::kBias) {
      return {sum(call), {call.a_scale, 1.0f, {}}, {call.b_scale, 1.0f, {}}, {bias, ElementBias(0), {}}, finish};
    } else if constexpr (Traits::kScaled) {
      return {sum(call), {call.a_scale, 1.0f, {}}, {call.b_scale, 1.0f, {}}, finish};
    } else if constexpr (Traits::kBias) {
      return {sum(call), {bias, ElementBias(0), {}}, finish};
    } else {
      return {sum(call), finish};
    }
  }

  static typename Tree::Arguments arguments(gemmsmith_gemm const &call) {
    if constexpr (Traits::kResidual) {
      return {{{static_cast<Compute>(call.beta)}}, {}, finished<Compute>(call), {}};
    } else {
      return finished<ElementD>(call);
    }
  }
};

/* A main loop whose kernel may start before the one ahead of it has ended. All threads of CUTLASS's
 * kernels prepare their loads here: barriers are set up by then, global memory is untouched. */
template <class Mainloop>
struct DependentMainloop : Mainloop {
  template <class... Args>
  CUTLASS_DEVICE auto load_init(Args const &...args) const {
    release_dependents();
    await_prerequisites();
    return Mainloop::load_init(args...);
  }
};

template <class Traits>
struct Sm90Gemm {
  using ElementD = typename Traits::ElementD;
  using ElementC = cute::conditional_t<Traits::kResidual, ElementD, void>;
  using DeviceElementA = cute::conditional_t<Traits::kSwap, typename Traits::ElementB, typename Traits::ElementA>;
  using DeviceElementB = cute::conditional_t<Traits::kSwap, typename Traits::ElementA, typename Traits::ElementB>;
  using DeviceLayoutA = cute::conditional_t<Traits::kSwap, Transposed<typename Traits::LayoutB>, typename Traits::LayoutA>;
  using DeviceLayoutB = cute::conditional_t<Traits::kSwap, Transposed<typename Traits::LayoutA>, typename Traits::LayoutB>;
  using DeviceLayoutD = cute::conditional_t<Traits::kSwap, Transposed<typename Traits::LayoutD>, typename Traits::LayoutD>;
  static constexpr int kDeviceAlignmentA = Traits::kSwap ? Traits::kAlignmentB : Traits::kAlignmentA;
  static constexpr int kDeviceAlignmentB = Traits::kSwap ? Traits::kAlignmentA : Traits::kAlignmentB;

  using StrideD = cutlass::detail::TagToStrideC_t<DeviceLayoutD>;
  using Fusion = Sm90Fusion<Traits>;

  static constexpr bool kCooperative =
      cute::is_same_v<typename Traits::Schedule, cutlass::gemm::KernelTmaWarpSpecializedCooperative>;
  static constexpr bool kPersistent =
      kCooperative || cute::is_same_v<typename Traits::Schedule, cutlass::gemm::KernelTmaWarpSpecializedPingpong>;
  static constexpr bool kDirect = cute::is_same_v<typename Traits::Store, DirectStore>;
  static constexpr bool kGated = cute::is_same_v<typename Traits::Store, GateStore>;

  template <class Store, class = void>
  struct Epilogue {
    using Type = typename cutlass::epilogue::collective::CollectiveBuilder<
        cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, typename Traits::DeviceTile,
        typename Traits::DeviceCluster, cutlass::epilogue::collective::EpilogueTileAuto,
        typename Traits::ElementAccumulator, typename Traits::ElementCompute, ElementC, DeviceLayoutD,
        Traits::kAlignmentD, ElementD, DeviceLayoutD, Traits::kAlignmentD,
        cute::conditional_t<kCooperative, cutlass::epilogue::TmaWarpSpecializedCooperative,
                            cutlass::epilogue::TmaWarpSpecialized>,
        typename Fusion::Tree>::CollectiveOp;
  };
  template <class Unused>
  struct Epilogue<GateStore, Unused> {
    static constexpr int kWarps = kCooperative ? 8 : 4;
    using Type = cutlass::epilogue::collective::detail::Sm90TmaWarpSpecializedAdapter<
        GateEpilogue<typename Traits::ElementBias, ElementD, StrideD, typename Traits::DeviceTile, Traits::kGate,
                     Traits::kScaled, Traits::kSwap, kWarps>>;
  };
  template <class Unused>
  struct Epilogue<DirectStore, Unused> {
    using Type = cutlass::epilogue::collective::detail::Sm90TmaWarpSpecializedAdapter<
        DirectEpilogue<typename Traits::ElementAccumulator, typename Traits::ElementCompute, ElementD, StrideD,
                       Traits::kSwap>>;
  };
  using CollectiveEpilogue = typename Epilogue<typename Traits::Store>::Type;

  /* A kernel that is not persistent runs its epilogue after its main loop, in the same memory. */
  static constexpr int kCarveout =
      kPersistent ? static_cast<int>(sizeof(typename CollectiveEpilogue::SharedStorage)) : 1024;
  using StageCount = cute::conditional_t<Traits::kStages == 0,
                                         cutlass::gemm::collective::StageCountAutoCarveout<kCarveout>,
                                         cutlass::gemm::collective::StageCount<Traits::kStages>>;

  using BuiltMainloop = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, DeviceElementA, DeviceLayoutA, kDeviceAlignmentA,
      DeviceElementB, DeviceLayoutB, kDeviceAlignmentB, typename Traits::ElementAccumulator,
      typename Traits::DeviceTile, typename Traits::DeviceCluster, StageCount,
      typename Traits::Schedule>::CollectiveOp;
  using CollectiveMainloop =
      cute::conditional_t<Traits::kDependentLaunch, DependentMainloop<BuiltMainloop>, BuiltMainloop>;

  using Kernel = cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, CollectiveMainloop,
                                                      CollectiveEpilogue, typename Traits::Scheduler>;
};

/* `Kernel` derives from Sm90Gemm<Traits>::Kernel; its name is what a profiler shows. */
template <class Traits, class Kernel>
struct Sm90Operation {
  using Types = Sm90Gemm<Traits>;

  static constexpr int kStages = Types::CollectiveMainloop::DispatchPolicy::Stages;
  static constexpr bool kDependentLaunch = Traits::kDependentLaunch;

  template <class Stride>
  static Stride stride(int64_t leading, int64_t batch) {
    Stride result{};
    constexpr int kLeading = cutlass::gemm::detail::is_major<0, Stride>() ? 1 : 0;
    cute::get<kLeading>(result) = leading;
    cute::get<2>(result) = batch;
    return result;
  }

  static typename Kernel::Arguments arguments(gemmsmith_gemm const &call) {
    typename Kernel::Arguments args{};
    args.mode = cutlass::gemm::GemmUniversalMode::kGemm;
    int const m = static_cast<int>(Traits::kSwap ? call.n : call.m);
    int const n = static_cast<int>(Traits::kSwap ? call.m : call.n);
    args.problem_shape = {m, n, static_cast<int>(call.k), static_cast<int>(call.batch)};

    void const *a = Traits::kSwap ? call.b : call.a;
    void const *b = Traits::kSwap ? call.a : call.b;
    args.mainloop.ptr_A = static_cast<typename Types::DeviceElementA const *>(a);
    args.mainloop.ptr_B = static_cast<typename Types::DeviceElementB const *>(b);
    using StrideA = decltype(args.mainloop.dA);
    using StrideB = decltype(args.mainloop.dB);
    args.mainloop.dA = stride<StrideA>(
        Traits::kSwap ? call.ldb : call.lda, Traits::kSwap ? call.b_batch : call.a_batch);
    args.mainloop.dB = stride<StrideB>(
        Traits::kSwap ? call.lda : call.ldb, Traits::kSwap ? call.a_batch : call.b_batch);

    using StrideD = typename Types::StrideD;
    auto *d = static_cast<typename Types::ElementD *>(call.d);
    auto const *c = static_cast<typename Types::ElementD const *>(call.c);
    StrideD const stride_d = stride<StrideD>(call.ldd, call.d_batch);
    StrideD const stride_c = c ? stride<StrideD>(call.ldc, call.c_batch) : stride_d;
    if constexpr (Types::kGated) {
      args.epilogue.finish = {call.alpha, call.out_scale, Activation::kNone};
      args.epilogue.a_scale = call.a_scale;
      args.epilogue.b_scale = call.b_scale;
      args.epilogue.bias = static_cast<typename Traits::ElementBias const *>(call.bias);
      args.epilogue.d = d;
      args.epilogue.stride_d = stride_d;
    } else if constexpr (Types::kDirect) {
      using Compute = typename Traits::ElementCompute;
      args.epilogue.alpha = static_cast<Compute>(call.alpha);
      args.epilogue.beta = static_cast<Compute>(call.beta);
      args.epilogue.bias = static_cast<typename Types::ElementD const *>(call.bias);
      args.epilogue.c = c;
      args.epilogue.stride_c = stride_c;
      args.epilogue.d = d;
      args.epilogue.stride_d = stride_d;
    } else {
      args.epilogue.thread = Types::Fusion::arguments(call);
      if constexpr (Traits::kResidual) {
        args.epilogue.ptr_C = c ? c : d; /* a tensor map wants an address; with beta 0 it is not read */
        args.epilogue.dC = stride_c;
      }
      args.epilogue.ptr_D = d;
      args.epilogue.dD = stride_d;
    }
    args.hw_info.device_id = call.device;
    args.hw_info.sm_count = call.sm_count;
    if constexpr (Types::kPersistent) {
      using Raster = decltype(args.scheduler.raster_order);
      bool const along_m = (call.raster == 1) != Traits::kSwap;
      if (call.raster != 0) {
        args.scheduler.raster_order = along_m ? Raster::AlongM : Raster::AlongN;
      }
      if (call.swizzle != 0) {
        args.scheduler.max_swizzle_size = call.swizzle;
      }
      if constexpr (cute::is_same_v<typename Traits::Scheduler, cutlass::gemm::StreamKScheduler>) {
        if (call.splits != 0) {
          args.scheduler.splits = call.splits;
        }
      }
    }
    return args;
  }

  static gemmsmith_status can_run(gemmsmith_gemm const *call) {
    gemmsmith_status const sizes = check_sizes(*call);
    if (sizes != 0) {
      return sizes;
    }
    return status_of(Kernel::can_implement(arguments(*call)) ? cutlass::Status::kSuccess
                                                             : cutlass::Status::kErrorMisalignedOperand);
  }

  static gemmsmith_status workspace_bytes(gemmsmith_gemm const *call, uint64_t *bytes) {
    *bytes = Kernel::get_workspace_size(arguments(*call));
    return 0;
  }

  static gemmsmith_status launch(gemmsmith_gemm const *call, void *workspace, void *stream_) {
    cudaStream_t const stream = static_cast<cudaStream_t>(stream_);
    auto *kernel = cutlass::device_kernel<Kernel>;
    gemmsmith_status status = allow_shared_memory<Kernel>(kernel, Kernel::SharedStorageSize, call->device);
    if (status != 0) {
      return status;
    }
    typename Kernel::Arguments const args = arguments(*call);
    cutlass::Status const prepared = Kernel::initialize_workspace(args, workspace, stream);
    if (prepared != cutlass::Status::kSuccess) {
      return status_of(prepared);
    }
    typename Kernel::Params params = Kernel::to_underlying_arguments(args, workspace);
    using Cluster = typename Traits::DeviceCluster;
    dim3 const cluster(cute::size<0>(Cluster{}), cute::size<1>(Cluster{}), 1);
    return launch_clusters<kDependentLaunch>(kernel, Kernel::get_grid_shape(params), Kernel::get_block_shape(),
                                             Kernel::SharedStorageSize, cluster, stream, params);
  }

  static gemmsmith_status blocks_per_sm(int32_t *blocks) {
    return count_blocks_per_sm<Kernel>(cutlass::device_kernel<Kernel>, Kernel::MaxThreadsPerBlock,
                                       Kernel::SharedStorageSize, blocks);
  }

  static constexpr gemmsmith_kernel entry(const char *name) {
    return {name,    static_cast<int32_t>(Kernel::MaxThreadsPerBlock), Kernel::SharedStorageSize,
            kStages, kDependentLaunch, can_run, workspace_bytes, launch, blocks_per_sm, explain};
  }
};

}  // namespace gemmsmith
