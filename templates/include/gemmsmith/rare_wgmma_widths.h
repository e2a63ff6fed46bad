/* Every width of dense wgmma, for kernels whose tile is none of the common ones; included before all
 * of CuTe. Without it such a tile silently becomes instructions 16 wide.
 *
 * CUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED on the command line does the same and declares the sparse
 * instructions as well: 28 CPU seconds a run of nvcc in place of 8. So it stands only where the
 * instructions are chosen, and the traits of the dense ones are added by hand.
 */
#pragma once

#include <cuda_runtime.h>

#define CUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED
#include "cute/arch/mma_sm90.hpp"
#undef CUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED

#include "cute/atom/mma_traits_sm90_gmma.hpp"
#include "cute/atom/mma_traits_sm90_gmma_sparse.hpp"
#include "cute/tensor.hpp"
#include "cute/atom/mma_traits_sm90_gmma_ext.hpp"
