/* An epilogue with half as many columns as the sum: D = activation(gate) * up, in f32, rounded once.
 *
 * Columns of B come in blocks of 16, 8 of the gate and 8 of up. That is what a warp's accumulators of
 * wgmma make free: a thread holds columns 8 apart and, where operands are swapped, rows 8 apart, so
 * that each pair lies in its own registers. Results go through a strip of shared memory that is each
 * warp's own, and leave it as rows of 16 B words.
 */
#pragma once

#include "cute/tensor.hpp"
#include "cutlass/cutlass.h"
#include "cutlass/epilogue/collective/detail.hpp"
#include "cutlass/numeric_conversion.h"
#include "gemmsmith/finish.h"

namespace gemmsmith {

template <class ElementBias, class ElementD_, class StrideD_, class DeviceTile, Activation kGate, bool kScaled,
          bool kSwap, int kWarps>
class GateEpilogue {
 public:
  using ElementC = void;
  using ElementD = ElementD_;
  using StrideC = StrideD_;
  using StrideD = StrideD_;
  using EpilogueSchedule = cutlass::gemm::EpilogueDefault;
  using DispatchPolicy = EpilogueSchedule;

  /* A strip holds kLines lines of kWords words: a line is a row of D, or part of one. */
  static constexpr int kWordElements = 16 / sizeof(ElementD);
  static constexpr int kTileN = cute::size<1>(DeviceTile{});
  static constexpr int kChunk = kTileN % 128 == 0 ? 128 : kTileN; /* columns of the sum at a time */
  static constexpr int kLines = kSwap ? kChunk : 16;
  static constexpr int kLineElements = kSwap ? 8 : kChunk / 2;
  static constexpr int kPitch = kLineElements + (kSwap ? 0 : kWordElements); /* spreads lines over banks */

  struct SharedStorage {
    alignas(16) ElementD strips[kWarps][kLines * kPitch];
  };
  using TensorStorage = SharedStorage;

  struct Arguments {
    FinishArguments finish;
    float const *a_scale;
    float const *b_scale;
    ElementBias const *bias;
    ElementD *d;
    StrideD stride_d;
  };
  using Params = Arguments;

  template <class ProblemShape>
  static Params to_underlying_arguments(ProblemShape const &, Arguments const &args, void *) {
    return args;
  }
  template <class ProblemShape>
  static size_t get_workspace_size(ProblemShape const &, Arguments const &) {
    return 0;
  }
  template <class ProblemShape>
  static cutlass::Status initialize_workspace(ProblemShape const &, Arguments const &, void *, cudaStream_t,
                                              cutlass::CudaHostAdapter * = nullptr) {
    return cutlass::Status::kSuccess;
  }
  template <class ProblemShape>
  static bool can_implement(ProblemShape const &, Arguments const &) {
    return true;
  }

  CUTLASS_HOST_DEVICE
  GateEpilogue(Params const &params_, SharedStorage const & = SharedStorage()) : params(params_) {}

  CUTLASS_DEVICE bool is_source_needed() const { return false; }

  template <class ProblemShape, class BlockShape, class BlockCoord, class Engine, class Layout,
            class TiledMma, class Residue>
  CUTLASS_DEVICE void operator()(ProblemShape problem, BlockShape block, BlockCoord coord,
                                 cute::Tensor<Engine, Layout> const &sums, TiledMma tiled_mma, Residue,
                                 int thread_idx, char *shared) {
    using namespace cute;
    auto [M, N, K, L] = problem;
    auto [m_coord, n_coord, k_coord, l_coord] = coord;
    auto thread_mma = tiled_mma.get_thread_slice(thread_idx);
    Tensor at = thread_mma.partition_C(make_identity_tensor(take<0, 2>(block))); /* ((2,2,N/8), M/64, 1) */
    static_assert(size<0, 0>(decltype(at.layout()){}) == 2 && size<0, 1>(decltype(at.layout()){}) == 2,
                  "a thread holds 2 columns of 2 rows of each 8 columns");
    constexpr int kBlocks = size<0, 2>(decltype(at.layout()){});
    constexpr int kSlabs = size<1>(decltype(at.layout()){});
    constexpr int kChunkBlocks = kChunk / 8;
    static_assert(kBlocks % kChunkBlocks == 0, "chunks divide the tile");

    int const lane = thread_idx % 32;
    int const origin_m = int(m_coord) * size<0>(block);
    int const origin_n = int(n_coord) * size<1>(block);
    ElementD *strip = reinterpret_cast<SharedStorage *>(shared)->strips[thread_idx / 32];
    ElementD *d = params.d + int64_t(l_coord) * int64_t(get<2>(params.stride_d));

    CUTLASS_PRAGMA_UNROLL
    for (int slab = 0; slab < kSlabs; ++slab) {
      /* the first of the 16 rows that this warp holds in this slab */
      int const row = origin_m + int(get<0>(at(make_coord(make_coord(0, 0, 0), slab, 0)))) - lane / 4;
      CUTLASS_PRAGMA_UNROLL
      for (int first = 0; first < kBlocks; first += kChunkBlocks) {
        if constexpr (kSwap) {
          write_swapped(sums, slab, first, row, origin_n, M, N, lane, strip);
        } else {
          write(sums, slab, first, row, origin_n, M, N, lane, strip);
        }
        __syncwarp();
        store(d, row, origin_n + first * 8, M, N, lane, strip);
        __syncwarp();
      }
    }
  }

 private:
  CUTLASS_DEVICE float scaled(float sum, float a_scale, float b_scale, float bias) const {
    float const alpha = params.finish.alpha;
    return (kScaled ? sum * (alpha * a_scale * b_scale) : sum * alpha) + bias;
  }
  CUTLASS_DEVICE ElementD gated(float gate, float up) const {
    float value = activate(kGate, gate) * up;
    if constexpr (cute::is_same_v<ElementD, int8_t>) {
      value *= params.finish.out_scale;
    }
    return cutlass::NumericConverter<ElementD, float>{}(value);
  }
  template <class Element>
  CUTLASS_DEVICE static float at_or(Element const *values, int index, int size, float otherwise) {
    return values != nullptr && index < size ? float(values[index]) : otherwise;
  }

  /* Rows are tokens: a line of the strip is a row of D. */
  template <class Sums>
  CUTLASS_DEVICE void write(Sums const &sums, int slab, int first, int row, int origin_n, int M, int N, int lane,
                            ElementD *strip) const {
    using namespace cute;
    CUTLASS_PRAGMA_UNROLL
    for (int half = 0; half < 2; ++half) {
      int const line = lane / 4 + 8 * half;
      float const a_scale = kScaled ? at_or(params.a_scale, row + line, M, 1.0f) : 1.0f;
      CUTLASS_PRAGMA_UNROLL
      for (int pair = 0; pair < kChunk / 16; ++pair) {
        cutlass::AlignedArray<ElementD, 2, 2 * sizeof(ElementD)> two;
        CUTLASS_PRAGMA_UNROLL
        for (int c = 0; c < 2; ++c) {
          int const column = origin_n + (first + 2 * pair) * 8 + 2 * (lane % 4) + c;
          float value[2];
          CUTLASS_PRAGMA_UNROLL
          for (int part = 0; part < 2; ++part) {
            float const b_scale = kScaled ? at_or(params.b_scale, column + 8 * part, N, 1.0f) : 1.0f;
            value[part] = scaled(float(sums(make_coord(make_coord(c, half, first + 2 * pair + part), slab, 0))), a_scale,
                                 b_scale, at_or(params.bias, column + 8 * part, N, 0.0f));
          }
          two[c] = gated(value[0], value[1]);
        }
        *reinterpret_cast<decltype(two) *>(strip + line * kPitch + 8 * pair + 2 * (lane % 4)) = two;
      }
    }
  }

  /* Columns are tokens: a line of the strip is 8 neighbouring features of one token. */
  template <class Sums>
  CUTLASS_DEVICE void write_swapped(Sums const &sums, int slab, int first, int row, int origin_n, int M, int N,
                                    int lane, ElementD *strip) const {
    using namespace cute;
    int const feature = row + lane / 4; /* of the gate; up lies 8 further */
    float b_scale[2], bias[2];
    CUTLASS_PRAGMA_UNROLL
    for (int part = 0; part < 2; ++part) {
      b_scale[part] = kScaled ? at_or(params.b_scale, feature + 8 * part, M, 1.0f) : 1.0f;
      bias[part] = at_or(params.bias, feature + 8 * part, M, 0.0f);
    }
    CUTLASS_PRAGMA_UNROLL
    for (int block = 0; block < kChunk / 8; ++block) {
      CUTLASS_PRAGMA_UNROLL
      for (int c = 0; c < 2; ++c) {
        int const line = 8 * block + 2 * (lane % 4) + c;
        float const a_scale = kScaled ? at_or(params.a_scale, origin_n + 8 * first + line, N, 1.0f) : 1.0f;
        float value[2];
        CUTLASS_PRAGMA_UNROLL
        for (int part = 0; part < 2; ++part) {
          value[part] = scaled(float(sums(make_coord(make_coord(c, part, first + block), slab, 0))), a_scale,
                               b_scale[part], bias[part]);
        }
        strip[line * kPitch + lane / 4] = gated(value[0], value[1]);
      }
    }
  }

  /* Strip to memory. D's rows are contiguous; its row stride and address are multiples of 16 B. */
  CUTLASS_DEVICE void store(ElementD *d, int row, int column, int M, int N, int lane, ElementD const *strip) const {
    constexpr int kWordElementsHere = kLineElements < kWordElements ? kLineElements : kWordElements;
    constexpr int kLineWords = kLineElements / kWordElementsHere;
    using Word = cutlass::AlignedArray<ElementD, kWordElementsHere, kWordElementsHere * sizeof(ElementD)>;
    int64_t const leading = kSwap ? int64_t(cute::get<1>(params.stride_d)) : int64_t(cute::get<0>(params.stride_d));
    int const tokens = kSwap ? N : M;
    int const features = (kSwap ? M : N) / 2;
    CUTLASS_PRAGMA_UNROLL
    for (int word = lane; word < kLines * kLineWords; word += 32) {
      int const line = word / kLineWords, at = word % kLineWords * kWordElementsHere;
      int const token = kSwap ? column + line : row + line;
      int const feature = (kSwap ? row : column) / 2 + at;
      if (token < tokens && feature < features) {
        *reinterpret_cast<Word *>(d + token * leading + feature) =
            *reinterpret_cast<Word const *>(strip + line * kPitch + at);
      }
    }
  }

  Params params;
};

}  // namespace gemmsmith
