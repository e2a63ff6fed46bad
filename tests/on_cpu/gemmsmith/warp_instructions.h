/* What templates/include/gemmsmith/warp_instructions.h offers, and device functions of CUDA's, for a CPU. */
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>

#include "machine.h"

using std::max;
using std::min;

inline void __syncthreads() { emulated::wait(emulated::blocks[emulated::here().rank].named[0], emulated::threads); }
inline void __syncwarp() { emulated::meet_warp(); }
template <class Value>
Value __shfl_sync(unsigned, Value value, int lane) {
  emulated::put(value);
  emulated::meet_warp();
  value = emulated::of_lane<Value>(lane);
  emulated::meet_warp();
  return value;
}
template <class Value>
Value __shfl_xor_sync(unsigned mask, Value value, int distance) {
  return __shfl_sync(mask, value, int(emulated::here().thread.x % 32) ^ distance);
}
inline int __any_sync(unsigned, bool value) {
  emulated::put(value);
  emulated::meet_warp();
  bool any = false;
  for (int lane = 0; lane < 32; ++lane) {
    any |= emulated::of_lane<bool>(lane);
  }
  emulated::meet_warp();
  return any;
}
inline float __uint_as_float(unsigned bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
template <class Value>
Value __ldg(Value const *from) {
  return *from;
}
inline float __fadd_rn(float left, float right) { return left + right; }
inline float __fmul_rn(float left, float right) { return left * right; }
inline void sincospif(float half_turns, float *sine, float *cosine) {
  *sine = float(std::sin(M_PI * double(half_turns)));
  *cosine = float(std::cos(M_PI * double(half_turns)));
}
inline unsigned __float_as_uint(float value) {
  unsigned bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
inline float __fdividef(float left, float right) { return left / right; }

namespace gemmsmith {

inline uint8_t *dynamic_shared() { return emulated::shared(emulated::here().rank, 0, 0); }
inline uint32_t shared_address(void const *pointer) {
  return uint32_t(static_cast<uint8_t const *>(pointer) - dynamic_shared());
}
inline uint64_t leaves_first() { return 0; }

inline void copy_async(uint32_t target, void const *source, bool real, uint64_t) {
  emulated::Copy copy{target, {}};
  if (target % 16 || (real && reinterpret_cast<uintptr_t>(source) % 16)) {
    __builtin_trap();
  }
  if (real) {
    std::memcpy(copy.bytes, source, 16);
  }
  if (emulated_eager) {
    emulated::land(copy);
  } else {
    emulated::here().group.push_back(copy);
  }
}
inline void commit_copies() {
  emulated::here().groups.push_back(emulated::here().group);
  emulated::here().group.clear();
}
template <int kPending>
void await_copies() {
  while (int(emulated::here().groups.size()) > kPending) {
    for (emulated::Copy const &copy : emulated::here().groups.front()) {
      emulated::land(copy);
    }
    emulated::here().groups.pop_front();
  }
}
inline void meet(int barrier, int threads) {
  emulated::wait(emulated::blocks[emulated::here().rank].named[barrier], threads);
}

inline void load(uint32_t (&words)[4], uint32_t address, bool transposed) {
  int const lane = int(emulated::here().thread.x) % 32, g = lane / 4, t = lane % 4;
  if (address % 16) {
    __builtin_trap();
  }
  emulated::put(address);
  emulated::meet_warp();
  for (int matrix = 0; matrix < 4; ++matrix) {
    uint16_t halves[2];
    for (int i = 0; i < 2; ++i) {
      int const row = transposed ? 2 * t + i : g, column = transposed ? g : 2 * t + i;
      uint32_t const at = emulated::of_lane<uint32_t>(8 * matrix + row) + 2 * column;
      std::memcpy(&halves[i], emulated::shared(emulated::here().rank, at, 2), 2);
    }
    words[matrix] = uint32_t(halves[1]) << 16 | halves[0];
  }
  emulated::meet_warp();
}
inline void load_matrices(uint32_t (&words)[4], uint32_t address) { load(words, address, false); }
inline void load_transposed(uint32_t (&words)[4], uint32_t address) { load(words, address, true); }
inline uint32_t transpose(uint32_t word) {
  int const lane = int(emulated::here().thread.x) % 32, g = lane / 4, t = lane % 4;
  emulated::put(word);
  emulated::meet_warp();
  uint32_t result = 0;
  for (int i = 0; i < 2; ++i) { /* element (2t + i, g) */
    uint32_t const theirs = emulated::of_lane<uint32_t>((2 * t + i) * 4 + g / 2);
    result |= (theirs >> 16 * (g % 2) & 0xffff) << 16 * i;
  }
  emulated::meet_warp();
  return result;
}

inline float number(uint32_t bits, __nv_bfloat16) { return __uint_as_float(bits << 16); }
inline float number(uint32_t bits, __half) { return __half2float(__half(__half_raw{uint16_t(bits)})); }

template <class Element>
void multiply(float (&sums)[4], uint32_t const (&a)[4], uint32_t const (&b)[2], Element type) {
  struct Words {
    uint32_t a[4], b[2];
  } words{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
  int const lane = int(emulated::here().thread.x) % 32, g = lane / 4, t = lane % 4;
  emulated::put(words);
  emulated::meet_warp();
  for (int i = 0; i < 4; ++i) {
    int const row = g + i / 2 * 8, column = 2 * t + i % 2;
    float sum = 0;
    for (int k = 0; k < 16; ++k) {
      uint32_t const left = emulated::of_lane<Words>(row % 8 * 4 + k % 8 / 2).a[k / 8 * 2 + row / 8];
      uint32_t const right = emulated::of_lane<Words>(column * 4 + k % 8 / 2).b[k / 8];
      int const shift = 16 * (k % 2);
      sum += number(left >> shift & 0xffff, type) * number(right >> shift & 0xffff, type);
    }
    sums[i] += sum;
  }
  emulated::meet_warp();
}

inline uint32_t bits(float value, __nv_bfloat16) {
  __nv_bfloat16_raw const raw = __float2bfloat16_rn(value);
  return raw.x;
}
inline uint32_t bits(float value, __half) {
  __half_raw const raw = __float2half_rn(value);
  return raw.x;
}
template <class Element>
uint32_t pack_pair(float low, float high, Element type) {
  return bits(high, type) << 16 | bits(low, type);
}
inline float power_of_two(float x) { return std::exp2(x); }
inline uint32_t count_arrival(uint32_t *counter, uint32_t last) {
  uint32_t const before = *counter;
  *counter = before >= last ? 0 : before + 1;
  return before;
}
inline void fetch_to_l2(void const *address) { emulated::fetched.push_back(reinterpret_cast<uintptr_t>(address)); }
template <class Value>
Value load_shared_by_all(Value const *from) {
  return *from;
}
inline uint32_t rank_in_cluster() { return uint32_t(emulated::here().rank); }
inline void arrive_in_cluster() {
  emulated::here().cluster_generation = emulated::arrive(emulated::cluster, emulated::count);
}
inline void await_cluster() { emulated::await(emulated::cluster, emulated::here().cluster_generation); }
inline float4 load_of_rank(uint32_t address, uint32_t rank) {
  float4 value;
  std::memcpy(&value, emulated::shared(int(rank), address, 16), 16);
  return value;
}

}  // namespace gemmsmith
