/* Instructions of one warp, sm_80 and later, that kernels with a main loop of their own are made of: copies
 * that run in the background, fragments from shared memory, products of 16 bits; on sm_90 clusters too.
 * Shared memory is addressed by 32 bits, as these instructions take it.
 */
#pragma once

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace gemmsmith {

/* The dynamic shared memory of this block. */
__device__ __forceinline__ uint8_t *dynamic_shared() {
  extern __shared__ __align__(128) uint8_t gemmsmith_dynamic_shared[];
  return gemmsmith_dynamic_shared;
}

__device__ __forceinline__ uint32_t shared_address(void const *pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

/* How L2 should keep what is read once: it leaves first. */
__device__ __forceinline__ uint64_t leaves_first() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

/* Has L2 fetch the line of 128 bytes around an address. */
__device__ __forceinline__ void fetch_to_l2(void const *address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address) : "memory");
}

/* Starts a copy of 16 bytes; where `real` is false zeros are written and nothing is read. */
__device__ __forceinline__ void copy_async(uint32_t target, void const *source, bool real, uint64_t policy) {
  int const bytes = real ? 16 : 0;
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(target), "l"(source),
               "r"(bytes), "l"(policy)
               : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/* Waits until at most kPending of this thread's groups of copies are under way. */
template <int kPending>
__device__ __forceinline__ void await_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

/* Meets the `threads` threads of the block that name the barrier too. */
__device__ __forceinline__ void meet(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

/* Four 8x8 matrices of 16 bits, of which lane 8 i + j points to row j of matrix i. A lane gets of each the
 * elements (lane / 4, 2 (lane % 4)) and the next to the right. */
__device__ __forceinline__ void load_matrices(uint32_t (&words)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(address)
               : "memory");
}
/* The same of the transposed matrices. */
__device__ __forceinline__ void load_transposed(uint32_t (&words)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(address)
               : "memory");
}
/* Transposes an 8x8 matrix of 16 bits that lies in the warp's registers. */
__device__ __forceinline__ uint32_t transpose(uint32_t word) {
  uint32_t result;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(word));
  return result;
}

/* sums (16x8) += a (16x16) b (16x8). With g = lane / 4 and t = lane % 4 a lane holds of the sums
 * (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1); of a the pairs at (g, 2t), (g + 8, 2t), (g, 2t + 8),
 * (g + 8, 2t + 8); of b the pairs down from (2t, g) and (2t + 8, g). */
__device__ __forceinline__ void multiply(float (&sums)[4], uint32_t const (&a)[4], uint32_t const (&b)[2], __half) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
               "{%0, %1, %2, %3};"
               : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ __forceinline__ void multiply(float (&sums)[4], uint32_t const (&a)[4], uint32_t const (&b)[2],
                                         __nv_bfloat16) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
               "{%0, %1, %2, %3};"
               : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* Two numbers rounded to 16 bits, the first in the low half. */
__device__ __forceinline__ uint32_t pack_pair(float low, float high, __half) {
  uint32_t word;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}
__device__ __forceinline__ uint32_t pack_pair(float low, float high, __nv_bfloat16) {
  uint32_t word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}

/* 2^x to about 2^-22; 0 for -infinity. */
__device__ __forceinline__ float power_of_two(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

/* Counts up and returns the number before; after `last` follows 0. What the block wrote before (with a barrier
 * of the block between) is visible to those who count later. */
__device__ __forceinline__ uint32_t count_arrival(uint32_t *counter, uint32_t last) {
  uint32_t before;
  asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(last) : "memory");
  return before;
}

/* Reads past L1, which does not see what other multiprocessors write. */
__device__ __forceinline__ float4 load_shared_by_all(float4 const *from) { return __ldcg(from); }
__device__ __forceinline__ float2 load_shared_by_all(float2 const *from) { return __ldcg(from); }

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
/* Clusters begin with sm_90: kernels for others are made of single blocks. */
__device__ __forceinline__ uint32_t rank_in_cluster() { return 0; }
__device__ __forceinline__ void arrive_in_cluster() {}
__device__ __forceinline__ void await_cluster() {}
__device__ __forceinline__ float4 load_of_rank(uint32_t, uint32_t) { return float4{}; }
#else
__device__ __forceinline__ uint32_t rank_in_cluster() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
/* The two halves of a barrier of the cluster's threads, which stores to shared memory do not cross. */
__device__ __forceinline__ void arrive_in_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void await_cluster() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
/* Reads 16 bytes of another block's shared memory, at the address they have in this one's. */
__device__ __forceinline__ float4 load_of_rank(uint32_t address, uint32_t rank) {
  float4 value;
  asm volatile("{.reg .b32 there; mapa.shared::cluster.u32 there, %4, %5;\n"
               "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there];}"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "r"(address), "r"(rank)
               : "memory");
  return value;
}
#endif

}  // namespace gemmsmith
