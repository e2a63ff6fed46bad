/* What the kernels for many queries read off a call alike: its extents, its alignment, its tiles. */
#pragma once

#include <algorithm>
#include <cstdint>

#include "gemmsmith/attention_abi.h"
#include "gemmsmith/attention_schedule.h"

namespace gemmsmith {

/* Sequences that lie one behind the other are, for addresses, one of all their tokens. */
struct AttentionExtents {
  int64_t sequences, rows_q, rows_k;
};
inline AttentionExtents extents_of(gemmsmith_attention const &call) {
  if (call.cu_q != nullptr) {
    return {1, call.tokens_q, call.tokens_k};
  }
  return {call.batch, call.queries, call.keys};
}

/* Whether q, k, v and out begin at 16 bytes and are stepped by multiples of `vector` elements, no less
 * than `least`. A dimension of one is not stepped. */
inline bool is_aligned(gemmsmith_attention const &call, int64_t vector, int64_t least) {
  AttentionExtents const extents = extents_of(call);
  auto placed = [](void const *address) { return reinterpret_cast<uintptr_t>(address) % 16 == 0; };
  auto stepped = [=](int64_t count, int64_t stride) {
    return count <= 1 || (stride >= least && stride % vector == 0);
  };
  auto rows = [&](int64_t count, int64_t row, int64_t heads, int64_t head, int64_t sequence) {
    return stepped(count, row) && stepped(heads, head) && stepped(extents.sequences, sequence);
  };
  return placed(call.q) && placed(call.k) && placed(call.v) && placed(call.out) &&
         rows(extents.rows_q, call.q_row, call.heads, call.q_head, call.q_batch) &&
         rows(extents.rows_k, call.k_row, call.kv_heads, call.k_head, call.k_batch) &&
         rows(extents.rows_k, call.v_row, call.kv_heads, call.v_head, call.v_batch) &&
         rows(extents.rows_q, call.out_row, call.heads, call.out_head, call.out_batch);
}

/* Tiles of `tile_queries` that a head of the longest sequence has. */
inline int64_t row_tiles(gemmsmith_attention const &call, int tile_queries) {
  return (call.queries + tile_queries - 1) / tile_queries;
}

/* The work of a call. Heads whose keys and values fit into `l2_bytes` are taken together. */
inline AttentionWork work_of(gemmsmith_attention const &call, int tile_queries, int element_bytes, int64_t l2_bytes) {
  int64_t const lines = row_tiles(call, tile_queries), group = call.heads / call.kv_heads;
  int64_t const of_kv_head = 2 * call.keys * call.head_dim * element_bytes;
  int64_t const together = std::max<int64_t>(1, l2_bytes / of_kv_head) * group;
  AttentionWork work{};
  work.batch = int(call.batch);
  work.heads = int(call.heads);
  work.queries = int(call.queries);
  work.keys = int(call.keys);
  work.head_dim = int(call.head_dim);
  work.group = int(group);
  work.row_tiles = int(lines);
  work.tiles = int(lines * call.heads * call.batch);
  work.section = int(std::min(together, call.heads * call.batch));
  work.causal = call.causal;
  work.window = call.window;
  work.lengths = call.lengths;
  work.cu_q = call.cu_q;
  work.cu_k = call.cu_k;
  return work;
}

}  // namespace gemmsmith
