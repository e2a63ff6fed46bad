/* The launch of a kernel whose blocks form clusters, early where it may be. */
#pragma once

#include <cuda_runtime.h>

#include "gemmsmith/dependent_launch.h"
#include "gemmsmith/status.h"

namespace gemmsmith {

/* Starts `function(params)`. With kDependentLaunch it may start before the kernel ahead has ended. */
template <bool kDependentLaunch, class Function, class Params>
gemmsmith_status launch_clusters(Function function, dim3 grid, dim3 block, int shared_bytes, dim3 cluster,
                                 void *stream, Params &params) {
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim.x = cluster.x;
  attributes[0].val.clusterDim.y = cluster.y;
  attributes[0].val.clusterDim.z = cluster.z;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = attributes;
  config.numAttrs = 1;
  if constexpr (kDependentLaunch) {
    start_early(config);
  }
  void *parameters[] = {&params};
  return status_of(cudaLaunchKernelExC(&config, reinterpret_cast<void const *>(function), parameters));
}

}  // namespace gemmsmith
