/* What becomes of a lean kernel's sums: through shared memory as they are, finished in the order of D. */
#pragma once

#include "cute/arch/cluster_sm90.hpp"
#include "cutlass/array.h"
#include "cutlass/numeric_conversion.h"
#include "gemmsmith/finish.h"
#include "gemmsmith/hopper_instructions.h"
#include "gemmsmith/lean_shape.h"

namespace gemmsmith {

template <class Traits>
struct LeanEpilogue : LeanShape<Traits> {
  using Shape = LeanShape<Traits>;
  using typename Shape::Accumulator, typename Shape::ElementD, typename Shape::Params, typename Shape::Place,
      typename Shape::Sums;
  using Shape::kSplits, Shape::kSwap, Shape::kBlocksOfRows, Shape::kConsumerThreads, Shape::kSums, Shape::kTokens,
      Shape::kFeatures, Shape::kPitch;

  static constexpr int kQuads = kTokens * kFeatures / 4;
  static constexpr int kQuadsPerBlock = (kQuads + kSplits - 1) / kSplits;

  /* Puts the sums of this block into its shared memory, in the order of D. */
  __device__ static void stage(Sums const &sums, Accumulator *tile) {
    int const warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int const first_row = (warp / 4) * kBlocksOfRows * 64 + (warp % 4) * 16 + lane / 4;
    int const first_column = 2 * (lane % 4);
#pragma unroll
    for (int block = 0; block < kBlocksOfRows; ++block) {
#pragma unroll
      for (int i = 0; i < kSums; i += 2) {
        int const row = first_row + block * 64 + 8 * (i / 2 % 2);
        int const column = first_column + 8 * (i / 4);
        if constexpr (kSwap) {
          tile[column * kPitch + row] = sums[block][i];
          tile[(column + 1) * kPitch + row] = sums[block][i + 1];
        } else {
          struct alignas(8) Pair {
            Accumulator left, right;
          };
          *reinterpret_cast<Pair *>(tile + row * kPitch + column) = {sums[block][i], sums[block][i + 1]};
        }
      }
    }
  }

  /* Finishes this block's share of the tile: four neighbours of a row at a time. */
  __device__ static void finish(Params const &params, Place const &place, Accumulator *tile) {
    using Floats = cutlass::Array<float, 4>;
    using Function = Finish<Traits::kActivation, Traits::kScaled, Traits::kBias, cute::is_same_v<ElementD, int8_t>, Floats>;
    int const token_0 = (kSwap ? blockIdx.y : blockIdx.x) * kTokens;
    int const feature_0 = (kSwap ? blockIdx.x : blockIdx.y) * kFeatures;
    int64_t const batch = blockIdx.z / kSplits;
    uint32_t parts[kSplits];
#pragma unroll
    for (int split = 0; split < kSplits; ++split) {
      uint32_t const own = cute::cast_smem_ptr_to_uint(tile);
      parts[split] = kSplits > 1 ? cute::set_block_rank(own, Place::rank(place.m, place.n, split)) : own;
    }
    /* All that a batch reads is under way before the first of it is used. */
    using Output = cutlass::AlignedArray<ElementD, 4>;
    constexpr int kRounds = (kQuadsPerBlock + kConsumerThreads - 1) / kConsumerThreads;
    constexpr int kMost = kSplits == 1 ? 8 : 4;
    constexpr int kBatch = kRounds < kMost ? kRounds : kMost;
    int const end = min((place.split + 1) * kQuadsPerBlock, kQuads);
    int quad = place.split * kQuadsPerBlock + int(threadIdx.x);
    for (int round = 0; round < kRounds; round += kBatch) {
      Quad<Accumulator> sums[kBatch][kSplits];
      Output sources[kBatch];
      int tokens[kBatch], features[kBatch];
      bool inside[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i, quad += kConsumerThreads) {
        int const row = quad / (kFeatures / 4), column = quad % (kFeatures / 4) * 4;
        tokens[i] = token_0 + row;
        features[i] = feature_0 + column;
        inside[i] = quad < end && tokens[i] < params.tokens && features[i] < params.features;
        if (inside[i]) {
          int const at = row * kPitch + column;
          if constexpr (kSplits > 1) {
#pragma unroll
            for (int split = 0; split < kSplits; ++split) {
              sums[i][split] = load_of_cluster<Accumulator>(parts[split] + at * 4);
            }
          } else {
            sums[i][0] = *reinterpret_cast<Quad<Accumulator> *>(tile + at);
          }
          if constexpr (Traits::kResidual) {
            if (params.c != nullptr) {
              sources[i] = *reinterpret_cast<Output const *>(params.c + batch * params.c_batch +
                                                             tokens[i] * params.ldc + features[i]);
            }
          }
        }
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (inside[i]) {
          Floats values, bias, a_scale, b_scale;
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            Accumulator sum = sums[i][0].values[j];
#pragma unroll
            for (int split = 1; split < kSplits; ++split) {
              sum += sums[i][split].values[j];
            }
            values[j] = float(sum);
            bias[j] = Traits::kBias && params.bias ? float(params.bias[features[i] + j]) : 0.0f;
            a_scale[j] = Traits::kScaled && params.a_scale ? params.a_scale[tokens[i]] : 1.0f;
            b_scale[j] = Traits::kScaled && params.b_scale ? params.b_scale[features[i] + j] : 1.0f;
          }
          Function const function;
          if constexpr (Traits::kScaled && Traits::kBias) {
            values = function(values, a_scale, b_scale, bias, params.finish);
          } else if constexpr (Traits::kScaled) {
            values = function(values, a_scale, b_scale, params.finish);
          } else if constexpr (Traits::kBias) {
            values = function(values, bias, params.finish);
          } else {
            values = function(values, params.finish);
          }
          if constexpr (Traits::kResidual) {
            if (params.c != nullptr) {
              for (int j = 0; j < 4; ++j) {
                values[j] += params.beta * float(sources[i][j]);
              }
            }
          }
          auto const rounded = cutlass::NumericArrayConverter<ElementD, float, 4>{}(values);
          Output output;
          for (int j = 0; j < 4; ++j) {
            output[j] = rounded[j];
          }
          *reinterpret_cast<Output *>(params.d + batch * params.d_batch + tokens[i] * params.ldd + features[i]) = output;
        }
      }
    }
  }
};

}  // namespace gemmsmith
