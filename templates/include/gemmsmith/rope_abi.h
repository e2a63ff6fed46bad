/* The C interface of libraries of rotary kernels, beside abi.h: such a library exports
 * gemmsmith_abi_version and gemmsmith_rope_kernels. */
#pragma once

#include "gemmsmith/abi.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One call on the tokens of sequences: heads are turned, and kept in a cache where there is one.
 * Strides count elements; heads are contiguous.
 *
 * Element i of a head and its partner are turned by position * frequencies[i] radians. With a cache,
 * k is only read: turned, it goes to k_cache, and v to v_cache, at the place of the token. That is
 * its slot, counted through the cache, else its position: in the table's page for it, or in the
 * token's own sequence. Tokens whose place is below 0 or past the end are kept nowhere. */
typedef struct gemmsmith_rope {
  int64_t batch, length;             /* sequences, and tokens of each */
  int64_t heads, kv_heads, head_dim; /* elements of a head */
  int64_t pairs;                     /* pairs that are turned, 2 * pairs <= head_dim */
  void *q, *k;                       /* (batch, length, heads or kv_heads, head_dim) */
  const void *v;                     /* of k's shape; null without a cache */
  void *k_cache, *v_cache;           /* (pages, page_size, kv_heads, head_dim); null for none */
  const void *positions;             /* (batch, length) */
  const void *slots;                 /* (batch, length); null: positions tell the place */
  const void *frequencies;           /* (pairs), contiguous */
  const int32_t *table;              /* (batch, columns): index of each page; null for none */
  int64_t q_batch, q_token, q_head;  /* distance of neighbours; of the others likewise */
  int64_t k_batch, k_token, k_head;
  int64_t v_batch, v_token, v_head;
  int64_t k_page, k_slot, k_cache_head;
  int64_t v_page, v_slot, v_cache_head;
  int64_t positions_batch, positions_token;
  int64_t slots_batch, slots_token;
  int64_t table_row, columns;
  int64_t pages, page_size; /* of the cache: sequences and their capacity without a table */
  float factor;             /* of cosine and sine */
  int32_t interleaved;      /* 0: the partner of i is i + pairs; 1: elements 2 i and 2 i + 1 */
  int32_t wide_positions;   /* 1: positions are int64, 0: int32 */
  int32_t wide_slots;       /* 1: slots are int64, 0: int32 */
  int32_t wide_frequencies; /* 1: frequencies are double, 0: float */
} gemmsmith_rope;

/* One rotary kernel. A status of 1 is a size out of range, negative ones are -cudaError_t. */
typedef struct gemmsmith_rope_kernel {
  const char *name;         /* RowSpec.name */
  int32_t threads;          /* most threads of a block */
  int32_t shared_bytes;     /* dynamic shared memory of a block */
  int32_t dependent_launch; /* 1: launched so that it may start before the kernel ahead has ended */
  /* Queues the kernel on `stream` (a cudaStream_t); never synchronises, never allocates. */
  gemmsmith_status (*launch)(const gemmsmith_rope *, void *stream);
  const char *(*explain)(gemmsmith_status);
} gemmsmith_rope_kernel;

GEMMSMITH_EXPORT const gemmsmith_rope_kernel *gemmsmith_rope_kernels(int32_t *count);

#ifdef __cplusplus
}
#endif
