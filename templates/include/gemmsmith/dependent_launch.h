/* Programmatic dependent launch: a grid may start before the one ahead of it in its stream has ended.
 *
 * A grid that is launched so calls release_dependents() and then await_prerequisites() in each of its
 * threads, before any of them reads or writes global memory, but for operands of which the caller
 * promises that nothing queued writes them (lean_gemm.h). Then
 *  - it reads what the grid ahead wrote, and overwrites what that one read, only after it has ended;
 *  - it ends after all grids ahead of it, since it waits for the one ahead and that one did likewise:
 *    what comes behind it, launched so or not, may take all of them as ended. A grid of another
 *    library that is launched so and waits nowhere would break this for those behind it;
 *  - nothing stands still: the grid behind starts when each block of this one runs or has ended, so
 *    that blocks which wait never take the place of blocks that others wait for.
 * Without the launch attribute both calls do nothing.
 */
#pragma once

#include <cuda_runtime.h>

namespace gemmsmith {

/* Lets the grid behind start once all blocks of this one have come here, while there is room. */
__device__ __forceinline__ void release_dependents() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Waits until the grid ahead has ended and all that it wrote is visible. */
__device__ __forceinline__ void await_prerequisites() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

#if CUDART_VERSION >= 11080 /* older runtimes, which sm_70 to sm_87 can do with, lack the attribute */

/* Whether launches on `stream` may start early. A stream that is captured into a graph takes the
 * attribute from CUDA 12.3 on, in runtime and driver: before, kernels of a graph follow each other. */
inline bool may_start_early(cudaStream_t stream) {
  static bool const capturable = [] {
    int driver = 0;
    return CUDART_VERSION >= 12030 && cudaDriverGetVersion(&driver) == cudaSuccess && driver >= 12030;
  }();
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  return capturable || (cudaStreamIsCapturing(stream, &status) == cudaSuccess && status == cudaStreamCaptureStatusNone);
}

/* Adds the attribute to those of `config`, whose array has room for one more. */
inline void start_early(cudaLaunchConfig_t &config) {
  if (may_start_early(config.stream)) {
    cudaLaunchAttribute &attribute = config.attrs[config.numAttrs++];
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
  }
}

#endif

}  // namespace gemmsmith
