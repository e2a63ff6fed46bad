/* An epilogue that stores accumulators from registers straight to memory: no shared memory, any
 * alignment of D. It adds what the call asks for: D = alpha * acc + bias + beta * C, in
 * ElementCompute, rounded once. A null bias or C, or beta 0, is not read.
 *
 * Accumulators of wgmma lie in pairs along N. Where D's rows are contiguous in N and the row stride
 * allows it, a pair is stored as one word.
 */
#pragma once

#include "cute/tensor.hpp"
#include "cutlass/cutlass.h"
#include "cutlass/epilogue/collective/detail.hpp"
#include "cutlass/numeric_conversion.h"

namespace gemmsmith {

template <class ElementAccumulator, class ElementCompute, class ElementD_, class StrideD_, bool kBiasAlongM>
class DirectEpilogue {
 public:
  using ElementC = ElementD_;
  using ElementD = ElementD_;
  using StrideC = StrideD_;
  using StrideD = StrideD_;
  using EpilogueSchedule = cutlass::gemm::EpilogueDefault;
  using DispatchPolicy = EpilogueSchedule;

  struct SharedStorage {};
  using TensorStorage = SharedStorage;

  struct Arguments {
    ElementCompute alpha;
    ElementCompute beta;
    ElementD const *bias;
    ElementD const *c;
    StrideC stride_c;
    ElementD *d;
    StrideD stride_d;
  };
  struct Params : Arguments {
    bool pairs; /* both elements of an accumulator pair may be stored as one word */
  };

  template <class ProblemShape>
  static Params to_underlying_arguments(ProblemShape const &shape, Arguments const &args, void *) {
    Params params;
    static_cast<Arguments &>(params) = args;
    params.pairs = false;
    if constexpr (kPairable) {
      auto divides = [](int64_t elements) { return elements * int64_t(sizeof(ElementD)) % kPairBytes == 0; };
      params.pairs = cute::get<1>(shape) % 2 == 0 &&
                     reinterpret_cast<uintptr_t>(args.d) % kPairBytes == 0 &&
                     divides(cute::get<0>(args.stride_d)) && divides(cute::get<2>(args.stride_d));
    }
    return params;
  }

  template <class ProblemShape>
  static size_t get_workspace_size(ProblemShape const &, Arguments const &) {
    return 0;
  }

  template <class ProblemShape>
  static cutlass::Status initialize_workspace(ProblemShape const &, Arguments const &, void *,
                                              cudaStream_t, cutlass::CudaHostAdapter * = nullptr) {
    return cutlass::Status::kSuccess;
  }

  template <class ProblemShape>
  static bool can_implement(ProblemShape const &, Arguments const &) {
    return true;
  }

  CUTLASS_HOST_DEVICE
  DirectEpilogue(Params const &params_, SharedStorage const & = SharedStorage()) : params(params_) {}

  CUTLASS_DEVICE bool is_source_needed() const { return params.c != nullptr && params.beta != ElementCompute(0); }

  template <class ProblemShape, class BlockShape, class BlockCoord, class Engine, class Layout,
            class TiledMma, class Residue>
  CUTLASS_DEVICE void operator()(ProblemShape problem, BlockShape block, BlockCoord coord,
                                 cute::Tensor<Engine, Layout> const &accumulators, TiledMma tiled_mma,
                                 Residue, int thread_idx, char *) {
    using namespace cute;
    auto [M, N, K, L] = problem;
    auto [m_coord, n_coord, k_coord, l_coord] = coord;
    auto block_mn = take<0, 2>(block);
    auto origin_m = m_coord * size<0>(block);
    auto origin_n = n_coord * size<1>(block);

    auto thread_mma = tiled_mma.get_thread_slice(thread_idx);
    auto partition = [&](auto pointer, auto const &stride) {
      Tensor whole = make_tensor(make_gmem_ptr(pointer), make_shape(M, N, L), stride);
      Tensor tile = local_tile(whole, block_mn, make_coord(m_coord, n_coord, l_coord));
      return thread_mma.partition_C(tile);
    };
    Tensor thread_d = partition(params.d, params.stride_d);
    Tensor thread_c = partition(params.c, params.stride_c);
    Tensor thread_at = thread_mma.partition_C(make_identity_tensor(block_mn));

    bool const source = is_source_needed();
    bool const biased = params.bias != nullptr;
    auto value = [&](int i) {
      auto m = origin_m + get<0>(thread_at(i));
      auto n = origin_n + get<1>(thread_at(i));
      ElementCompute sum = params.alpha * ElementCompute(accumulators(i));
      if (biased) {
        sum += ElementCompute(params.bias[kBiasAlongM ? m : n]);
      }
      if (source) {
        sum += params.beta * ElementCompute(thread_c(i));
      }
      return cutlass::NumericConverter<ElementD, ElementCompute>{}(sum);
    };
    auto inside = [&](int i) {
      return origin_m + get<0>(thread_at(i)) < M && origin_n + get<1>(thread_at(i)) < N;
    };

    if constexpr (kPairable) {
      if (params.pairs) {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < size(accumulators); i += 2) {
          if (inside(i)) { /* N is even, so the pair's second column is inside too */
            cutlass::AlignedArray<ElementD, 2, kPairBytes> pair;
            pair[0] = value(i);
            pair[1] = value(i + 1);
            *reinterpret_cast<decltype(pair) *>(&thread_d(i)) = pair;
          }
        }
        return;
      }
    }
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < size(accumulators); ++i) {
      if (inside(i)) {
        thread_d(i) = value(i);
      }
    }
  }

 private:
  static constexpr int kPairBytes = 2 * sizeof(ElementD);
  static constexpr bool kPairable = cutlass::gemm::detail::is_major<1, StrideD>();

  Params params;
};

}  // namespace gemmsmith
