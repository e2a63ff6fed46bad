/* What attention_decode.h's kernels are made of: a call, the sizes of a block, and where its threads stand. */
#pragma once

#include <cstdint>

#include "gemmsmith/swizzled_rows.h"
#include "gemmsmith/warp_instructions.h"

namespace gemmsmith {

/* The keys and values that a call appends: one of each sequence, whose place is its length's last. */
struct DecodeAppend {
  void const *k, *v; /* k and q are turned by RoPE first */
  int64_t k_batch, k_head, v_batch, v_head;
  void const *frequencies; /* of `pairs` pairs, in radians a position */
  int pairs;
  bool wide, interleaved; /* frequencies in double; pairs are neighbours, not halves */
  float factor;           /* of cosine and sine */
  int pages;              /* that there are, of a table */
};

struct DecodeParams {
  void const *q, *k, *v;
  void *out;
  int64_t q_batch, q_token, q_head;
  int64_t k_batch, k_token, k_head; /* k_batch and v_batch: of a page where there is a table */
  int64_t v_batch, v_token, v_head;
  int64_t out_batch, out_token, out_head;
  int group, queries, keys, head_dim; /* keys: the most of a sequence */
  int rows;                           /* group * queries */
  int row_groups;                     /* blocks that share them */
  float scale;                        /* of scores before the cap, or of those in base 2 */
  float cap;                          /* 0: none */
  int window;                         /* keys that a query sees; 0: all */
  int causal;
  int32_t const *lengths; /* of each sequence; null: `keys` */
  int chunk, clusters;    /* share_keys() of that many, where lengths is null */
  int32_t const *table;   /* pages of each sequence; null: keys follow each other */
  int64_t table_stride;
  int page_shift;     /* keys of a page: 1 << page_shift */
  float *partials;    /* what blocks found, where splits are more than a cluster */
  uint32_t *counters; /* zero before and after: of each row of the grid, kCluster of them */
  DecodeAppend append;
};

/* How the keys of a sequence are shared out: `chunk` to each block, to the first `clusters` of the row. */
struct KeyShares {
  int chunk, clusters;
};
__host__ __device__ inline KeyShares share_keys(int keys, int splits, int cluster, int tile, int least) {
  int const each = (keys + splits - 1) / splits, rounded = (each + tile - 1) / tile * tile;
  int const chunk = rounded > least ? rounded : least;
  int const clusters = (keys + chunk * cluster - 1) / (chunk * cluster);
  return {chunk, clusters > 1 ? clusters : 1};
}

template <class Traits>
struct DecodeShape {
  using Element = typename Traits::Element;
  static constexpr int kHeadDim = Traits::kHeadDim;     /* columns past the call's head_dim are zero */
  static constexpr int kRowBlocks = Traits::kRowBlocks; /* of eight rows, that a warp takes */
  static constexpr int kRowWarps = Traits::kRowWarps;
  static constexpr int kTeams = Traits::kTeams;
  static constexpr int kTile = Traits::kTileKeys;
  static constexpr int kStages = Traits::kStages;
  static constexpr int kCluster = Traits::kCluster;
  static constexpr bool kConstantCache = Traits::kConstantCache;

  static constexpr int kThreads = 32 * kRowWarps * kTeams;
  static constexpr int kTeamThreads = 32 * kRowWarps;
  static constexpr int kRows = 8 * kRowBlocks * kRowWarps;
  static constexpr int kSteps = kHeadDim / 16; /* of an instruction along the head */
  static constexpr int kKeyBlocks = kTile / 16;

  static constexpr int kChunks = kHeadDim / 8; /* of 16 bytes, in a row of a buffer */
  using Buffer = SwizzledRows<kChunks>;
  static constexpr int kPitch = Buffer::kPitch;
  static constexpr int kTileBytes = kTile * kPitch;
  static constexpr int kTeamBytes = 2 * kStages * kTileBytes;
  static constexpr int kCopies = (kTile * kChunks + kTeamThreads - 1) / kTeamThreads;
  static constexpr int kPending = 2 * kStages - 1;
  static constexpr int kLeastKeys = Traits::kLeastTiles * kTile; /* of a block, unless there are fewer */

  /* After the loop the buffers hold sums [team][row][column]; rows 2t and 2t + 1 of lanes t = 0..3 begin
   * eight banks apart. */
  static constexpr int kSumPitch = kHeadDim + 4;
  static constexpr int kSums = kTeams * kRows * kSumPitch;
  static constexpr int kFinishBytes = 4 * (kSums + 2 * kTeams * kRows) + 16 * kRows + 16;
  static constexpr int kLoopBytes = kTeams * kTeamBytes;
  static constexpr int kAppendAt = kLoopBytes > kFinishBytes ? kLoopBytes : kFinishBytes;
  static constexpr int kFreshPitch = 16 * (kChunks | 1); /* of a call's own q, key and value: threads write them */
  static constexpr int kSharedBytes = kAppendAt + 4 * kHeadDim + (kRows + 2) * kFreshPitch; /* behind angles */
  static constexpr int kPartialFloats = kRows * (kHeadDim + 2); /* of a cluster, in the workspace */

  static_assert(kHeadDim % 16 == 0 && kHeadDim <= 256, "whole instructions");
  static_assert(Buffer::banks_differ(), "rows are read at once");
  static_assert(kTile == 16 || kTile == 32, "a lane looks up one page");
  static_assert(kRowBlocks * kHeadDim <= 256, "registers");
  static_assert(Traits::kDependentLaunch || !kConstantCache, "only who starts early can read early");
  static_assert(kTeams <= 15 && kThreads <= 1024, "named barriers and threads of a block");
  static_assert(kStages >= 1 && kCluster >= 1 && kCluster <= 8, "stages, and clusters that every GPU takes");

  __device__ static float minus_infinity() { return __uint_as_float(0xff800000u); }
  /* 2^(from - to), where both may be -infinity: then 0. */
  __device__ static float weight(float from, float to) {
    return power_of_two(from - (to == minus_infinity() ? 0.0f : to));
  }

  /* Where this block and thread stand, and which keys they take. */
  struct Place {
    DecodeParams const &params;
    int warp, lane, team, member;
    int batch, kv_head, first_row, rows; /* of the block */
    int told, length;      /* keys of the sequence: those that the call names, those that there is room for */
    int first, last;       /* of them, those of the block */
    int tightest, loosest; /* all its rows see keys from `loosest` to `tightest` */
    int clusters;          /* of this row of the grid, that have any keys */

    __device__ explicit Place(DecodeParams const &of) : params(of) {
      warp = int(threadIdx.x) / 32;
      lane = int(threadIdx.x) % 32;
      team = warp / kRowWarps;
      member = warp % kRowWarps;
      batch = int(blockIdx.z);
      kv_head = params.row_groups == 1 ? int(blockIdx.y) : int(blockIdx.y) / params.row_groups;
      first_row = (int(blockIdx.y) - kv_head * params.row_groups) * kRows;
      rows = min(params.rows - first_row, kRows);
      KeyShares shares{params.chunk, params.clusters};
      told = params.lengths != nullptr ? params.lengths[batch] : params.keys;
      length = max(min(told, params.keys), 0);
      int const lowest = limit(first_row), highest = limit(first_row + rows - 1);
      int const end = max(highest, 0);
      int const begin = params.window > 0 ? max(lowest - params.window, 0) : 0;
      if (params.lengths != nullptr) {
        shares = share_keys(max(end - begin, 0), int(gridDim.x), kCluster, kTile, kLeastKeys);
      }
      clusters = shares.clusters;
      first = min(begin + int(blockIdx.x) * shares.chunk, end);
      last = min(first + shares.chunk, end);
      tightest = min(lowest, last);
      loosest = params.window > 0 ? highest - params.window : 0;
    }

    /* The key that a call appends; below 0 where there is no room for it. */
    __device__ int newest() const { return told <= params.keys ? told - 1 : -1; }
    __device__ int token(int row) const { return params.queries == 1 ? 0 : row / params.group; }
    /* Keys from here on are not seen by this row. */
    __device__ int limit(int row) const {
      return params.causal ? length - params.queries + 1 + token(row) : length;
    }
    /* Keys of the team's tile i begin here. */
    __device__ int key(int tile) const { return first + (team + tile * kTeams) * kTile; }
    __device__ int tiles() const {
      int const all = (last - first + kTile - 1) / kTile;
      return max(all - team + kTeams - 1, 0) / kTeams;
    }
    __device__ int64_t offset(int row, int64_t batches, int64_t tokens, int64_t heads) const {
      int const at = token(row), head = kv_head * params.group + row - at * params.group;
      return batch * batches + at * tokens + head * heads;
    }
  };

  __device__ static void sync_team(Place const &place) {
    if constexpr (kRowWarps == 1) {
      __syncwarp();
    } else {
      meet(1 + place.team, kTeamThreads);
    }
  }

  /* What a warp has of its rows: lane 4g + t has rows 2t and 2t + 1 of each eight. */
  struct Rows {
    float sums[kSteps][kRowBlocks][4] = {}; /* columns g and g + 8 of each sixteen */
    float most[kRowBlocks][2];
    float total[kRowBlocks][2] = {};

    __device__ Rows() {
#pragma unroll
      for (int block = 0; block < kRowBlocks; ++block) {
        most[block][0] = most[block][1] = minus_infinity();
      }
    }
  };
};

}  // namespace gemmsmith
