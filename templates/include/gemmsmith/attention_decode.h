/* Attention of a few queries over a cache of keys and values, for sm_80 and later.
 *
 * The rows of a block are the queries of one KV head: its group of query heads, times the tokens when
 * there are several. Row r is query r / group of query head kv_head * group + r % group. Keys are the
 * tall side of each product, so that eight rows fill an instruction: scores^T = K Q^T, out^T = V^T P^T.
 *
 * Keys are shared out three times: among the blocks of a row of the grid (splits), among the teams of a
 * block, and a team streams its own through kStages buffers a tile at a time. A team is one warp, or
 * kRowWarps that share keys and take different rows. What they found is put together in the block's
 * shared memory, then over the cluster's, and then by the block that arrives last, in the order of the
 * keys: results do not depend on who came when.
 *
 * What lies beyond a sequence's length is never read: its place in shared memory is filled with zeros.
 *
 * With kConstantCache nothing that is queued may write lengths, table or keys and values before the newest
 * `queries` of each sequence: buffers whose keys all lie there are filled while the kernel ahead still runs.
 */
#pragma once

#include <cstdint>

#include "gemmsmith/dependent_launch.h"
#include "gemmsmith/warp_instructions.h"

namespace gemmsmith {

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
struct DecodeAttention {
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

  /* An odd number of 16 byte chunks in a row: any eight rows of a column lie in different banks. */
  static constexpr int kChunks = kHeadDim / 8;
  static constexpr int kPitch = 16 * (kChunks | 1);
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
  static constexpr int kSharedBytes = kLoopBytes > kFinishBytes ? kLoopBytes : kFinishBytes;
  static constexpr int kPartialFloats = kRows * (kHeadDim + 2); /* of a cluster, in the workspace */

  static_assert(kHeadDim % 16 == 0 && kHeadDim <= 256, "whole instructions");
  static_assert(kTile == 16 || kTile == 32, "a lane looks up one page");
  static_assert(kRowBlocks * kHeadDim <= 256, "registers");
  static_assert(Traits::kDependentLaunch || !kConstantCache, "only who starts early can read early");
  static_assert(kTeams <= 15 && kThreads <= 1024, "named barriers and threads of a block");
  static_assert(kStages >= 1 && kCluster >= 1 && kCluster <= 8, "stages, and clusters that every GPU takes");

  struct Partial { /* four neighbours of a row's output, before they are divided by `total` */
    float4 sums;
    float most; /* the largest score, in base 2 */
    float total;
  };

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
    int length;
    int first, last;       /* keys of the block */
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
      length = params.keys;
      if (params.lengths != nullptr) {
        length = max(min(params.lengths[batch], params.keys), 0);
      }
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

  /* The stream of a team's keys, or of its values, into shared memory. */
  template <bool kPaged>
  struct Stream {
    Element const *base;
    int64_t token, page;
    uint32_t target;
    uint64_t policy;

    /* Starts the copies of tile i into buffer `slot`. With a table lane l says where key l's page is. */
    __device__ void load(Place const &place, int tile, int tiles, int slot, int pages) const {
      if (tile < tiles) {
        DecodeParams const &params = place.params;
        int const thread = place.member * 32 + place.lane, key = place.key(tile);
        uint32_t const buffer = target + slot * kTileBytes;
#pragma unroll
        for (int copy = 0; copy < kCopies; ++copy) {
          int const index = copy * kTeamThreads + thread;
          int const row = index / kChunks, chunk = index % kChunks;
          int64_t offset;
          if constexpr (kPaged) {
            int const number = __shfl_sync(0xffffffffu, pages, row % kTile);
            offset = number * page + ((key + row) & ((1 << params.page_shift) - 1)) * token;
          } else {
            offset = (key + row) * token;
          }
          bool const real = key + row < place.last && 8 * chunk < params.head_dim;
          if (kTile * kChunks % kTeamThreads == 0 || index < kTile * kChunks) {
            copy_async(buffer + row * kPitch + 16 * chunk, base + offset + 8 * chunk, real, policy);
          }
        }
      }
      commit_copies();
    }
  };

  /* The page of key `lane` of a tile; 0 where there is no such key. */
  template <bool kPaged>
  __device__ static int look_up(Place const &place, int tile) {
    if constexpr (kPaged) {
      int const key = place.key(tile) + place.lane;
      if (place.lane < kTile && key < place.last) {
        DecodeParams const &params = place.params;
        return params.table[place.batch * params.table_stride + (key >> params.page_shift)];
      }
    }
    return 0;
  }

  struct Queries {
    uint32_t words[kSteps][kRowBlocks][2];

    __device__ explicit Queries(Place const &place) {
      DecodeParams const &params = place.params;
#pragma unroll
      for (int block = 0; block < kRowBlocks; ++block) {
        int const row = (place.member * kRowBlocks + block) * 8 + place.lane / 4;
        bool const real = row < place.rows;
        int const there = place.first_row + (real ? row : 0);
        Element const *const from = static_cast<Element const *>(params.q) +
                                    place.offset(there, params.q_batch, params.q_token, params.q_head) +
                                    2 * (place.lane % 4);
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            int const column = 16 * step + 8 * half;
            words[step][block][half] =
                real && column < params.head_dim ? *reinterpret_cast<uint32_t const *>(from + column) : 0;
          }
        }
      }
    }
  };

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

  using Scores = float[kKeyBlocks][kRowBlocks][4]; /* keys g and g + 8 of each sixteen */
  using Weights = uint32_t[kKeyBlocks][kRowBlocks][2];

  __device__ static void score(uint32_t buffer, Place const &place, Queries const &queries, Scores &scores) {
    constexpr int kChains = kKeyBlocks * kRowBlocks == 1 ? 2 : 1; /* products that do not wait for each other */
    float chains[kChains][kKeyBlocks][kRowBlocks][4] = {};
    uint32_t const from = buffer + place.lane % 16 * kPitch + place.lane / 16 * 16;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int keys = 0; keys < kKeyBlocks; ++keys) {
        uint32_t words[4];
        load_matrices(words, from + keys * 16 * kPitch + step * 32);
#pragma unroll
        for (int block = 0; block < kRowBlocks; ++block) {
          multiply(chains[step % kChains][keys][block], words, queries.words[step][block], Element{});
        }
      }
    }
#pragma unroll
    for (int keys = 0; keys < kKeyBlocks; ++keys) {
#pragma unroll
      for (int block = 0; block < kRowBlocks; ++block) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          scores[keys][block][i] = chains[0][keys][block][i];
          if constexpr (kChains > 1) {
            scores[keys][block][i] += chains[kChains - 1][keys][block][i];
          }
        }
      }
    }
  }

  /* Scores in base 2, and -infinity where a row does not see a key. */
  __device__ static void adjust(Place const &place, int key, Scores &scores) {
    DecodeParams const &params = place.params;
    constexpr float kLog2e = 1.4426950408889634f;
    bool const all = key + kTile <= place.tightest && key >= place.loosest;
#pragma unroll
    for (int block = 0; block < kRowBlocks; ++block) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        int end = 0, begin = 0;
        if (!all) {
          int const row = (place.member * kRowBlocks + block) * 8 + 2 * (place.lane % 4) + i % 2;
          int const limit = place.limit(place.first_row + min(row, place.rows - 1));
          end = min(limit, place.last);
          begin = params.window > 0 ? limit - params.window : 0;
        }
#pragma unroll
        for (int keys = 0; keys < kKeyBlocks; ++keys) {
          float &score = scores[keys][block][i];
          score *= params.scale;
          if (params.cap > 0.0f) { /* scale holds 2 log2(e) / cap: cap * tanh(x) = cap (1 - 2 / (e^2x + 1)) */
            score = kLog2e * params.cap * (1.0f - __fdividef(2.0f, power_of_two(score) + 1.0f));
          }
          int const at = key + 16 * keys + place.lane / 4 + i / 2 * 8;
          if (!all && (at >= end || at < begin)) {
            score = minus_infinity();
          }
        }
      }
    }
  }

  /* Turns scores into weights of 16 bits, as the second product wants them, and adds them up. */
  __device__ static void weigh(Scores &scores, Rows &rows, Weights &weights) {
    float factors[kRowBlocks][2];
    bool changed = false;
#pragma unroll
    for (int block = 0; block < kRowBlocks; ++block) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        float most = rows.most[block][row];
#pragma unroll
        for (int keys = 0; keys < kKeyBlocks; ++keys) {
          most = fmaxf(most, fmaxf(scores[keys][block][row], scores[keys][block][row + 2]));
        }
#pragma unroll
        for (int distance = 4; distance < 32; distance *= 2) {
          most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, distance));
        }
        float const factor = weight(rows.most[block][row], most);
        factors[block][row] = factor;
        changed = changed || factor != 1.0f;
        rows.most[block][row] = most;
        float const reference = most == minus_infinity() ? 0.0f : most;
        float total = 0.0f;
#pragma unroll
        for (int keys = 0; keys < kKeyBlocks; ++keys) {
#pragma unroll
          for (int i = row; i < 4; i += 2) {
            float &score = scores[keys][block][i];
            score = power_of_two(score - reference);
            total += score;
          }
        }
        rows.total[block][row] = rows.total[block][row] * factor + total;
      }
    }
    if (__any_sync(0xffffffffu, changed)) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
#pragma unroll
        for (int block = 0; block < kRowBlocks; ++block) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            rows.sums[step][block][i] *= factors[block][i % 2];
          }
        }
      }
    }
#pragma unroll
    for (int keys = 0; keys < kKeyBlocks; ++keys) {
#pragma unroll
      for (int block = 0; block < kRowBlocks; ++block) {
        float const(&values)[4] = scores[keys][block];
        weights[keys][block][0] = transpose(pack_pair(values[0], values[1], Element{}));
        weights[keys][block][1] = transpose(pack_pair(values[2], values[3], Element{}));
      }
    }
  }

  __device__ static void accumulate(uint32_t buffer, Place const &place, Weights const &weights, Rows &rows) {
    int const lane = place.lane;
    uint32_t const from = buffer + (lane % 8 + lane / 16 * 8) * kPitch + lane / 8 % 2 * 16;
#pragma unroll
    for (int keys = 0; keys < kKeyBlocks; ++keys) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        uint32_t words[4];
        load_transposed(words, from + keys * 16 * kPitch + step * 32);
#pragma unroll
        for (int block = 0; block < kRowBlocks; ++block) {
          multiply(rows.sums[step][block], words, weights[keys][block], Element{});
        }
      }
    }
  }

  template <bool kPaged>
  __device__ static void loop(Place const &place, Rows &rows) {
    DecodeParams const &params = place.params;
    uint32_t const buffers = shared_address(dynamic_shared()) + place.team * kTeamBytes;
    uint64_t const policy = leaves_first();
    int64_t const k_base = (kPaged ? 0 : place.batch * params.k_batch) + place.kv_head * params.k_head;
    int64_t const v_base = (kPaged ? 0 : place.batch * params.v_batch) + place.kv_head * params.v_head;
    Stream<kPaged> const keys{static_cast<Element const *>(params.k) + k_base, params.k_token, params.k_batch,
                              buffers, policy};
    Stream<kPaged> const values{static_cast<Element const *>(params.v) + v_base, params.v_token, params.v_batch,
                                buffers + kStages * kTileBytes, policy};
    int const tiles = place.tiles();
    int pages[kStages];
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) {
      pages[stage] = look_up<kPaged>(place, stage);
    }
    auto const fill = [&](int stage) {
      keys.load(place, stage, tiles, stage, pages[stage]);
      values.load(place, stage, tiles, stage, pages[stage]);
    };
    int ready = 0; /* buffers that are filled ahead of the wait: the first ones, as copies end in order */
    if constexpr (kConstantCache) {
      int const written = place.length - params.queries; /* keys from here on, by the kernel ahead perhaps */
#pragma unroll
      for (int stage = 0; stage < kStages; ++stage) {
        if (ready == stage && (stage >= tiles || place.key(stage) + kTile <= written)) {
          fill(stage);
          ++ready;
        }
      }
      await_prerequisites();
    }
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) {
      if (stage >= ready) {
        fill(stage);
      }
    }
    Queries const queries(place);
    int ahead = look_up<kPaged>(place, kStages);
    for (int tile = 0, slot = 0; tile < tiles; ++tile) {
      Scores scores;
      Weights weights;
      await_copies<kPending>();
      sync_team(place);
      score(keys.target + slot * kTileBytes, place, queries, scores);
      sync_team(place);
      keys.load(place, tile + kStages, tiles, slot, ahead);
      adjust(place, place.key(tile), scores);
      weigh(scores, rows, weights);
      await_copies<kPending>();
      sync_team(place);
      accumulate(values.target + slot * kTileBytes, place, weights, rows);
      sync_team(place);
      values.load(place, tile + kStages, tiles, slot, ahead);
      ahead = look_up<kPaged>(place, tile + 1 + kStages);
      slot = slot + 1 == kStages ? 0 : slot + 1;
    }
  }

  /* Shared memory after the loop. */
  struct Finish {
    float *sums, *most, *total;
    float4 *block; /* of the block: most and total of each row */
    uint32_t *flag;

    __device__ Finish() {
      sums = reinterpret_cast<float *>(dynamic_shared());
      block = reinterpret_cast<float4 *>(sums + kSums);
      most = reinterpret_cast<float *>(block + kRows);
      total = most + kTeams * kRows;
      flag = reinterpret_cast<uint32_t *>(total + kTeams * kRows);
    }
    __device__ float4 *quad(int team, int row, int column) const {
      return reinterpret_cast<float4 *>(sums + (team * kRows + row) * kSumPitch + column);
    }
  };

  __device__ static void stage(Place const &place, Rows &rows, Finish const &finish) {
    int const g = place.lane / 4, t = place.lane % 4;
#pragma unroll
    for (int block = 0; block < kRowBlocks; ++block) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float total = rows.total[block][i];
#pragma unroll
        for (int distance = 4; distance < 32; distance *= 2) {
          total += __shfl_xor_sync(0xffffffffu, total, distance);
        }
        int const row = (place.member * kRowBlocks + block) * 8 + 2 * t + i, at = place.team * kRows + row;
        if (row < place.rows) {
#pragma unroll
          for (int step = 0; step < kSteps; ++step) {
            finish.sums[at * kSumPitch + 16 * step + g] = rows.sums[step][block][i];
            finish.sums[at * kSumPitch + 16 * step + g + 8] = rows.sums[step][block][i + 2];
          }
          if (g == 0) {
            finish.most[at] = rows.most[block][i];
            finish.total[at] = total;
          }
        }
      }
    }
  }

  __device__ static void add(Partial &to, Partial const &from, float factor) {
    to.sums.x += factor * from.sums.x;
    to.sums.y += factor * from.sums.y;
    to.sums.z += factor * from.sums.z;
    to.sums.w += factor * from.sums.w;
    to.total += factor * from.total;
  }
  __device__ static Partial nothing() { return {make_float4(0, 0, 0, 0), minus_infinity(), 0.0f}; }

  /* Puts what several sources have of each of `quads` together and delivers it; all threads of the block
   * come here. Where there are more threads than quads several share the sources of one. */
  template <int kBatch, class Read, class Deliver>
  __device__ static void combine(Place const &place, int first, int quads, int sources, Read read, Deliver deliver) {
    int shift = 0;
    while (shift < 5 && quads << (shift + 1) <= kThreads && 2 << shift <= sources) {
      ++shift;
    }
    int const parts = 1 << shift, part = int(threadIdx.x) & (parts - 1);
    int const head_dim = place.params.head_dim;
    for (int base = 0; base < quads; base += kThreads >> shift) {
      int const quad = base + (int(threadIdx.x) >> shift);
      int const element = 4 * (first + quad);
      int const row = head_dim == kHeadDim ? element / kHeadDim : element / head_dim;
      int const column = element - row * head_dim;
      Partial result = nothing();
      for (int source = part; quad < quads && source < sources; source += kBatch * parts) {
        Partial found[kBatch];
        float most = result.most;
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          found[i] = source + i * parts < sources ? read(row, column, source + i * parts) : nothing();
        }
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          most = fmaxf(most, found[i].most);
        }
        Partial const before = result;
        result = nothing();
        result.most = most;
        add(result, before, weight(before.most, most));
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          add(result, found[i], weight(found[i].most, most));
        }
      }
      for (int distance = 1; distance < parts; distance *= 2) {
        Partial other;
        other.sums.x = __shfl_xor_sync(0xffffffffu, result.sums.x, distance);
        other.sums.y = __shfl_xor_sync(0xffffffffu, result.sums.y, distance);
        other.sums.z = __shfl_xor_sync(0xffffffffu, result.sums.z, distance);
        other.sums.w = __shfl_xor_sync(0xffffffffu, result.sums.w, distance);
        other.most = __shfl_xor_sync(0xffffffffu, result.most, distance);
        other.total = __shfl_xor_sync(0xffffffffu, result.total, distance);
        Partial const own = result;
        result = nothing();
        result.most = fmaxf(own.most, other.most);
        add(result, own, weight(own.most, result.most));
        add(result, other, weight(other.most, result.most));
      }
      if (quad < quads && part == 0) {
        deliver(row, column, result);
      }
    }
  }

  __device__ static void write(Place const &place, int row, int column, Partial const &result) {
    DecodeParams const &params = place.params;
    float const factor = result.total == 0.0f ? 0.0f : __fdividef(1.0f, result.total);
    uint2 words;
    words.x = pack_pair(result.sums.x * factor, result.sums.y * factor, Element{});
    words.y = pack_pair(result.sums.z * factor, result.sums.w * factor, Element{});
    int64_t const at = place.offset(place.first_row + row, params.out_batch, params.out_token, params.out_head);
    *reinterpret_cast<uint2 *>(static_cast<Element *>(params.out) + at + column) = words;
  }

  /* Brings the parts of all teams, blocks and clusters together. */
  __device__ static void conclude(Place const &place, Finish const &finish) {
    DecodeParams const &params = place.params;
    int const quads = place.rows * (params.head_dim / 4);
    int const row_of_grid = int(blockIdx.z * gridDim.y + blockIdx.y);
    int const rank = kCluster > 1 ? int(rank_in_cluster()) : 0;
    int const share = (quads + kCluster - 1) / kCluster;
    int const first = rank * share, count = max(min(share, quads - first), 0);

    float *const partials = params.partials + int64_t(row_of_grid) * (gridDim.x / kCluster) * kPartialFloats;
    auto const deliver = [&](int row, int column, Partial const &result) {
      if (place.clusters == 1) {
        write(place, row, column, result);
        return;
      }
      float *const mine = partials + int64_t(blockIdx.x / kCluster) * kPartialFloats;
      *reinterpret_cast<float4 *>(mine + row * kHeadDim + column) = result.sums;
      *reinterpret_cast<float2 *>(mine + kRows * kHeadDim + 2 * row) = make_float2(result.most, result.total);
    };
    auto const of_team = [&](int row, int column, int team) {
      int const at = team * kRows + row;
      return Partial{*finish.quad(team, row, column), finish.most[at], finish.total[at]};
    };
    if constexpr (kCluster == 1) {
      combine<4>(place, 0, quads, kTeams, of_team, deliver);
    } else {
      combine<4>(place, 0, quads, kTeams, of_team, [&](int row, int column, Partial const &result) {
        *finish.quad(0, row, column) = result.sums; /* which only this thread has read */
        finish.block[row] = make_float4(result.most, result.total, 0.0f, 0.0f);
      });
      arrive_in_cluster();
      await_cluster();
      auto const of_block = [&](int row, int column, int other) {
        float4 const facts = load_of_rank(shared_address(finish.block + row), uint32_t(other));
        return Partial{load_of_rank(shared_address(finish.quad(0, row, column)), uint32_t(other)), facts.x, facts.y};
      };
      combine<8>(place, first, count, kCluster, of_block, deliver);
      arrive_in_cluster();
    }
    if (place.clusters > 1) {
      __syncthreads();
      if (threadIdx.x == 0) {
        *finish.flag = count_arrival(params.counters + row_of_grid * kCluster + rank, uint32_t(place.clusters - 1));
      }
      __syncthreads();
      if (*finish.flag == uint32_t(place.clusters - 1)) {
        auto const of_cluster = [&](int row, int column, int cluster) {
          float const *const theirs = partials + int64_t(cluster) * kPartialFloats;
          float4 const sums = load_shared_by_all(reinterpret_cast<float4 const *>(theirs + row * kHeadDim + column));
          float2 const facts =
              load_shared_by_all(reinterpret_cast<float2 const *>(theirs + kRows * kHeadDim + 2 * row));
          return Partial{sums, facts.x, facts.y};
        };
        combine<8>(place, first, count, place.clusters, of_cluster,
                   [&](int row, int column, Partial const &result) { write(place, row, column, result); });
      }
    }
    if constexpr (kCluster > 1) {
      await_cluster(); /* others may still read this block's shared memory */
    }
  }

  template <bool kPaged>
  __device__ static void run(DecodeParams const &params) {
    if constexpr (Traits::kDependentLaunch) {
      release_dependents();
      if constexpr (!kConstantCache) {
        await_prerequisites();
      }
    }
    Place const place(params);
    if (int(blockIdx.x) / kCluster >= place.clusters) {
      if constexpr (kConstantCache) {
        await_prerequisites();
      }
      return;
    }
    Rows rows;
    loop<kPaged>(place, rows);
    Finish const finish;
    __syncthreads();
    stage(place, rows, finish);
    __syncthreads();
    conclude(place, finish);
  }
};

template <class Traits, bool kPaged>
__global__ void __launch_bounds__(DecodeAttention<Traits>::kThreads) decode_attention(DecodeParams const params) {
  DecodeAttention<Traits>::template run<kPaged>(params);
}

}  // namespace gemmsmith
