/* Outcomes of a kernel's functions in one number: see gemmsmith_status in abi.h. */
#pragma once

#include <cuda_runtime.h>

#include "cutlass/cutlass.h"
#include "gemmsmith/abi.h"

namespace gemmsmith {

inline gemmsmith_status status_of(cutlass::Status status) { return static_cast<int32_t>(status); }
inline gemmsmith_status status_of(cudaError_t error) { return -static_cast<int32_t>(error); }

inline const char *explain(gemmsmith_status status) {
  if (status < 0) {
    return cudaGetErrorString(static_cast<cudaError_t>(-status));
  }
  return cutlass::cutlassGetStatusString(static_cast<cutlass::Status>(status));
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

}  // namespace gemmsmith
