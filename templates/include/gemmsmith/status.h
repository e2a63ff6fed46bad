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

}  // namespace gemmsmith
