/* Runs the kernels of a CUDA source that g++ compiles: each thread of a block is a coroutine, which
 * gives way at barriers and shuffles. Just enough for row kernels; blocks run one after another.
 * Kernels take one argument, of type EMULATED_CALL. */
#pragma once

#include <cuda_runtime.h>
#include <ucontext.h>

#include <cmath>
#include <cstring>
#include <vector>

#undef __shared__
#define __shared__ static
#undef __launch_bounds__
#define __launch_bounds__(...)
#define threadIdx (emulated::thread_index)
#define blockIdx (emulated::block_index)
#define blockDim (emulated::block_size)

namespace emulated {

struct Barrier {
  int arrived = 0;
  int generation = 0;
};

struct Fiber {
  ucontext_t context;
  std::vector<char> stack = std::vector<char>(64 << 10);
  uint3 index;
  bool done;
};

static uint3 thread_index, block_index;
static dim3 block_size;
static std::vector<Fiber *> fibers;
static int current, count;
static ucontext_t scheduler;
static Barrier block_barrier, warp_barriers[64];
static unsigned char slots[2048][8];
static void (*body)(EMULATED_CALL);
static EMULATED_CALL arguments;

inline void give_way() { swapcontext(&fibers[current]->context, &scheduler); }

inline void wait(Barrier &barrier, int members) {
  int const generation = barrier.generation;
  if (++barrier.arrived == members) {
    barrier.arrived = 0;
    ++barrier.generation;
  }
  while (barrier.generation == generation) {
    give_way();
  }
}

inline void enter() {
  body(arguments);
  fibers[current]->done = true;
  give_way();
}

inline void run_block() {
  for (int index = 0; index < count; ++index) {
    Fiber &fiber = *fibers[index];
    fiber.index = {index % block_size.x, index / block_size.x, 0};
    fiber.done = false;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.data();
    fiber.context.uc_stack.ss_size = fiber.stack.size();
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, enter, 0);
  }
  for (int left = count; left > 0;) {
    left = 0;
    for (current = 0; current < count; ++current) {
      if (!fibers[current]->done) {
        thread_index = fibers[current]->index;
        swapcontext(&scheduler, &fibers[current]->context);
        left += !fibers[current]->done;
      }
    }
  }
}

}  // namespace emulated

/* What the runtime is asked about launches that may start early, and what it was told. */
extern "C" {
__attribute__((visibility("default"))) int emulated_driver = 13000, emulated_capturing = 0;
__attribute__((visibility("default"))) int emulated_launches = 0, emulated_early = 0;
}

extern "C" cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **values, size_t,
                                        cudaStream_t) {
  using namespace emulated;
  body = reinterpret_cast<void (*)(EMULATED_CALL)>(const_cast<void *>(function));
  arguments = *static_cast<EMULATED_CALL *>(values[0]);
  block_size = block;
  ++emulated_launches;
  count = static_cast<int>(block.x * block.y);
  if (count > 1024 || block.x % 32) {
    return cudaErrorInvalidConfiguration;
  }
  while (static_cast<int>(fibers.size()) < count) {
    fibers.push_back(new Fiber);
  }
  for (unsigned index = 0; index < grid.x; ++index) {
    block_index = {index, 0, 0};
    run_block();
  }
  return cudaSuccess;
}
#pragma push_macro("blockDim")
#undef blockDim
extern "C" cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *function, void **values) {
  for (unsigned index = 0; index < config->numAttrs; ++index) {
    cudaLaunchAttribute const &attribute = config->attrs[index];
    emulated_early += attribute.id == cudaLaunchAttributeProgrammaticStreamSerialization &&
                      attribute.val.programmaticStreamSerializationAllowed == 1;
  }
  return cudaLaunchKernel(function, config->gridDim, config->blockDim, values, config->dynamicSmemBytes,
                          config->stream);
}
#pragma pop_macro("blockDim")

extern "C" cudaError_t cudaDriverGetVersion(int *version) {
  *version = emulated_driver;
  return cudaSuccess;
}
extern "C" cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus *status) {
  *status = emulated_capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
extern "C" cudaError_t cudaGetLastError() { return cudaSuccess; }
extern "C" const char *cudaGetErrorString(cudaError_t) { return "emulated error"; }

inline void __syncthreads() { emulated::wait(emulated::block_barrier, emulated::count); }

template <class Value>
Value __shfl_xor_sync(unsigned, Value value, int distance) {
  using namespace emulated;
  int const self = current;
  std::memcpy(slots[self], &value, sizeof value);
  wait(warp_barriers[self / 32], 32);
  std::memcpy(&value, slots[self ^ distance], sizeof value);
  wait(warp_barriers[self / 32], 32);
  return value;
}

template <class Value>
Value __ldg(Value const *from) {
  return *from;
}

inline float __uint_as_float(unsigned bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline unsigned __float_as_uint(float value) {
  unsigned bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
  unsigned long long const bytes = static_cast<unsigned long long>(high) << 32 | low;
  unsigned result = 0;
  for (int at = 0; at < 4; ++at) {
    result |= static_cast<unsigned>(bytes >> 8 * (selector >> 4 * at & 7) & 0xff) << 8 * at;
  }
  return result;
}

inline float __fmul_rn(float left, float right) { return left * right; }
inline float __fadd_rn(float left, float right) { return left + right; }
inline float __fdiv_rn(float left, float right) { return left / right; }
inline float __fsqrt_rn(float value) { return std::sqrt(value); }
inline float __fdividef(float left, float right) { return left / right; }
inline float __expf(float value) { return std::exp(value); }
inline float normcdff(float value) { return 0.5f * std::erfc(-0.70710678f * value); }
inline void sincospif(float turns, float *sine, float *cosine) {
  *sine = static_cast<float>(std::sin(M_PI * turns));
  *cosine = static_cast<float>(std::cos(M_PI * turns));
}
