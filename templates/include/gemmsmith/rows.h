/* Kernels that work on the rows of a matrix one by one: quantising, RMSNorm, gates.
 *
 * A row is cut into chunks of eight elements. A block, or a warp where that is enough, takes one row
 * and keeps it in registers, so that memory is read once; longer rows are read again in each pass.
 */
#pragma once

#include "gemmsmith/dependent_launch.h"
#include "gemmsmith/row_view.h"

namespace gemmsmith {
namespace rows {

constexpr int kMostThreads = 1024;
constexpr int kManyRows = 256;     /* from here on blocks, not threads of a row, fill the GPU */
constexpr int kUsualThreads = 128; /* of a row among many */

/* Most chunks that a thread holds: of the 64 registers that a block of 1024 threads leaves to each,
 * 32 hold values, and f32 inputs take as many again. */
template <class Kernel>
constexpr int kMostHeld = sizeof(typename Kernel::Element) == 4 ? 2 : 4;

/* Most threads of a block; with fewer, more registers are left to each. */
template <class Kernel, int kHeld>
constexpr int kBlock = !Kernel::kNorm || kHeld < kMostHeld<Kernel> ? kMostThreads
                       : sizeof(typename Kernel::Element) == 4    ? 512
                                                                  : 768;

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
