/* The C interface of a kernel library: all that a launcher needs, no C++, no torch, no Python.
 *
 * A library exports two functions, gemmsmith_abi_version and gemmsmith_kernels; everything else is
 * reached through the table that the second returns. Sizes, strides and pointers are in the caller's
 * frame: A is (m, k), B is (k, n), C and D are (m, n), bias is (n).
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define GEMMSMITH_ABI_VERSION 3
#define GEMMSMITH_EXPORT __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

/* One call. Strides count elements. A null bias adds nothing; beta 0 or a null c reads no c.
 *
 *   v = alpha * a_scale[m] * b_scale[n] * (sum + a_zero[m] * b_sum[n]) + bias[n]
 *   d = out_scale * (activation(v) + beta * c)
 *
 * with what the kernel has of it; out_scale goes with int8 outputs. b_sum holds the negative sums of
 * B's columns. Null scales are ones, a null a_zero or b_sum is zero. */
typedef struct gemmsmith_gemm {
  int64_t m, n, k, batch;
  const void *a, *b, *c, *bias;
  void *d;
  const float *a_scale, *b_scale; /* (m), (n) */
  const int32_t *a_zero, *b_sum;  /* (m), (n) */
  int64_t lda, ldb, ldc, ldd;             /* distance of neighbouring rows (row-major) or columns */
  int64_t a_batch, b_batch, c_batch, d_batch; /* distance of neighbouring matrices of the batch */
  float alpha, beta, out_scale;
  int32_t activation; /* of kernels that leave it to the call: 0 none, 1 relu, 2 gelu, 3 gelu_tanh, 4 silu */
  int32_t raster;   /* 0: the kernel's own choice, 1: tiles along m first, 2: along n first */
  int32_t swizzle;  /* largest tile group of the raster, in tiles; 0: the kernel's own choice */
  int32_t splits;   /* parts of k per tile; 0: the kernel's own choice (stream_k kernels only) */
  int32_t device;   /* CUDA ordinal */
  int32_t sm_count; /* multiprocessors of that device */
} gemmsmith_gemm;

/* Outcomes of a kernel's functions: 0 is success, positive numbers are cutlass::Status,
 * negative ones are -cudaError_t. gemmsmith_kernel.explain turns one into words. */
typedef int32_t gemmsmith_status;

/* One kernel: facts known at compile time, and what it can be asked to do. */
typedef struct gemmsmith_kernel {
  const char *name;     /* KernelSpec.name */
  int32_t threads;      /* threads of a block */
  int32_t shared_bytes; /* dynamic shared memory of a block */
  int32_t stages;       /* buffers of the main loop */
  int32_t dependent_launch; /* 1: launched so that it may start before the kernel ahead has ended */
  gemmsmith_status (*can_run)(const gemmsmith_gemm *);
  gemmsmith_status (*workspace_bytes)(const gemmsmith_gemm *, uint64_t *bytes);
  /* Queues the kernel on `stream` (a cudaStream_t); never synchronises, never allocates. */
  gemmsmith_status (*launch)(const gemmsmith_gemm *, void *workspace, void *stream);
  /* Blocks of this kernel that one multiprocessor of the current device holds, by the driver. */
  gemmsmith_status (*blocks_per_sm)(int32_t *blocks);
  const char *(*explain)(gemmsmith_status);
} gemmsmith_kernel;

GEMMSMITH_EXPORT int32_t gemmsmith_abi_version(void);
GEMMSMITH_EXPORT const gemmsmith_kernel *gemmsmith_kernels(int32_t *count);

/* Row kernels: a library of them exports gemmsmith_row_kernels in place of gemmsmith_kernels. */

/* What a gate multiplies with: gemmsmith_rows.activation. */
#define GEMMSMITH_GATE_SILU 0
#define GEMMSMITH_GATE_GELU 1
#define GEMMSMITH_GATE_GELU_TANH 2

/* One call on the rows of a matrix. Strides count elements between neighbouring rows. */
typedef struct gemmsmith_rows {
  int64_t rows, columns; /* columns of the result, before padding */
  int64_t padded;        /* columns written; int8 results have zeros past `columns` */
  const void *x;         /* (rows, columns); for gates (rows, 2 * columns) */
  const void *residual;  /* added to x before a norm; null for none */
  const void *weight;    /* (columns): of a norm; else multiplies what is quantised, null for none */
  void *sum;             /* where x + residual goes */
  void *out;             /* int8 where the kernel quantises, else of x's type */
  float *scale;          /* (rows), where the kernel quantises */
  int64_t x_stride, residual_stride, sum_stride, out_stride;
  float eps;             /* of a norm */
  int32_t activation;    /* of a gate: GEMMSMITH_GATE_... */
  int32_t interleaved;   /* 0: all gates, then all factors; 1: 8 gates, 8 factors, 8 gates ... */
} gemmsmith_rows;

/* One row kernel. A status of 1 is a size out of range, negative ones are -cudaError_t. */
typedef struct gemmsmith_row_kernel {
  const char *name;     /* RowSpec.name */
  int32_t threads;      /* most threads of a block whose threads hold the most of a row */
  int32_t shared_bytes; /* dynamic shared memory of a block */
  int32_t dependent_launch; /* 1: launched so that it may start before the kernel ahead has ended */
  /* Queues the kernel on `stream` (a cudaStream_t); never synchronises, never allocates. */
  gemmsmith_status (*launch)(const gemmsmith_rows *, void *stream);
  const char *(*explain)(gemmsmith_status);
} gemmsmith_row_kernel;

GEMMSMITH_EXPORT const gemmsmith_row_kernel *gemmsmith_row_kernels(int32_t *count);

#ifdef __cplusplus
}
#endif
