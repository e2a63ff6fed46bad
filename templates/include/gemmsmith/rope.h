/* Rotary position embedding in place or into a KV cache, in one pass over memory.
 *
 * A token's angles are computed once, not for each head: in double, exact at any position, while the
 * first parts of its heads are on their way to the registers.
 */
#pragma once

#include "gemmsmith/dependent_launch.h"
#include "gemmsmith/rope_angles.h"
#include "gemmsmith/rope_parts.h"

namespace gemmsmith {
namespace rope {

constexpr int kWarp = 32;
constexpr int kMostThreads = 1024;
constexpr int kUsualThreads = 512; /* of a block among many */
constexpr int kManyTokens = 1024;  /* from here on blocks of several tokens fill the GPU */
constexpr int kMostTokens = 16;    /* of a block */
constexpr int kMostAngles = 1024;  /* of the tokens of a block */

/* Writes cosine and sine of a token's angles, each thread of the token some of them. */
__device__ inline void compute_angles(gemmsmith_rope const &call, int64_t position, float *cosines, float *sines) {
  for (int pair = threadIdx.x; pair < call.pairs; pair += blockDim.x) {
    float2 const angle = angle_of(position, call.frequencies, call.wide_frequencies, pair, call.factor);
    cosines[pair] = angle.x;
    sines[pair] = angle.y;
  }
}

/* A block's x dimension works on one token, a part of a head each time; its y dimension on tokens. */
template <class Kernel, bool kVector, bool kInterleaved>
__global__ void __launch_bounds__(kMostThreads) rope_kernel(gemmsmith_rope const call) {
  alignas(16) __shared__ float cosines[kMostAngles];
  alignas(16) __shared__ float sines[kMostAngles];
  __shared__ Place places[kMostTokens];

  if constexpr (Kernel::kDependentLaunch) {
    release_dependents();
    await_prerequisites();
  }
  unsigned const index = blockIdx.x * blockDim.y + threadIdx.y;
  unsigned const length = static_cast<unsigned>(call.length);
  bool const there = index < static_cast<unsigned>(call.batch) * length;
  Token const token{index / length, index % length};
  Parts const parts(call);
  int const count = there ? parts.count() : 0;
  int const table = threadIdx.y * static_cast<int>(call.pairs);
  Part<typename Kernel::Element, kVector, kInterleaved> part;
  if (static_cast<int>(threadIdx.x) < count) {
    part.read(call, parts, token, threadIdx.x);
  }
  if (there) {
    compute_angles(call, position_of(call, token), cosines + table, sines + table);
    if (parts.cached && threadIdx.x == 0) {
      places[threadIdx.y] = place_of(call, token);
    }
  }
  __syncthreads();
  for (int number = threadIdx.x; number < count; number += blockDim.x) {
    if (number >= static_cast<int>(blockDim.x)) {
      part.read(call, parts, token, number);
    }
    part.turn(cosines + table, sines + table);
    part.write(call, places[threadIdx.y]);
  }
}

/* Whether all accesses can be 16 bytes wide. */
template <class Kernel, bool kInterleaved>
bool can_vectorize(gemmsmith_rope const &call) {
  constexpr int64_t kSize = sizeof(typename Kernel::Element);
  auto const fits = [](void const *address, int64_t sequence, int64_t token, int64_t head) {
    return rows::aligned(address, sequence, kSize, 16) && rows::aligned(nullptr, token, kSize, 16) &&
           rows::aligned(nullptr, head, kSize, 16);
  };
  return call.head_dim % kChunk == 0 && call.pairs % (kInterleaved ? kChunk / 2 : kChunk) == 0 &&
         fits(call.q, call.q_batch, call.q_token, call.q_head) &&
         fits(call.k, call.k_batch, call.k_token, call.k_head) &&
         fits(call.v, call.v_batch, call.v_token, call.v_head) &&
         fits(call.k_cache, call.k_page, call.k_slot, call.k_cache_head) &&
         fits(call.v_cache, call.v_page, call.v_slot, call.v_cache_head);
}

template <class Kernel, bool kVector, bool kInterleaved>
cudaError_t start(gemmsmith_rope const &call, cudaStream_t stream) {
  int64_t const tokens = call.batch * call.length;
  bool const many = tokens >= kManyTokens;
  int const parts = Parts(call).count();
  int const most = many ? kUsualThreads : kMostThreads;
  int const rounds = (parts + most - 1) / most;
  int const threads = ((parts + rounds - 1) / rounds + kWarp - 1) / kWarp * kWarp;
  int together = 1; /* tokens of a block */
  while (many && 2 * together * threads <= kUsualThreads && 2 * together * call.pairs <= kMostAngles &&
         2 * together <= kMostTokens) {
    together *= 2;
  }
  dim3 const grid(static_cast<unsigned>((tokens + together - 1) / together));
  dim3 const block(static_cast<unsigned>(threads), static_cast<unsigned>(together));
  gemmsmith_rope copy = call;
  void *arguments[] = {&copy};
  void const *const function = reinterpret_cast<void const *>(&rope_kernel<Kernel, kVector, kInterleaved>);
#if CUDART_VERSION >= 11080
  if constexpr (Kernel::kDependentLaunch) {
    cudaLaunchAttribute attribute{};
    cudaLaunchConfig_t config{grid, block, 0, stream, &attribute, 0};
    start_early(config);
    return cudaLaunchKernelExC(&config, function, arguments);
  }
#endif
  return cudaLaunchKernel(function, grid, block, arguments, 0, stream);
}

constexpr gemmsmith_status kOutOfRange = 1;

template <class Kernel>
gemmsmith_status launch(gemmsmith_rope const *call, void *stream) {
  constexpr int64_t kMost = 1 << 20;
  bool const heads = call->heads > 0 && call->heads <= kMost && call->kv_heads > 0 && call->kv_heads <= kMost &&
                     call->head_dim <= 2 * kMostAngles && call->pairs > 0 && 2 * call->pairs <= call->head_dim;
  bool const tokens = call->batch >= 0 && call->length >= 0 && call->batch <= INT32_MAX &&
                      call->length <= INT32_MAX && call->batch * call->length <= INT32_MAX;
  if (!heads || !tokens) {
    return kOutOfRange;
  }
  if (call->batch * call->length == 0) {
    return 0;
  }
  auto const queue = static_cast<cudaStream_t>(stream);
  cudaError_t error;
  if (call->interleaved) {
    error = can_vectorize<Kernel, true>(*call) ? start<Kernel, true, true>(*call, queue)
                                               : start<Kernel, false, true>(*call, queue);
  } else {
    error = can_vectorize<Kernel, false>(*call) ? start<Kernel, true, false>(*call, queue)
                                                : start<Kernel, false, false>(*call, queue);
  }
  if (error != cudaSuccess) {
    cudaGetLastError(); /* not sticky: do not leave it to the next caller */
  }
  return -static_cast<gemmsmith_status>(error);
}

inline const char *explain(gemmsmith_status status) {
  if (status == kOutOfRange) {
    return "sizes out of range for a rotary kernel";
  }
  return cudaGetErrorString(static_cast<cudaError_t>(-status));
}

template <class Kernel>
constexpr gemmsmith_rope_kernel entry(const char *name) {
  return {name, kMostThreads, 0, Kernel::kDependentLaunch, launch<Kernel>, explain};
}

}  // namespace rope
}  // namespace gemmsmith
