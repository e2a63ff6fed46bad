/* Clusters of CUDA threads on a CPU, and the launches of CUDA's runtime: each thread of a cluster is a coroutine
 * that gives way where threads meet. Clusters run one after another, in an order of the caller's choice. Copies in
 * the background land as late as the kernel's waits allow, or at once. What the grid ahead writes is there for a
 * cluster once all its threads wait for that grid or have ended.
 */
#pragma once

#include <cuda_runtime.h>
#include <ucontext.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <numeric>
#include <random>
#include <vector>

#undef __launch_bounds__
#define __launch_bounds__(...)
#define threadIdx (emulated::here().thread)
#define blockIdx (emulated::here().block)
#define gridDim (emulated::grid_size)

namespace emulated {

struct Barrier {
  int arrived = 0, generation = 0;
};
struct Copy {
  uint32_t target;
  uint8_t bytes[16];
};
struct Fiber {
  ucontext_t context;
  std::vector<char> stack = std::vector<char>(256 << 10);
  uint3 thread, block;
  int rank, warp; /* block of the cluster; warp of the cluster */
  int cluster_generation;
  bool done;
  std::vector<Copy> group;
  std::deque<std::vector<Copy>> groups;
  alignas(16) unsigned char slot[32];
};
constexpr size_t kGuard = 4096; /* bytes behind a block's shared memory, which nobody writes */
struct Block {
  std::vector<uint8_t> shared; /* and the guard */
  Barrier named[16];
};

static std::vector<Fiber *> fibers;
static std::vector<Block> blocks;
struct Written { /* memory that the grid ahead writes; without `before` it is written once a launch */
  uint8_t *target;
  std::vector<uint8_t> before, after;
};

static std::vector<uintptr_t> fetched; /* addresses that L2 was told of */
static std::vector<Barrier> warps;
static std::vector<Written> written;
static bool once;
static Barrier cluster, ahead;
static int current, count, threads;
static dim3 grid_size;
static ucontext_t scheduler;
static void (*body)(void *, void *);
static void *function, *argument;

inline Fiber &here() { return *fibers[current]; }
inline void give_way() { swapcontext(&here().context, &scheduler); }
inline int arrive(Barrier &barrier, int members) {
  int const generation = barrier.generation;
  if (++barrier.arrived == members) {
    barrier.arrived = 0;
    ++barrier.generation;
  }
  return generation;
}
inline void await(Barrier &barrier, int generation) {
  while (barrier.generation == generation) {
    give_way();
  }
}
inline void wait(Barrier &barrier, int members) { await(barrier, arrive(barrier, members)); }
inline void meet_warp() { wait(warps[here().warp], 32); }
template <class Value>
Value of_lane(int lane) { /* what that lane of the warp has put into its slot */
  Value value;
  std::memcpy(&value, fibers[here().warp * 32 + lane]->slot, sizeof value);
  return value;
}
template <class Value>
void put(Value const &value) {
  static_assert(sizeof value <= sizeof(Fiber::slot), "a slot holds it");
  std::memcpy(here().slot, &value, sizeof value);
}
inline uint8_t *shared(int rank, uint32_t address, size_t bytes) {
  if (address + bytes + kGuard > blocks[rank].shared.size()) {
    __builtin_trap();
  }
  return blocks[rank].shared.data() + address;
}
inline void land(Copy const &copy) { std::memcpy(shared(here().rank, copy.target, 16), copy.bytes, 16); }

inline void await_grid_ahead() {
  int const generation = ahead.generation;
  if (++ahead.arrived >= count) { /* those that have ended count as well */
    ++ahead.generation;
    for (Written const &memory : written) {
      if (!memory.before.empty() || !once) {
        std::copy(memory.after.begin(), memory.after.end(), memory.target);
      }
    }
    once = true;
  }
  await(ahead, generation);
}

inline void enter() {
  body(function, argument);
  here().done = true;
  give_way();
}

}  // namespace emulated

extern "C" {
__attribute__((visibility("default"))) int emulated_at_once = 4, emulated_seed = 0, emulated_eager = 0;
__attribute__((visibility("default"))) int emulated_early = 0;
/* Of the addresses that L2 was told of since the last such call: how many, and the first of them up to `room`. */
__attribute__((visibility("default"))) size_t emulated_fetched(uintptr_t *addresses, size_t room) {
  size_t const count = emulated::fetched.size();
  std::copy_n(emulated::fetched.begin(), std::min(count, room), addresses);
  emulated::fetched.clear();
  return count;
}
/* The next launches follow a grid that turns `before`, or whatever is there, into what `target` holds now. */
__attribute__((visibility("default"))) void emulated_ahead(uint8_t *target, uint8_t const *before, size_t bytes) {
  if (target == nullptr) {
    emulated::written.clear();
    return;
  }
  emulated::written.push_back({target, {before, before + (before == nullptr ? 0 : bytes)}, {target, target + bytes}});
}
}

namespace emulated {

inline void run_cluster(std::vector<uint3> const &places, size_t shared_bytes) {
  count = threads * int(places.size());
  while (int(fibers.size()) < count) {
    fibers.push_back(new Fiber);
  }
  blocks.assign(places.size(), Block{});
  for (Block &block : blocks) {
    block.shared.assign(shared_bytes + kGuard, 0xff); /* NaN of every type */
  }
  warps.assign(count / 32, Barrier{});
  cluster = ahead = Barrier{};
  for (Written const &memory : written) {
    std::copy(memory.before.begin(), memory.before.end(), memory.target);
  }
  for (int index = 0; index < count; ++index) {
    Fiber &fiber = *fibers[index];
    fiber.rank = index / threads;
    fiber.warp = index / 32;
    fiber.thread = {unsigned(index % threads), 0, 0};
    fiber.block = places[fiber.rank];
    fiber.done = false;
    fiber.group.clear();
    fiber.groups.clear();
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.data();
    fiber.context.uc_stack.ss_size = fiber.stack.size();
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, enter, 0);
  }
  for (int left = count; left > 0;) {
    left = 0;
    for (current = 0; current < count; ++current) {
      if (!here().done) {
        swapcontext(&scheduler, &here().context);
        left += !here().done;
      }
    }
  }
  for (Block const &block : blocks) {
    if (std::any_of(block.shared.end() - kGuard, block.shared.end(), [](uint8_t byte) { return byte != 0xff; })) {
      __builtin_trap();
    }
  }
}

template <class Params>
void call(void *kernel, void *params) {
  reinterpret_cast<void (*)(Params)>(kernel)(*static_cast<Params *>(params));
}

}  // namespace emulated

#pragma push_macro("gridDim")
#undef gridDim
extern "C" cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *kernel, void **values) {
  using namespace emulated;
  unsigned size = 1;
  for (unsigned index = 0; index < config->numAttrs; ++index) {
    cudaLaunchAttribute const &attribute = config->attrs[index];
    if (attribute.id == cudaLaunchAttributeClusterDimension) {
      size = attribute.val.clusterDim.x;
    }
    emulated_early += attribute.id == cudaLaunchAttributeProgrammaticStreamSerialization;
  }
  once = false;
  grid_size = config->gridDim;
  threads = int(config->blockDim.x);
  if (grid_size.x % size || threads % 32 || config->dynamicSmemBytes > 232448) {
    return cudaErrorInvalidConfiguration;
  }
  function = const_cast<void *>(kernel);
  argument = values[0];
  std::vector<unsigned> order(grid_size.x / size * grid_size.y * grid_size.z);
  std::iota(order.begin(), order.end(), 0u);
  if (emulated_seed) {
    std::shuffle(order.begin(), order.end(), std::mt19937(emulated_seed));
  }
  for (unsigned index : order) {
    unsigned const x = index % (grid_size.x / size) * size, rest = index / (grid_size.x / size);
    std::vector<uint3> places;
    for (unsigned rank = 0; rank < size; ++rank) {
      places.push_back({x + rank, rest % grid_size.y, rest / grid_size.y});
    }
    run_cluster(places, config->dynamicSmemBytes);
  }
  return cudaSuccess;
}
extern "C" cudaError_t cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **values, size_t bytes,
                                        cudaStream_t stream) {
  cudaLaunchConfig_t config{grid, block, bytes, stream, nullptr, 0};
  return cudaLaunchKernelExC(&config, kernel, values);
}
#pragma pop_macro("gridDim")

extern "C" cudaError_t cudaFuncSetAttribute(const void *, cudaFuncAttribute, int) { return cudaSuccess; }
extern "C" cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *, int, size_t) {
  *blocks = emulated_at_once;
  return cudaSuccess;
}
extern "C" cudaError_t cudaOccupancyMaxActiveClusters(int *clusters, const void *, const cudaLaunchConfig_t *) {
  *clusters = emulated_at_once;
  return cudaSuccess;
}
extern "C" cudaError_t cudaDriverGetVersion(int *version) {
  *version = 13000;
  return cudaSuccess;
}
extern "C" cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus *status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
extern "C" cudaError_t cudaGetLastError() { return cudaSuccess; }
extern "C" const char *cudaGetErrorString(cudaError_t) { return "emulated error"; }
