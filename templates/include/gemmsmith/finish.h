/* What epilogues compute from a sum, the same on every architecture:
 *
 *   v = activation(alpha * a_scale * b_scale * sum + bias), for int8 outputs times out_scale
 *
 * in f32. Leaves that a kernel lacks do not reach the function.
 */
#pragma once

#include <cstdint>

#include "cutlass/array.h"
#include "cutlass/cutlass.h"

namespace gemmsmith {

/* The numbers are those of gemmsmith_gemm.activation. kAny reads that field. */
enum class Activation : int32_t { kAny = -1, kNone = 0, kRelu = 1, kGelu = 2, kGeluTanh = 3, kSilu = 4 };

struct FinishArguments {
  float alpha = 1.0f;
  float out_scale = 1.0f;
  Activation activation = Activation::kNone;
};

/* 1 / (1 + exp(-x)); the division is the fast one, which is 0 where exp(-x) is inf. */
CUTLASS_HOST_DEVICE float sigmoid(float x) {
#if defined(__CUDA_ARCH__)
  return __fdividef(1.0f, 1.0f + __expf(-x));
#else
  return 1.0f / (1.0f + expf(-x));
#endif
}

/* x times the normal distribution's integral up to x. Abramowitz and Stegun 7.1.26 gives erfc as a
 * polynomial times exp(-z^2), off by 1.5e-7 at most, in fewer instructions than erff. Where the
 * integral is small (x = -6) it is off by 0.4 %, where 1 + erf in f32 has no digit left. */
CUTLASS_HOST_DEVICE float gelu(float x) {
  float const z = fabsf(x) * 0.70710678f;
#if defined(__CUDA_ARCH__)
  float const t = __fdividef(1.0f, 1.0f + 0.3275911f * z);
  float const decay = __expf(-z * z);
#else
  float const t = 1.0f / (1.0f + 0.3275911f * z);
  float const decay = expf(-z * z);
#endif
  float const tail =
      0.5f * decay * t *
      (0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
  return x * (x < 0.0f ? tail : 1.0f - tail);
}

CUTLASS_HOST_DEVICE float activate(Activation kind, float x) {
  switch (kind) {
    case Activation::kRelu:
      return x < 0.0f ? 0.0f : x; /* NaN stays */
    case Activation::kGelu:
      return gelu(x);
    case Activation::kGeluTanh: /* tanh(u) = 2 sigmoid(2 u) - 1 */
      return x * sigmoid(1.5957691f * (x + 0.044715f * x * x * x));
    case Activation::kSilu:
      return x * sigmoid(x);
    default:
      return x;
  }
}

/* `Fragment` is an array of floats. */
template <Activation kActivation, bool kScaled, bool kBias, bool kOutScale, class Fragment>
struct Finish {
  using Arguments = FinishArguments;

  CUTLASS_HOST_DEVICE Fragment operator()(Fragment const &sum, Arguments const &args) const {
    return finish(args, sum, sum, sum, sum);
  }
  CUTLASS_HOST_DEVICE Fragment operator()(Fragment const &sum, Fragment const &bias, Arguments const &args) const {
    return finish(args, sum, sum, sum, bias);
  }
  CUTLASS_HOST_DEVICE Fragment operator()(Fragment const &sum, Fragment const &a_scale, Fragment const &b_scale,
                                          Arguments const &args) const {
    return finish(args, sum, a_scale, b_scale, sum);
  }
  CUTLASS_HOST_DEVICE Fragment operator()(Fragment const &sum, Fragment const &a_scale, Fragment const &b_scale,
                                          Fragment const &bias, Arguments const &args) const {
    return finish(args, sum, a_scale, b_scale, bias);
  }

 private:
  CUTLASS_HOST_DEVICE Fragment finish(Arguments const &args, Fragment const &sum, Fragment const &a_scale,
                                      Fragment const &b_scale, Fragment const &bias) const {
    Fragment result;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Fragment::kElements; ++i) {
      float value = kScaled ? sum[i] * (args.alpha * a_scale[i] * b_scale[i]) : args.alpha * sum[i];
      result[i] = kBias ? value + bias[i] : value;
    }
    if constexpr (kActivation == Activation::kAny) {
      apply(result, args.activation);
    } else if constexpr (kActivation != Activation::kNone) {
      apply(result, kActivation);
    }
    if constexpr (kOutScale) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < Fragment::kElements; ++i) {
        result[i] *= args.out_scale;
      }
    }
    return result;
  }

  /* One branch a fragment, not one an element. */
  CUTLASS_HOST_DEVICE static void apply(Fragment &values, Activation kind) {
    switch (kind) {
      case Activation::kRelu:
        return apply_one<Activation::kRelu>(values);
      case Activation::kGelu:
        return apply_one<Activation::kGelu>(values);
      case Activation::kGeluTanh:
        return apply_one<Activation::kGeluTanh>(values);
      case Activation::kSilu:
        return apply_one<Activation::kSilu>(values);
      default:
        return;
    }
  }

  template <Activation kKind>
  CUTLASS_HOST_DEVICE static void apply_one(Fragment &values) {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Fragment::kElements; ++i) {
      values[i] = activate(kKind, values[i]);
    }
  }
};

}  // namespace gemmsmith
