/* One row as a thread of a row kernel sees it: what it reads, computes and writes of it.
 *
 * All arithmetic is in f32, in an order that depends neither on the number of threads nor on the
 * path taken: sums of squares add the eight of a chunk in f32 and the chunks in f64.
 */
#pragma once

#include <cfloat>

#include "gemmsmith/row_steps.h"

namespace gemmsmith {
namespace rows {

constexpr float kSmallestMost = 0x1p-100f; /* below it 127 / most could overflow */

/* Kernel says the element type and which of the steps there are. */
template <class Kernel, bool kVector>
struct Row {
  using T = typename Kernel::Element;
  static constexpr bool kConstant = !Kernel::kDependentLaunch; /* else the one ahead may still write */

  struct Inputs {
    Raw<T> first;  /* x, or the gate */
    Raw<T> second; /* the residual, or what the gate multiplies */
  };

  gemmsmith_rows const &call;
  T const *x;
  T const *residual;
  T *sum;
  int64_t index;

  __device__ Row(gemmsmith_rows const &of, int64_t row)
      : call(of),
        x(static_cast<T const *>(of.x) + row * of.x_stride),
        residual(static_cast<T const *>(of.residual)),
        sum(static_cast<T *>(of.sum)),
        index(row) {
    if constexpr (Kernel::kNorm) {
      if (residual != nullptr) {
        residual += row * of.residual_stride;
        sum += row * of.sum_stride;
      }
    }
  }

  __device__ Inputs read(int chunk) const {
    Inputs inputs{};
    int64_t const column = static_cast<int64_t>(chunk) * kChunk;
    int64_t const valid = call.columns - column;
    if constexpr (Kernel::kGate) {
      T const *const gate = x + (call.interleaved ? 2 * column : column);
      inputs.first = load<kVector, kConstant>(gate, valid);
      inputs.second = load<kVector, kConstant>(gate + (call.interleaved ? kChunk : call.columns), valid);
    } else {
      inputs.first = load<kVector, kConstant>(x + column, valid);
      if constexpr (Kernel::kNorm) {
        if (residual != nullptr) {
          inputs.second = load<kVector, kConstant>(residual + column, valid);
        }
      }
    }
    return inputs;
  }

  /* Whether each column is multiplied by a weight: in a norm, and where what is quantised has one. */
  __device__ bool weighs() const { return Kernel::kNorm || (Kernel::kQuantize && call.weight != nullptr); }

  __device__ Raw<T> read_weight(int chunk) const {
    int64_t const column = static_cast<int64_t>(chunk) * kChunk;
    return load<kVector, kConstant>(static_cast<T const *>(call.weight) + column, call.columns - column);
  }

  /* Gives what is normalised or quantised. The sum with the residual is rounded to T first, as it
   * is stored. */
  __device__ void evaluate(Inputs const &inputs, float (&values)[kChunk], int chunk, bool keep) const {
    to_floats(inputs.first, values);
    if constexpr (Kernel::kGate) {
      float factors[kChunk];
      to_floats(inputs.second, factors);
      activate<sizeof(T) == 2>(values, call.activation);
#pragma unroll
      for (int at = 0; at < kChunk; ++at) {
        values[at] *= factors[at];
      }
    } else if constexpr (Kernel::kNorm) {
      if (residual != nullptr) {
        float added[kChunk];
        to_floats(inputs.second, added);
#pragma unroll
        for (int at = 0; at < kChunk; ++at) {
          values[at] = __fadd_rn(values[at], added[at]);
        }
        Raw<T> const rounded = from_floats<T>(values);
        to_floats(rounded, values);
        if (keep) {
          int64_t const column = static_cast<int64_t>(chunk) * kChunk;
          store<kVector>(sum + column, rounded, call.columns - column);
        }
      }
    }
  }

  __device__ float factor_of(double squares) const {
    float const mean = __fdiv_rn(static_cast<float>(squares), static_cast<float>(call.columns));
    return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, call.eps)));
  }

  /* (value * factor) * weight; factor is 1 without a norm. */
  __device__ static void weigh(float (&values)[kChunk], float factor, Raw<T> const &weight) {
    float weights[kChunk];
    to_floats(weight, weights);
#pragma unroll
    for (int at = 0; at < kChunk; ++at) {
      values[at] = __fmul_rn(__fmul_rn(values[at], factor), weights[at]);
    }
  }

  /* Stores the row's scale and returns what its values are multiplied by: 0 where all of the row is
   * stored as 0, because it is zero or because its scale is NaN or infinite. */
  __device__ float inverse_scale(uint32_t bits) const {
    float const most = __uint_as_float(bits);
    float scale = 0.0f;
    float inverse = 0.0f;
    if (!(most <= FLT_MAX)) {
      scale = most;
    } else if (most >= kSmallestMost) {
      scale = __fdiv_rn(most, 127.0f);
      inverse = __fdiv_rn(127.0f, most);
    }
    if (threadIdx.x == 0) {
      call.scale[index] = scale;
    }
    return inverse;
  }

  __device__ void write(float const (&values)[kChunk], int chunk, float inverse) const {
    int64_t const column = static_cast<int64_t>(chunk) * kChunk;
    int64_t const valid = call.padded - column;
    if constexpr (Kernel::kQuantize) {
      int8_t *const to = static_cast<int8_t *>(call.out) + index * call.out_stride + column;
      uint32_t words[2] = {0, 0};
      if (inverse > 0.0f) {
#pragma unroll
        for (int word = 0; word < 2; ++word) {
          uint32_t bits[4];
#pragma unroll
          for (int at = 0; at < 4; ++at) { /* adding 1.5 * 2^23 rounds half to even into the low byte */
            bits[at] = __float_as_uint(fmaf(values[4 * word + at], inverse, 12582912.0f));
          }
          uint32_t const low = __byte_perm(bits[0], bits[1], 0x0040);
          uint32_t const high = __byte_perm(bits[2], bits[3], 0x0040);
          words[word] = __byte_perm(low, high, 0x5410);
        }
      }
      if constexpr (kVector) {
        if (valid > 0) {
          *reinterpret_cast<uint2 *>(to) = make_uint2(words[0], words[1]);
        }
      } else {
#pragma unroll
        for (int at = 0; at < kChunk; ++at) {
          if (at < valid) {
            to[at] = static_cast<int8_t>(words[at / 4] >> (8 * (at % 4)) & 0xffu);
          }
        }
      }
    } else {
      T *const to = static_cast<T *>(call.out) + index * call.out_stride + column;
      store<kVector>(to, from_floats<T>(values), valid);
    }
  }
};

}  // namespace rows
}  // namespace gemmsmith
