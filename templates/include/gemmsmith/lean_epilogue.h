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
  using Floats = cutlass::Array<float, 4>;
  using Output = cutlass::AlignedArray<ElementD, 4>;

  /* With a gate the sums' columns come in blocks of 16, 8 of the gate and 8 of up, and D has half as many. */
  static constexpr bool kGated = Traits::kGate != Activation::kNone;
  static constexpr int kGateBlock = 8;
  static constexpr int kHalves = kGated ? 2 : 1; /* sums that a result is made of */
  static constexpr bool kInteger = cute::is_same_v<ElementD, int8_t>;

  /* Threads take quads: four neighbours of a row of D. */
  static constexpr int kColumns = kFeatures / kHalves;
  static constexpr int kQuads = kTokens * kColumns / 4;
  static constexpr int kQuadsPerBlock = (kQuads + kSplits - 1) / kSplits;
  static constexpr int kRounds = (kQuadsPerBlock + kConsumerThreads - 1) / kConsumerThreads;
  static constexpr int kMost = (kSplits == 1 ? 8 : 4) / kHalves;
  static constexpr int kBatch = kRounds < kMost ? kRounds : kMost;

  static_assert(!kGated || kFeatures % (2 * kGateBlock) == 0, "whole blocks of gate and up");

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

  /* Where a column of D has its sum, or that of its gate. */
  __device__ static int sum_column(int column) {
    return kGated ? column / kGateBlock * (2 * kGateBlock) + column % kGateBlock : column;
  }

  /* Finishes this block's share of the tile. */
  __device__ static void finish(Params const &params, Place const &place, Accumulator *tile) {
    int const token_0 = blockIdx.x * kTokens;
    int const feature_0 = blockIdx.y * kFeatures;
    int64_t const batch = blockIdx.z / kSplits;
    uint32_t parts[kSplits];
#pragma unroll
    for (int split = 0; split < kSplits; ++split) {
      uint32_t const own = cute::cast_smem_ptr_to_uint(tile);
      parts[split] = kSplits > 1 ? cute::set_block_rank(own, Place::rank(place.m, place.n, split)) : own;
    }
    int const end = min((place.split + 1) * kQuadsPerBlock, kQuads);
    int quad = place.split * kQuadsPerBlock + int(threadIdx.x);
    /* All that a batch reads is under way before the first of it is used. */
    for (int round = 0; round < kRounds; round += kBatch) {
      Quad<Accumulator> sums[kBatch][kHalves][kSplits];
      Output sources[kBatch];
      int tokens[kBatch], features[kBatch], columns[kBatch]; /* features are the sums', columns are D's */
      bool inside[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i, quad += kConsumerThreads) {
        int const row = quad / (kColumns / 4), column = quad % (kColumns / 4) * 4;
        tokens[i] = token_0 + row;
        features[i] = feature_0 + sum_column(column);
        columns[i] = feature_0 / kHalves + column;
        inside[i] = quad < end && tokens[i] < params.tokens && features[i] < params.features;
        if (inside[i]) {
#pragma unroll
          for (int half = 0; half < kHalves; ++half) {
            int const at = row * kPitch + sum_column(column) + half * kGateBlock;
            if constexpr (kSplits > 1) {
#pragma unroll
              for (int split = 0; split < kSplits; ++split) {
                sums[i][half][split] = load_of_cluster<Accumulator>(parts[split] + at * 4);
              }
            } else {
              sums[i][half][0] = *reinterpret_cast<Quad<Accumulator> *>(tile + at);
            }
          }
          if constexpr (Traits::kResidual) {
            if (params.c != nullptr) {
              sources[i] = *reinterpret_cast<Output const *>(params.c + batch * params.c_batch +
                                                             tokens[i] * params.ldc + columns[i]);
            }
          }
        }
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (inside[i]) {
          Floats values = finished(params, sums[i][0], tokens[i], features[i]);
          if constexpr (kGated) {
            Floats const up = finished(params, sums[i][1], tokens[i], features[i] + kGateBlock);
            for (int j = 0; j < 4; ++j) {
              values[j] = activate(Traits::kGate, values[j]) * up[j] * (kInteger ? params.finish.out_scale : 1.0f);
            }
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
          *reinterpret_cast<Output *>(params.d + batch * params.d_batch + tokens[i] * params.ldd + columns[i]) = output;
        }
      }
    }
  }

  /* Four sums with scales, bias and activation. */
  __device__ static Floats finished(Params const &params, Quad<Accumulator> const (&parts)[kSplits], int token,
                                    int feature) {
    using Function = Finish<Traits::kActivation, Traits::kScaled, Traits::kBias, kInteger && !kGated, Floats>;
    Floats values, bias, a_scale, b_scale;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      Accumulator sum = parts[0].values[j];
#pragma unroll
      for (int split = 1; split < kSplits; ++split) {
        sum += parts[split].values[j];
      }
      values[j] = float(sum);
      bias[j] = Traits::kBias && params.bias ? float(params.bias[feature + j]) : 0.0f;
      a_scale[j] = Traits::kScaled && params.a_scale ? params.a_scale[token] : 1.0f;
      b_scale[j] = Traits::kScaled && params.b_scale ? params.b_scale[feature + j] : 1.0f;
    }
    Function const function;
    if constexpr (Traits::kScaled && Traits::kBias) {
      return function(values, a_scale, b_scale, bias, params.finish);
    } else if constexpr (Traits::kScaled) {
      return function(values, a_scale, b_scale, params.finish);
    } else if constexpr (Traits::kBias) {
      return function(values, bias, params.finish);
    } else {
      return function(values, params.finish);
    }
  }
};

}  // namespace gemmsmith
