/* The steps of row kernels: sums and largest values over a row, and the activations of gates. */
#pragma once

#include "gemmsmith/abi.h"
#include "gemmsmith/row_chunks.h"

namespace gemmsmith {
namespace rows {

constexpr int kWarp = 32;

/* Combines the values of all threads of a row; every thread gets the result. Zero is neutral. A
 * block uses `scratch`, one value a warp, once. */
template <class Value, class Combine>
__device__ Value reduce(Value value, Value *scratch, Combine combine) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    value = combine(value, __shfl_xor_sync(0xffffffffu, value, distance));
  }
  if (blockDim.x == kWarp) {
    return value;
  }
  int const lane = threadIdx.x % kWarp;
  if (lane == 0) {
    scratch[threadIdx.x / kWarp] = value;
  }
  __syncthreads();
  value = lane < static_cast<int>(blockDim.x) / kWarp ? scratch[lane] : Value{};
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    value = combine(value, __shfl_xor_sync(0xffffffffu, value, distance));
  }
  return value;
}

__device__ inline float sum_of_squares(float const (&values)[kChunk]) {
  float sums[kChunk];
#pragma unroll
  for (int index = 0; index < kChunk; ++index) {
    sums[index] = __fmul_rn(values[index], values[index]);
  }
#pragma unroll
  for (int left = kChunk / 2; left > 0; left /= 2) {
#pragma unroll
    for (int index = 0; index < left; ++index) {
      sums[index] = __fadd_rn(sums[2 * index], sums[2 * index + 1]);
    }
  }
  return sums[0];
}

/* Largest magnitude as bits, which order like the numbers do, NaN above infinity. */
__device__ inline uint32_t most_of(float const (&values)[kChunk], uint32_t most) {
#pragma unroll
  for (int index = 0; index < kChunk; ++index) {
    uint32_t const magnitude = __float_as_uint(values[index]) & 0x7fffffffu;
    most = magnitude > most ? magnitude : most;
  }
  return most;
}

/* x / (1 + exp(-t)). The quick functions are off by some 2^-20, far below what 16 bits hold. */
template <bool kQuick>
__device__ float gated(float x, float t) {
  if constexpr (kQuick) {
    return __fdividef(x, 1.0f + __expf(-t));
  } else {
    return x / (1.0f + expf(-t));
  }
}

template <bool kQuick>
__device__ void activate(float (&values)[kChunk], int32_t activation) {
  if (activation == GEMMSMITH_GATE_SILU) {
#pragma unroll
    for (int index = 0; index < kChunk; ++index) {
      values[index] = gated<kQuick>(values[index], values[index]);
    }
  } else if (activation == GEMMSMITH_GATE_GELU_TANH) {
#pragma unroll
    for (int index = 0; index < kChunk; ++index) { /* 0.5 (1 + tanh(t / 2)) = 1 / (1 + exp(-t)) */
      float const x = values[index];
      values[index] = gated<kQuick>(x, 1.5957691216057308f * (x + 0.044715f * x * x * x));
    }
  } else {
#pragma unroll
    for (int index = 0; index < kChunk; ++index) {
      values[index] *= normcdff(values[index]);
    }
  }
}

}  // namespace rows
}  // namespace gemmsmith
