/* Instructions of Hopper that lean kernels use and CUTLASS does not offer alone: wgmma's order, barriers
 * of a cluster that memory respects, reads of another block's shared memory.
 */
#pragma once

#include <cstdint>

namespace gemmsmith {

/* Order between registers that wgmma writes and other code that touches them. */
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
/* Keeps the compiler from moving uses of a sum across the above. */
__device__ __forceinline__ void pin(float &value) { asm volatile("" : "+f"(value)::"memory"); }
__device__ __forceinline__ void pin(int32_t &value) { asm volatile("" : "+r"(value)::"memory"); }

/* What wgmma must know of rows of 128 bytes that TMA wrote in its 128-byte swizzle. */
__device__ __forceinline__ uint64_t matrix_descriptor(uint32_t shared_address) {
  constexpr uint64_t kSwizzle128 = uint64_t(1) << 62;
  constexpr uint64_t kEightRows = uint64_t(1024 >> 4) << 32;
  constexpr uint64_t kIgnored = uint64_t(1) << 16;
  return kSwizzle128 | kEightRows | kIgnored | ((shared_address & 0x3FFFF) >> 4);
}

/* Barriers that stores to shared memory do not cross: CuTe's do not tell the compiler of memory. */
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}
template <int kThreads>
__device__ __forceinline__ void sync_consumers() {
  asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
}

template <class Accumulator>
struct alignas(16) Quad {
  Accumulator values[4];
};

template <class Accumulator>
__device__ __forceinline__ Quad<Accumulator> load_of_cluster(uint32_t address) {
  Quad<Accumulator> quad;
  auto *bits = reinterpret_cast<uint32_t *>(quad.values);
  asm volatile("ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(bits[0]), "=r"(bits[1]), "=r"(bits[2]), "=r"(bits[3])
               : "r"(address)
               : "memory");
  return quad;
}

}  // namespace gemmsmith
