/* Kernels that work on the rows of a matrix one by one: quantising, RMSNorm, gates.
 *
 * A row is cut into chunks of eight elements. A block, or a warp where that is enough, takes one row
 * and keeps it in registers, so that memory is read once; longer rows are read again in each pass.
 * All arithmetic is in f32, in an order that depends neither on the number of threads nor on the
 * path taken: sums of squares add the eight of a chunk in f32 and the chunks in f64.
 */
#pragma once

#include <cfloat>
#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "gemmsmith/abi.h"
#include "gemmsmith/dependent_launch.h"

namespace gemmsmith {
namespace rows {

constexpr int kChunk = 8;
constexpr int kWarp = 32;
constexpr int kMostThreads = 1024;
constexpr int kManyRows = 256;             /* from here on blocks, not threads of a row, fill the GPU */
constexpr int kUsualThreads = 128;         /* of a row among many */
constexpr float kSmallestMost = 0x1p-100f; /* below it 127 / most could overflow */

/* Most chunks that a thread holds: of the 64 registers that a block of 1024 threads leaves to each,
 * 32 hold values, and f32 inputs take as many again. */
template <class Kernel>
constexpr int kMostHeld = sizeof(typename Kernel::Element) == 4 ? 2 : 4;

/* Most threads of a block; with fewer, more registers are left to each. */
template <class Kernel, int kHeld>
constexpr int kBlock = !Kernel::kNorm || kHeld < kMostHeld<Kernel> ? kMostThreads
                       : sizeof(typename Kernel::Element) == 4    ? 512
                                                                  : 768;

/* Eight elements as they lie in memory. */
template <class T>
struct Raw {
  static constexpr int kWords = kChunk * sizeof(T) / 4;
  uint32_t words[kWords];
};

__device__ inline void unpack(uint32_t word, __half, float &low, float &high) {
  low = __half2float(__ushort_as_half(static_cast<unsigned short>(word & 0xffffu)));
  high = __half2float(__ushort_as_half(static_cast<unsigned short>(word >> 16)));
}

__device__ inline void unpack(uint32_t word, __nv_bfloat16, float &low, float &high) {
  low = __uint_as_float(word << 16);
  high = __uint_as_float(word & 0xffff0000u);
}

__device__ inline uint32_t pack(float low, float high, __half) {
  uint32_t const upper = __half_as_ushort(__float2half_rn(high));
  return upper << 16 | __half_as_ushort(__float2half_rn(low));
}

__device__ inline uint32_t pack(float low, float high, __nv_bfloat16) {
  __nv_bfloat16_raw const lower = __float2bfloat16_rn(low);
  __nv_bfloat16_raw const upper = __float2bfloat16_rn(high);
  return static_cast<uint32_t>(upper.x) << 16 | lower.x;
}

template <class T>
__device__ void to_floats(Raw<T> const &raw, float (&values)[kChunk]) {
#pragma unroll
  for (int word = 0; word < Raw<T>::kWords; ++word) {
    if constexpr (sizeof(T) == 4) {
      values[word] = __uint_as_float(raw.words[word]);
    } else {
      unpack(raw.words[word], T{}, values[2 * word], values[2 * word + 1]);
    }
  }
}

template <class T>
__device__ Raw<T> from_floats(float const (&values)[kChunk]) {
  Raw<T> raw;
#pragma unroll
  for (int word = 0; word < Raw<T>::kWords; ++word) {
    if constexpr (sizeof(T) == 4) {
      raw.words[word] = __float_as_uint(values[word]);
    } else {
      raw.words[word] = pack(values[2 * word], values[2 * word + 1], T{});
    }
  }
  return raw;
}

/* Reads the chunk at `from`, of which `valid` elements lie in the row (fewer than 1: none), and
 * zeros for the rest. kConstant: no other kernel writes there while this one runs. */
template <bool kVector, bool kConstant, class T>
__device__ Raw<T> load(T const *from, int64_t valid) {
  Raw<T> raw{};
  if constexpr (kVector) {
    if (valid > 0) {
#pragma unroll
      for (int part = 0; part < Raw<T>::kWords / 4; ++part) {
        uint4 const *const word = reinterpret_cast<uint4 const *>(from) + part;
        uint4 const read = kConstant ? __ldg(word) : *word;
        raw.words[4 * part] = read.x;
        raw.words[4 * part + 1] = read.y;
        raw.words[4 * part + 2] = read.z;
        raw.words[4 * part + 3] = read.w;
      }
    }
  } else {
#pragma unroll
    for (int index = 0; index < kChunk; ++index) {
      if (index < valid) {
        if constexpr (sizeof(T) == 4) {
          raw.words[index] = __float_as_uint(from[index]);
        } else {
          uint32_t const bits = reinterpret_cast<unsigned short const *>(from)[index];
          raw.words[index / 2] |= bits << (16 * (index % 2));
        }
      }
    }
  }
  return raw;
}

/* Writes the first `valid` elements of a chunk. */
template <bool kVector, class T>
__device__ void store(T *to, Raw<T> const &raw, int64_t valid) {
  if constexpr (kVector) {
    if (valid > 0) {
#pragma unroll
      for (int part = 0; part < Raw<T>::kWords / 4; ++part) {
        reinterpret_cast<uint4 *>(to)[part] = make_uint4(raw.words[4 * part], raw.words[4 * part + 1],
                                                         raw.words[4 * part + 2], raw.words[4 * part + 3]);
      }
    }
  } else {
#pragma unroll
    for (int index = 0; index < kChunk; ++index) {
      if (index < valid) {
        if constexpr (sizeof(T) == 4) {
          to[index] = __uint_as_float(raw.words[index]);
        } else {
          uint32_t const bits = raw.words[index / 2] >> (16 * (index % 2));
          reinterpret_cast<unsigned short *>(to)[index] = static_cast<unsigned short>(bits);
        }
      }
    }
  }
}

/* Combines the values of all threads of a row; every thread gets the result. Zero is neutral. A
 * block uses `scratch`, one value a warp, once. */
template <class Value, class Combine>
__device__ Value reduce(Value value, Value *scratch, Combine combine) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    value = combine(value, __shfl_xor_sync(0xffffffffu, value, distance));
  }
  if (blockDim.x == kWarp) {
    return value;
  }
  int const lane = threadIdx.x % kWarp;
  if (lane == 0) {
    scratch[threadIdx.x / kWarp] = value;
  }
  __syncthreads();
  value = lane < static_cast<int>(blockDim.x) / kWarp ? scratch[lane] : Value{};
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    value = combine(value, __shfl_xor_sync(0xffffffffu, value, distance));
  }
  return value;
}

__device__ inline float sum_of_squares(float const (&values)[kChunk]) {
  float sums[kChunk];
#pragma unroll
  for (int index = 0; index < kChunk; ++index) {
    sums[index] = __fmul_rn(values[index], values[index]);
  }
#pragma unroll
  for (int left = kChunk / 2; left > 0; left /= 2) {
#pragma unroll
    for (int index = 0; index < left; ++index) {
      sums[index] = __fadd_rn(sums[2 * index], sums[2 * index + 1]);
    }
  }
  return sums[0];
}

/* Largest magnitude as bits, which order like the numbers do, NaN above infinity. */
__device__ inline uint32_t most_of(float const (&values)[kChunk], uint32_t most) {
#pragma unroll
  for (int index = 0; index < kChunk; ++index) {
    uint32_t const magnitude = __float_as_uint(values[index]) & 0x7fffffffu;
    most = magnitude > most ? magnitude : most;
  }
  return most;
}

/* x / (1 + exp(-t)). The quick functions are off by some 2^-20, far below what 16 bits hold. */
template <bool kQuick>
__device__ float gated(float x, float t) {
  if constexpr (kQuick) {
    return __fdividef(x, 1.0f + __expf(-t));
  } else {
    return x / (1.0f + expf(-t));
  }
}

template <bool kQuick>
__device__ void activate(float (&values)[kChunk], int32_t activation) {
  if (activation == GEMMSMITH_GATE_SILU) {
#pragma unroll
    for (int index = 0; index < kChunk; ++index) {
      values[index] = gated<kQuick>(values[index], values[index]);
    }
  } else if (activation == GEMMSMITH_GATE_GELU_TANH) {
#pragma unroll
    for (int index = 0; index < kChunk; ++index) { /* 0.5 (1 + tanh(t / 2)) = 1 / (1 + exp(-t)) */
      float const x = values[index];
      values[index] = gated<kQuick>(x, 1.5957691216057308f * (x + 0.044715f * x * x * x));
    }
  } else {
#pragma unroll
    for (int index = 0; index < kChunk; ++index) {
      values[index] *= normcdff(values[index]);
    }
  }
}

/* One row as a thread sees it. Kernel says the element type and which of the steps there are. */
template <class Kernel, bool kVector>
struct Row {
  using T = typename Kernel::Element;
  static constexpr bool kConstant = !Kernel::kDependentLaunch; /* else the one ahead may still write */

  struct Inputs {
    Raw<T> first;  /* x, or the gate */
    Raw<T> second; /* the residual, or what the gate multiplies */
  };

  gemmsmith_rows const &call;
  T const *x;
  T const *residual;
  T *sum;
  int64_t index;

  __device__ Row(gemmsmith_rows const &of, int64_t row)
      : call(of),
        x(static_cast<T const *>(of.x) + row * of.x_stride),
        residual(static_cast<T const *>(of.residual)),
        sum(static_cast<T *>(of.sum)),
        index(row) {
    if constexpr (Kernel::kNorm) {
      if (residual != nullptr) {
        residual += row * of.residual_stride;
        sum += row * of.sum_stride;
      }
    }
  }

  __device__ Inputs read(int chunk) const {
    Inputs inputs{};
    int64_t const column = static_cast<int64_t>(chunk) * kChunk;
    int64_t const valid = call.columns - column;
    if constexpr (Kernel::kGate) {
      T const *const gate = x + (call.interleaved ? 2 * column : column);
      inputs.first = load<kVector, kConstant>(gate, valid);
      inputs.second = load<kVector, kConstant>(gate + (call.interleaved ? kChunk : call.columns), valid);
    } else {
      inputs.first = load<kVector, kConstant>(x + column, valid);
      if constexpr (Kernel::kNorm) {
        if (residual != nullptr) {
          inputs.second = load<kVector, kConstant>(residual + column, valid);
        }
      }
    }
    return inputs;
  }

  /* Whether each column is multiplied by a weight: in a norm, and where what is quantised has one. */
  __device__ bool weighs() const { return Kernel::kNorm || (Kernel::kQuantize && call.weight != nullptr); }

  __device__ Raw<T> read_weight(int chunk) const {
    int64_t const column = static_cast<int64_t>(chunk) * kChunk;
    return load<kVector, kConstant>(static_cast<T const *>(call.weight) + column, call.columns - column);
  }

  /* Gives what is normalised or quantised. The sum with the residual is rounded to T first, as it
   * is stored. */
  __device__ void evaluate(Inputs const &inputs, float (&values)[kChunk], int chunk, bool keep) const {
    to_floats(inputs.first, values);
    if constexpr (Kernel::kGate) {
      float factors[kChunk];
      to_floats(inputs.second, factors);
      activate<sizeof(T) == 2>(values, call.activation);
#pragma unroll
      for (int at = 0; at < kChunk; ++at) {
        values[at] *= factors[at];
      }
    } else if constexpr (Kernel::kNorm) {
      if (residual != nullptr) {
        float added[kChunk];
        to_floats(inputs.second, added);
#pragma unroll
        for (int at = 0; at < kChunk; ++at) {
          values[at] = __fadd_rn(values[at], added[at]);
        }
        Raw<T> const rounded = from_floats<T>(values);
        to_floats(rounded, values);
        if (keep) {
          int64_t const column = static_cast<int64_t>(chunk) * kChunk;
          store<kVector>(sum + column, rounded, call.columns - column);
        }
      }
    }
  }

  __device__ float factor_of(double squares) const {
    float const mean = __fdiv_rn(static_cast<float>(squares), static_cast<float>(call.columns));
    return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, call.eps)));
  }

  /* (value * factor) * weight; factor is 1 without a norm. */
  __device__ static void weigh(float (&values)[kChunk], float factor, Raw<T> const &weight) {
    float weights[kChunk];
    to_floats(weight, weights);
#pragma unroll
    for (int at = 0; at < kChunk; ++at) {
      values[at] = __fmul_rn(__fmul_rn(values[at], factor), weights[at]);
    }
  }

  /* Stores the row's scale and returns what its values are multiplied by: 0 where all of the row is
   * stored as 0, because it is zero or because its scale is NaN or infinite. */
  __device__ float inverse_scale(uint32_t bits) const {
    float const most = __uint_as_float(bits);
    float scale = 0.0f;
    float inverse = 0.0f;
    if (!(most <= FLT_MAX)) {
      scale = most;
    } else if (most >= kSmallestMost) {
      scale = __fdiv_rn(most, 127.0f);
      inverse = __fdiv_rn(127.0f, most);
    }
    if (threadIdx.x == 0) {
      call.scale[index] = scale;
    }
    return inverse;
  }

  __device__ void write(float const (&values)[kChunk], int chunk, float inverse) const {
    int64_t const column = static_cast<int64_t>(chunk) * kChunk;
    int64_t const valid = call.padded - column;
    if constexpr (Kernel::kQuantize) {
      int8_t *const to = static_cast<int8_t *>(call.out) + index * call.out_stride + column;
      uint32_t words[2] = {0, 0};
      if (inverse > 0.0f) {
#pragma unroll
        for (int word = 0; word < 2; ++word) {
          uint32_t bits[4];
#pragma unroll
          for (int at = 0; at < 4; ++at) { /* adding 1.5 * 2^23 rounds half to even into the low byte */
            bits[at] = __float_as_uint(fmaf(values[4 * word + at], inverse, 12582912.0f));
          }
          uint32_t const low = __byte_perm(bits[0], bits[1], 0x0040);
          uint32_t const high = __byte_perm(bits[2], bits[3], 0x0040);
          words[word] = __byte_perm(low, high, 0x5410);
        }
      }
      if constexpr (kVector) {
        if (valid > 0) {
          *reinterpret_cast<uint2 *>(to) = make_uint2(words[0], words[1]);
        }
      } else {
#pragma unroll
        for (int at = 0; at < kChunk; ++at) {
          if (at < valid) {
            to[at] = static_cast<int8_t>(words[at / 4] >> (8 * (at % 4)) & 0xffu);
          }
        }
      }
    } else {
      T *const to = static_cast<T *>(call.out) + index * call.out_stride + column;
      store<kVector>(to, from_floats<T>(values), valid);
    }
  }
};

/* kHeld chunks of a row stay in the registers of each thread; 0: the row is too long for that. */
template <class Kernel, int kHeld, bool kVector>
__global__ void __launch_bounds__(kBlock<Kernel, kHeld>) row_kernel(gemmsmith_rows const call) {
  using Mine = Row<Kernel, kVector>;
  __shared__ double sums[kMostThreads / kWarp];
  __shared__ uint32_t mosts[kMostThreads / kWarp];
  auto const add = [](double left, double right) { return left + right; };
  auto const larger = [](uint32_t left, uint32_t right) { return left > right ? left : right; };

  if constexpr (Kernel::kDependentLaunch) {
    release_dependents();
    await_prerequisites();
  }
  int64_t const index = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (index >= call.rows) { /* only where each warp has a row of its own */
    return;
  }
  Mine const row(call, index);
  int const chunks = static_cast<int>((call.padded + kChunk - 1) / kChunk);
  int const first = threadIdx.x;
  int const step = blockDim.x;
  double squares = 0.0;
  uint32_t most = 0;
  float factor = 1.0f;
  float inverse = 0.0f;

  if constexpr (kHeld > 0) {
    /* Read before the barrier, so that they do not add to the wait, where they fit. */
    constexpr bool kEarlyWeights =
        (Kernel::kNorm || Kernel::kQuantize) && kHeld < kMostHeld<Kernel> && sizeof(typename Kernel::Element) == 2;
    typename Mine::Inputs inputs[kHeld];
    Raw<typename Kernel::Element> weights[kHeld];
    float values[kHeld][kChunk];
#pragma unroll
    for (int at = 0; at < kHeld; ++at) {
      inputs[at] = row.read(first + at * step);
    }
    if constexpr (kEarlyWeights) {
      if (row.weighs()) {
#pragma unroll
        for (int at = 0; at < kHeld; ++at) {
          weights[at] = row.read_weight(first + at * step);
        }
      }
    }
#pragma unroll
    for (int at = 0; at < kHeld; ++at) {
      row.evaluate(inputs[at], values[at], first + at * step, true);
      if constexpr (Kernel::kNorm) {
        squares += sum_of_squares(values[at]);
      }
    }
    if constexpr (Kernel::kNorm) {
      factor = row.factor_of(reduce(squares, sums, add));
    }
    if (row.weighs()) {
#pragma unroll
      for (int at = 0; at < kHeld; ++at) {
        Mine::weigh(values[at], factor, kEarlyWeights ? weights[at] : row.read_weight(first + at * step));
      }
    }
    if constexpr (Kernel::kQuantize) {
#pragma unroll
      for (int at = 0; at < kHeld; ++at) {
        most = most_of(values[at], most);
      }
      inverse = row.inverse_scale(reduce(most, mosts, larger));
    }
#pragma unroll
    for (int at = 0; at < kHeld; ++at) {
      row.write(values[at], first + at * step, inverse);
    }
  } else {
    float values[kChunk];
    if constexpr (Kernel::kNorm) {
      for (int chunk = first; chunk < chunks; chunk += step) {
        row.evaluate(row.read(chunk), values, chunk, true);
        squares += sum_of_squares(values);
      }
      factor = row.factor_of(reduce(squares, sums, add));
    }
    auto const evaluate = [&](int chunk) {
      row.evaluate(row.read(chunk), values, chunk, false);
      if (row.weighs()) {
        Mine::weigh(values, factor, row.read_weight(chunk));
      }
    };
    if constexpr (Kernel::kQuantize) {
      for (int chunk = first; chunk < chunks; chunk += step) {
        evaluate(chunk);
        most = most_of(values, most);
      }
      inverse = row.inverse_scale(reduce(most, mosts, larger));
    }
    for (int chunk = first; chunk < chunks; chunk += step) {
      evaluate(chunk);
      row.write(values, chunk, inverse);
    }
  }
}

inline bool aligned(void const *address, int64_t stride, int64_t element, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(address) % bytes == 0 && stride * element % bytes == 0;
}

/* Whether all accesses can be 16 bytes wide (8 for int8). */
template <class Kernel>
bool can_vectorize(gemmsmith_rows const &call) {
  constexpr int64_t kSize = sizeof(typename Kernel::Element);
  constexpr int64_t kOut = Kernel::kQuantize ? 1 : kSize;
  return call.columns % kChunk == 0 && call.padded % kChunk == 0 && aligned(call.x, call.x_stride, kSize, 16) &&
         aligned(call.residual, call.residual_stride, kSize, 16) &&
         aligned(call.sum, call.sum_stride, kSize, 16) && aligned(call.weight, 0, kSize, 16) &&
         aligned(call.out, call.out_stride, kOut, Kernel::kQuantize ? 8 : 16);
}

template <class Kernel, int kHeld, bool kVector>
cudaError_t start(gemmsmith_rows const &call, int64_t chunks, cudaStream_t stream) {
  int64_t const wanted = (chunks + (kHeld ? kHeld : 1) - 1) / (kHeld ? kHeld : 1);
  int64_t const whole = (wanted + kWarp - 1) / kWarp * kWarp;
  constexpr int kMost = kBlock<Kernel, kHeld>;
  unsigned const threads = static_cast<unsigned>(whole < kMost ? whole : kMost);
  unsigned const together = threads == kWarp ? 4 : 1; /* rows of a block */
  dim3 const grid(static_cast<unsigned>((call.rows + together - 1) / together));
  gemmsmith_rows copy = call;
  void *arguments[] = {&copy};
  void const *const function = reinterpret_cast<void const *>(&row_kernel<Kernel, kHeld, kVector>);
#if CUDART_VERSION >= 11080
  if constexpr (Kernel::kDependentLaunch) {
    cudaLaunchAttribute attribute{};
    cudaLaunchConfig_t config{grid, dim3(threads, together), 0, stream, &attribute, 0};
    start_early(config);
    return cudaLaunchKernelExC(&config, function, arguments);
  }
#endif
  return cudaLaunchKernel(function, grid, dim3(threads, together), arguments, 0, stream);
}

constexpr gemmsmith_status kOutOfRange = 1;

template <class Kernel>
gemmsmith_status launch(gemmsmith_rows const *call, void *stream) {
  constexpr int64_t kMost = INT32_MAX;
  bool const sizes = call->rows >= 0 && call->rows <= kMost && call->columns > 0 &&
                     call->padded >= call->columns && call->padded <= kMost - kMostThreads * kChunk;
  bool const padding = Kernel::kQuantize || call->padded == call->columns;
  bool const blocks = !Kernel::kGate || !call->interleaved || call->columns % kChunk == 0;
  if (!sizes || !padding || !blocks) {
    return kOutOfRange;
  }
  if (call->rows == 0) {
    return 0;
  }
  auto const queue = static_cast<cudaStream_t>(stream);
  int64_t const chunks = (call->padded + kChunk - 1) / kChunk;
  int64_t const threads = call->rows < kManyRows ? kMostThreads : kUsualThreads;
  constexpr int kHeld = kMostHeld<Kernel>;
  bool const fits = chunks <= kHeld * kBlock<Kernel, kHeld>;
  cudaError_t error;
  if (!can_vectorize<Kernel>(*call)) {
    error = fits ? start<Kernel, kHeld, false>(*call, chunks, queue) : start<Kernel, 0, false>(*call, chunks, queue);
  } else if (chunks <= threads) {
    error = start<Kernel, 1, true>(*call, chunks, queue);
  } else if (kHeld > 2 && chunks <= 2 * threads) {
    error = start<Kernel, 2, true>(*call, chunks, queue);
  } else {
    error = fits ? start<Kernel, kHeld, true>(*call, chunks, queue) : start<Kernel, 0, true>(*call, chunks, queue);
  }
  if (error != cudaSuccess) {
    cudaGetLastError(); /* not sticky: do not leave it to the next caller */
  }
  return -static_cast<gemmsmith_status>(error);
}

inline const char *explain(gemmsmith_status status) {
  if (status == kOutOfRange) {
    return "sizes out of range for a row kernel";
  }
  return cudaGetErrorString(static_cast<cudaError_t>(-status));
}

template <class Kernel>
constexpr gemmsmith_row_kernel entry(const char *name) {
  return {name, kBlock<Kernel, kMostHeld<Kernel>>, 0, Kernel::kDependentLaunch, launch<Kernel>, explain};
}

}  // namespace rows
}  // namespace gemmsmith
