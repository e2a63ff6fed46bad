/* The C interface of attention kernels, beside that of the others in abi.h: a library of them exports
 * gemmsmith_attention_kernels in place of gemmsmith_kernels. */
#pragma once

#include "gemmsmith/abi.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One call: out = softmax(scale * q k^T) v for each head, the softmax in f32. Query i of a sequence
 * with n keys and m queries sees, where causal, the keys j <= i + n - m, and of these, where window
 * is not 0, the last `window`. A query that sees no key gives 0. The elements of a head are next to
 * each other; the other strides count elements.
 *
 * Without cu_q: q is (batch, queries, heads, head_dim). Keys are those of k, or as many as
 * lengths[b], which may hold more than there are; what lies beyond them must have no effect, be it
 * NaN. With block_table, k and v are (pages, page_size, kv_heads, head_dim), their batch stride that
 * of pages; key j of sequence b is entry j % page_size of page block_table[b * table_stride +
 * j / page_size], and entries beyond the length are not read.
 * With cu_q and cu_k (batch + 1 each): sequences lie one after the other, q is (tokens_q, heads,
 * head_dim), and no batch stride is read; queries and keys are those of the longest sequence.
 * With new_k and new_v, (batch, kv_heads, head_dim), which split_kv kernels take: each sequence has one
 * query, and its newest key and value, those at lengths[b] - 1, are these, which the kernel also writes
 * there, unless there is no such place. The first 2 * pairs elements of q and of the key are turned before,
 * as gemmsmith_rope's are, by the angles of that position. */
typedef struct gemmsmith_attention {
  const void *q, *k, *v;
  void *out;
  const int32_t *lengths, *cu_q, *cu_k, *block_table; /* null where not given */
  int64_t batch, queries, keys, heads, kv_heads, head_dim;
  int64_t tokens_q, tokens_k; /* rows of q and k in all where they are packed, else 0 */
  int64_t q_batch, q_row, q_head, k_batch, k_row, k_head;
  int64_t v_batch, v_row, v_head, out_batch, out_row, out_head;
  int64_t pages, page_size, table_stride; /* 0 where there is no block_table */
  float scale, softcap; /* scores are softcap * tanh(scale * q k / softcap); 0 is no cap */
  int32_t causal, window; /* window 0: none */
  int32_t splits;         /* blocks that share the keys of a head; 0: the kernel's own choice */
  int32_t device;         /* CUDA ordinal */
  int32_t sm_count;       /* multiprocessors of that device */
  uint32_t *counters;     /* as many as the kernel asks for, zero before and after it has run */
  const void *new_k, *new_v, *frequencies; /* null where not given */
  int64_t new_k_batch, new_k_head, new_v_batch, new_v_head;
  int64_t pairs;             /* of each head, that are turned; 0: none */
  float rope_factor;         /* of cosine and sine */
  int32_t interleaved;       /* 0: the partner of i is i + pairs; 1: elements 2 i and 2 i + 1 */
  int32_t wide_frequencies;  /* 1: frequencies are double, 0: float */
} gemmsmith_attention;

/* One attention kernel. A status of 0 is success, negative ones are -cudaError_t, positive ones the
 * kernel's own, as its explain words them. */
typedef struct gemmsmith_attention_kernel {
  const char *name;     /* AttentionSpec.name */
  int32_t threads;      /* threads of a block */
  int32_t shared_bytes; /* dynamic shared memory of a block */
  int32_t stages;       /* buffers of keys and of values */
  int32_t dependent_launch; /* 1: launched so that it may start before the kernel ahead has ended */
  gemmsmith_status (*can_run)(const gemmsmith_attention *);
  /* Bytes of device memory that hold anything and may be reused once the kernel has ended, and how
   * many counters. */
  gemmsmith_status (*needs)(const gemmsmith_attention *, uint64_t *workspace, uint64_t *counters);
  /* Queues the kernel on `stream` (a cudaStream_t); never synchronises, never allocates. */
  gemmsmith_status (*launch)(const gemmsmith_attention *, void *workspace, void *stream);
  const char *(*explain)(gemmsmith_status);
} gemmsmith_attention_kernel;

GEMMSMITH_EXPORT const gemmsmith_attention_kernel *gemmsmith_attention_kernels(int32_t *count);

#ifdef __cplusplus
}
#endif
