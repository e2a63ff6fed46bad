/* Eight elements of a row: as they lie in memory, as floats, and how they are read and written. */
#pragma once

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

namespace gemmsmith {
namespace rows {

constexpr int kChunk = 8;

/* Eight elements as they lie in memory. */
template <class T>
struct Raw {
  static constexpr int kWords = kChunk * sizeof(T) / 4;
  uint32_t words[kWords];
};

__device__ inline void unpack(uint32_t word, __half, float &low, float &high) {
  low = __half2float(__ushort_as_half(static_cast<unsigned short>(word & 0xffffu)));
  high = __half2float(__ushort_as_half(static_cast<unsigned short>(word >> 16)));
}

__device__ inline void unpack(uint32_t word, __nv_bfloat16, float &low, float &high) {
  low = __uint_as_float(word << 16);
  high = __uint_as_float(word & 0xffff0000u);
}

__device__ inline uint32_t pack(float low, float high, __half) {
  uint32_t const upper = __half_as_ushort(__float2half_rn(high));
  return upper << 16 | __half_as_ushort(__float2half_rn(low));
}

__device__ inline uint32_t pack(float low, float high, __nv_bfloat16) {
  __nv_bfloat16_raw const lower = __float2bfloat16_rn(low);
  __nv_bfloat16_raw const upper = __float2bfloat16_rn(high);
  return static_cast<uint32_t>(upper.x) << 16 | lower.x;
}

template <class T>
__device__ void to_floats(Raw<T> const &raw, float (&values)[kChunk]) {
#pragma unroll
  for (int word = 0; word < Raw<T>::kWords; ++word) {
    if constexpr (sizeof(T) == 4) {
      values[word] = __uint_as_float(raw.words[word]);
    } else {
      unpack(raw.words[word], T{}, values[2 * word], values[2 * word + 1]);
    }
  }
}

template <class T>
__device__ Raw<T> from_floats(float const (&values)[kChunk]) {
  Raw<T> raw;
#pragma unroll
  for (int word = 0; word < Raw<T>::kWords; ++word) {
    if constexpr (sizeof(T) == 4) {
      raw.words[word] = __float_as_uint(values[word]);
    } else {
      raw.words[word] = pack(values[2 * word], values[2 * word + 1], T{});
    }
  }
  return raw;
}

/* Reads the chunk at `from`, of which `valid` elements lie in the row (fewer than 1: none), and
 * zeros for the rest. kConstant: no other kernel writes there while this one runs. */
template <bool kVector, bool kConstant, class T>
__device__ Raw<T> load(T const *from, int64_t valid) {
  Raw<T> raw{};
  if constexpr (kVector) {
    if (valid > 0) {
#pragma unroll
      for (int part = 0; part < Raw<T>::kWords / 4; ++part) {
        uint4 const *const word = reinterpret_cast<uint4 const *>(from) + part;
        uint4 const read = kConstant ? __ldg(word) : *word;
        raw.words[4 * part] = read.x;
        raw.words[4 * part + 1] = read.y;
        raw.words[4 * part + 2] = read.z;
        raw.words[4 * part + 3] = read.w;
      }
    }
  } else {
#pragma unroll
    for (int index = 0; index < kChunk; ++index) {
      if (index < valid) {
        if constexpr (sizeof(T) == 4) {
          raw.words[index] = __float_as_uint(from[index]);
        } else {
          uint32_t const bits = reinterpret_cast<unsigned short const *>(from)[index];
          raw.words[index / 2] |= bits << (16 * (index % 2));
        }
      }
    }
  }
  return raw;
}

/* Writes the first `valid` elements of a chunk. */
template <bool kVector, class T>
__device__ void store(T *to, Raw<T> const &raw, int64_t valid) {
  if constexpr (kVector) {
    if (valid > 0) {
#pragma unroll
      for (int part = 0; part < Raw<T>::kWords / 4; ++part) {
        reinterpret_cast<uint4 *>(to)[part] = make_uint4(raw.words[4 * part], raw.words[4 * part + 1],
                                                         raw.words[4 * part + 2], raw.words[4 * part + 3]);
      }
    }
  } else {
#pragma unroll
    for (int index = 0; index < kChunk; ++index) {
      if (index < valid) {
        if constexpr (sizeof(T) == 4) {
          to[index] = __uint_as_float(raw.words[index]);
        } else {
          uint32_t const bits = raw.words[index / 2] >> (16 * (index % 2));
          reinterpret_cast<unsigned short *>(to)[index] = static_cast<unsigned short>(bits);
        }
      }
    }
  }
}

inline bool aligned(void const *address, int64_t stride, int64_t element, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(address) % bytes == 0 && stride * element % bytes == 0;
}

}  // namespace rows
}  // namespace gemmsmith
