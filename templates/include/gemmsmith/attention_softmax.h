/* Softmax on the registers of wgmma: a thread has columns 2 * quad and the next of every eight, of two
 * rows that lie 8 apart; four neighbours, a quad, have a row. */
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "cutlass/numeric_types.h"
#include "gemmsmith/attention_schedule.h"
#include "gemmsmith/hopper_instructions.h"

namespace gemmsmith {

constexpr float kLog2e = 1.4426950408889634f;

template <int kCount>
__device__ __forceinline__ void pin_all(float (&values)[kCount]) {
#pragma unroll
  for (float &value : values) {
    pin(value);
  }
}
template <int kCount>
__device__ __forceinline__ void pin_all(uint32_t (&values)[kCount]) {
#pragma unroll
  for (uint32_t &value : values) {
    asm volatile("" : "+r"(value)::"memory");
  }
}

/* What wgmma must know of columns: rows of 128 bytes in TMA's 128-byte swizzle, along which its second
 * operand's columns run; `next` bytes further the next 64 of them begin. */
__device__ __forceinline__ uint64_t columns_descriptor(uint32_t shared_address, int next) {
  constexpr uint64_t kSwizzle128 = uint64_t(1) << 62;
  constexpr uint64_t kEightRows = uint64_t(1024 >> 4) << 32;
  return kSwizzle128 | kEightRows | uint64_t(next >> 4) << 16 | ((shared_address & 0x3FFFF) >> 4);
}

__device__ __forceinline__ float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float largest_in_quad(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ __forceinline__ float add_in_quad(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

template <class Element>
__device__ __forceinline__ uint32_t pack_pair(float low, float high) {
  uint32_t pair;
  if constexpr (std::is_same_v<Element, cutlass::half_t>) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  }
  return pair;
}

/* Thread i of a quad has pair i of four groups of eight columns, and gets all four pairs of group i. */
__device__ __forceinline__ uint4 transpose_in_quad(uint32_t const (&pairs)[4]) {
  bool const odd = threadIdx.x & 1, upper = threadIdx.x & 2;
  /* Between neighbours: who is even keeps groups 0 and 2, who is odd 1 and 3. */
  uint32_t const give_0 = odd ? pairs[0] : pairs[1], give_1 = odd ? pairs[2] : pairs[3];
  uint32_t const got_0 = __shfl_xor_sync(0xffffffffu, give_0, 1), got_1 = __shfl_xor_sync(0xffffffffu, give_1, 1);
  uint32_t const low_0 = odd ? got_0 : pairs[0], high_0 = odd ? pairs[1] : got_0; /* of group 0 or 1 */
  uint32_t const low_1 = odd ? got_1 : pairs[2], high_1 = odd ? pairs[3] : got_1; /* of group 2 or 3 */
  /* Between pairs of neighbours: the lower keeps group 0 or 1, the upper 2 or 3. */
  uint32_t const give_low = upper ? low_0 : low_1, give_high = upper ? high_0 : high_1;
  uint32_t const got_low = __shfl_xor_sync(0xffffffffu, give_low, 2);
  uint32_t const got_high = __shfl_xor_sync(0xffffffffu, give_high, 2);
  return upper ? uint4{got_low, got_high, low_1, high_1} : uint4{low_0, high_0, got_low, got_high};
}

/* Caps the scores where there is a cap, and takes out what a query does not see of tile `block`. */
template <int kTileKeys>
__device__ __forceinline__ void cap_and_mask(float (&scores)[kTileKeys / 2], float scale, float cap, Rows const &rows,
                                             int block) {
  if (cap > 0.0f) { /* cap * tanh(x / cap) in base 2: scale holds 2 log2(e) / cap */
#pragma unroll
    for (float &score : scores) {
      score = fmaf(-2.0f * cap, reciprocal(1.0f + power_of_two(score * scale)), cap);
    }
  }
  int const first = block * kTileKeys;
  if (first + kTileKeys > rows.all_end || first < rows.all_begin) {
    int const column = first + threadIdx.x % 4 * 2;
    int const end[2] = {rows.end[0] - column, rows.end[1] - column};
    int const begin[2] = {rows.begin[0] - column, rows.begin[1] - column};
#pragma unroll
    for (int i = 0; i < kTileKeys / 2; ++i) {
      int const at = i / 4 * 8 + i % 2, half = i / 2 % 2;
      if (at >= end[half] || at < begin[half]) {
        scores[i] = -INFINITY;
      }
    }
  }
}

/* Makes probabilities of scores, up to a factor of a row: 2 to the score times `scale`, relative to the
 * largest so far. `kept` is what becomes of earlier ones. */
template <int kScores>
__device__ __forceinline__ void soften(float (&scores)[kScores], float scale, float (&largest)[2], float (&total)[2],
                                       float (&kept)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float most = largest[half];
#pragma unroll
    for (int i = 2 * half; i < kScores; i += 4) {
      most = fmaxf(most, fmaxf(scores[i], scores[i + 1]));
    }
    most = largest_in_quad(most);
    float const offset = most == -INFINITY ? 0.0f : most * scale; /* none seen yet: all stay 0 */
    kept[half] = power_of_two(largest[half] * scale - offset);
    largest[half] = most;
    float sum = 0.0f;
#pragma unroll
    for (int i = 2 * half; i < kScores; i += 4) {
      scores[i] = power_of_two(fmaf(scores[i], scale, -offset));
      scores[i + 1] = power_of_two(fmaf(scores[i + 1], scale, -offset));
      sum += scores[i] + scores[i + 1];
    }
    total[half] = total[half] * kept[half] + sum;
  }
}

/* Packs probabilities as wgmma's first operand takes them: neighbouring columns of one row together. */
template <class Element, int kScores>
__device__ __forceinline__ void pack(float const (&scores)[kScores], uint32_t (&probabilities)[kScores / 2]) {
#pragma unroll
  for (int i = 0; i < kScores / 2; ++i) {
    probabilities[i] = pack_pair<Element>(scores[2 * i], scores[2 * i + 1]);
  }
}

}  // namespace gemmsmith
