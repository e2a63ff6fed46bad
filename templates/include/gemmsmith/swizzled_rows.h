/* Rows of 16 byte chunks in shared memory, without gaps, whose chunks swap places so that any eight rows of a
 * column lie in different banks: ldmatrix reads eight at once.
 *
 * A gap behind each row would do so too, but then every second row begins in the middle of 32 bytes, and what
 * cp.async puts across two of these is fetched from L2 twice.
 */
#pragma once

#include <cstdint>

namespace gemmsmith {

template <int kChunks> /* of a row, an even number */
struct SwizzledRows {
  static constexpr int kPitch = 16 * kChunks;
  static constexpr int kGroup = (kChunks & -kChunks) < 8 ? (kChunks & -kChunks) : 8; /* chunks that swap places */
  __host__ __device__ static constexpr int swizzle(int row) { return row * kGroup / 8 % kGroup; }

  /* Where a chunk lies; the buffer begins at a multiple of 128 bytes. */
  __device__ static uint32_t address_of(uint32_t buffer, int row, int chunk) {
    return ((buffer + 16 * chunk) ^ (16 * swizzle(row))) + row * kPitch;
  }
  /* Where the chunk 2 `step` further on in a row lies, from where its first or second chunk does. */
  __device__ static uint32_t step_on(uint32_t address, int step) {
    int const within = 32 * step % (16 * kGroup);
    return (address ^ within) + (32 * step - within);
  }

  static constexpr bool banks_differ() {
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      int found = 0; /* of eight times 16 bytes */
      for (int row = 0; row < 8; ++row) {
        found |= 1 << (row * kChunks + (chunk ^ swizzle(row))) % 8;
      }
      if (found != 0xff) {
        return false;
      }
    }
    return true;
  }
};

}  // namespace gemmsmith
