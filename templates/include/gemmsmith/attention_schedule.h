/* Which queries and keys a block takes, in what order, and which keys a query sees. */
#pragma once

#include <cstdint>

namespace gemmsmith {

/* A tile of queries of one head, and the tiles of keys that any of them sees. */
struct QueryTile {
  int head, kv_head;
  int q_row, q_batch;     /* where q's rows begin, for TMA */
  int k_row, k_batch;     /* where the sequence's keys begin */
  int64_t out_batch, out_row;
  int rows;               /* queries of it that exist; 0 and less: none */
  int keys;               /* of the sequence */
  int shift;              /* query i sees keys up to i + shift, where causal; i counts from the tile's first */
  int first_block, end_block; /* of tiles of keys */
  bool dirty;             /* whether what follows the last key in memory is no zero */
};

struct AttentionWork {
  int batch, heads, queries, keys, head_dim; /* queries, keys: of the longest sequence */
  int group;      /* heads that share a KV head */
  int tiles;      /* in all */
  int row_tiles;  /* of a head */
  int section;    /* heads whose keys and values stay in L2 together; those of a batch follow each other */
  int causal, window;
  int32_t const *lengths, *cu_q, *cu_k;

  /* The tile that this block takes in a round, -1 for none. Every second round goes backwards, so that
   * who had the longest tile of one gets the shortest of the next. */
  __device__ int tile(int round) const {
    int64_t const place = round % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
    int64_t const index = int64_t(round) * gridDim.x + place;
    return index < tiles ? int(index) : -1;
  }

  /* Causal: the longest tiles of a section first. Else the tiles of a head follow each other. */
  template <int kTileQueries, int kTileKeys>
  __device__ QueryTile locate(int index) const {
    int const in_section = section * row_tiles;
    int const first = index / in_section * section;
    int const heads_here = min(section, batch * heads - first);
    int const rest = index - first * row_tiles;
    int line, head;
    if (causal) {
      line = row_tiles - 1 - rest / heads_here;
      head = first + rest % heads_here;
    } else {
      line = rest % row_tiles;
      head = first + rest / row_tiles;
    }
    QueryTile tile;
    int const sequence = head / heads;
    tile.head = head % heads;
    tile.kv_head = tile.head / group;
    int const before = line * kTileQueries;
    int rows = queries;
    tile.keys = keys;
    tile.dirty = false;
    if (cu_q != nullptr) {
      int const start_q = cu_q[sequence], start_k = cu_k[sequence];
      rows = cu_q[sequence + 1] - start_q;
      tile.keys = cu_k[sequence + 1] - start_k;
      tile.q_row = start_q + before;
      tile.k_row = start_k;
      tile.q_batch = tile.k_batch = 0;
      tile.out_batch = 0;
      tile.dirty = true;
    } else {
      if (lengths != nullptr) {
        tile.keys = max(0, min(lengths[sequence], keys));
        tile.dirty = tile.keys < keys;
      }
      tile.q_row = before;
      tile.k_row = 0;
      tile.q_batch = tile.k_batch = sequence;
      tile.out_batch = sequence;
    }
    tile.out_row = tile.q_row;
    tile.shift = tile.keys - rows + before;
    tile.rows = min(kTileQueries, rows - before);
    int const end = causal ? min(tile.keys, tile.shift + tile.rows) : tile.keys;
    int const begin = window ? max(0, tile.shift - window + 1) : 0;
    tile.first_block = begin / kTileKeys;
    tile.end_block = tile.rows > 0 && end > begin ? (end + kTileKeys - 1) / kTileKeys : tile.first_block;
    return tile;
  }
};

/* The keys that this thread's two queries see, 8 rows apart. */
struct Rows {
  int row;             /* of the first, in the tile */
  int end[2], begin[2];
  int all_end, all_begin; /* keys that all queries of the warpgroup see */

  __device__ Rows(AttentionWork const &work, QueryTile const &tile, int warpgroup) {
    int const first = warpgroup * 64;
    row = first + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int const last = row + 8 * half + tile.shift;
      end[half] = work.causal ? min(tile.keys, last + 1) : tile.keys;
      begin[half] = work.window ? last + 1 - work.window : 0;
    }
    all_end = work.causal ? min(tile.keys, first + tile.shift + 1) : tile.keys;
    all_begin = work.window ? first + 64 + tile.shift - work.window : 0;
  }
};

}  // namespace gemmsmith
