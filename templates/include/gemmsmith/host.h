/* What the host code of each GEMM template does alike, whatever device code it starts. */
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <initializer_list>

#include "gemmsmith/abi.h"
#include "gemmsmith/status.h"

namespace gemmsmith {

/* Extents are at least 1, and kernels count them in 32 bits. */
inline gemmsmith_status check_sizes(gemmsmith_gemm const &call) {
  for (int64_t size : {call.m, call.n, call.k, call.batch}) {
    if (size < 1 || size > INT32_MAX) {
      return status_of(cutlass::Status::kErrorInvalidProblem);
    }
  }
  return 0;
}

/* Lets `function`, the device code of `Kernel`, use `shared_bytes` of dynamic shared memory on the
 * current device, once a device. Kernels may share a function type, so `Kernel` tells them apart. */
template <class Kernel, class Function>
gemmsmith_status allow_shared_memory(Function function, int shared_bytes, int device) {
  constexpr int kDevices = 64;
  static bool allowed[kDevices] = {}; /* a race repeats the call, which is harmless */
  if (shared_bytes < (48 << 10) || (device >= 0 && device < kDevices && allowed[device])) {
    return 0;
  }
  cudaError_t error =
      cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (error != cudaSuccess) {
    cudaGetLastError(); /* not sticky: do not leave it to the next caller */
    return status_of(error);
  }
  if (device >= 0 && device < kDevices) {
    allowed[device] = true;
  }
  return 0;
}

/* How many blocks of `function`, the device code of `Kernel`, a multiprocessor of the current device
 * holds at once. */
template <class Kernel, class Function>
gemmsmith_status count_blocks_per_sm(Function function, int threads, int shared_bytes, int32_t *blocks) {
  int device = 0;
  cudaError_t const error = cudaGetDevice(&device);
  if (error != cudaSuccess) {
    return status_of(error);
  }
  gemmsmith_status const status = allow_shared_memory<Kernel>(function, shared_bytes, device);
  if (status != 0) {
    return status;
  }
  return status_of(cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, threads, shared_bytes));
}

}  // namespace gemmsmith
