/* The angle that a pair of elements is turned by, and how one is turned: exact at any position. */
#pragma once

#include <cstdint>

#include <cuda_runtime.h>

namespace gemmsmith {
namespace rope {

/* Cosine and sine of position * frequency radians, which is reduced to a part of one turn in double, times
 * `factor`. */
__device__ inline float2 angle_of(int64_t position, void const *frequencies, bool wide, int pair, float factor) {
  double const frequency =
      wide ? static_cast<double const *>(frequencies)[pair] : static_cast<float const *>(frequencies)[pair];
  double const turns = static_cast<double>(position) * frequency * 0.15915494309189535; /* 1 / (2 pi) */
  float sine, cosine;
  sincospif(2.0f * static_cast<float>(turns - rint(turns)), &sine, &cosine);
  return make_float2(cosine * factor, sine * factor);
}

/* Turns a pair; each product and sum is rounded by itself, whatever the compiler would fuse. */
__device__ inline void turn(float &one, float &other, float cosine, float sine) {
  float const turned = __fadd_rn(__fmul_rn(one, cosine), -__fmul_rn(other, sine));
  other = __fadd_rn(__fmul_rn(other, cosine), __fmul_rn(one, sine));
  one = turned;
}

}  // namespace rope
}  // namespace gemmsmith
