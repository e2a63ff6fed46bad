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
 * Without that promise L2 fetches meanwhile what fills them later, where the call alone says which keys these are.
 *
 * A call may append a key and a value to each sequence (attention_decode_append.h).
 */
#pragma once

#include "gemmsmith/attention_decode_append.h"
#include "gemmsmith/attention_decode_combine.h"
#include "gemmsmith/attention_decode_reads.h"
#include "gemmsmith/dependent_launch.h"

namespace gemmsmith {

template <class Traits>
struct DecodeAttention : DecodeShape<Traits> {
  using Shape = DecodeShape<Traits>;
  using Reads = DecodeReads<Traits>;
  using Appender = DecodeAppender<Traits>;
  using Combine = DecodeCombine<Traits>;
  using Queries = typename Reads::Queries;
  using typename Shape::Buffer;
  using typename Shape::Element;
  using typename Shape::Place;
  using typename Shape::Rows;
  using Shape::kCluster;
  using Shape::kConstantCache;
  using Shape::kKeyBlocks;
  using Shape::kPending;
  using Shape::kPitch;
  using Shape::kRowBlocks;
  using Shape::kStages;
  using Shape::kSteps;
  using Shape::kTeamBytes;
  using Shape::kTile;
  using Shape::kTileBytes;
  using Shape::minus_infinity;
  using Shape::sync_team;
  using Shape::weight;

  using Scores = float[kKeyBlocks][kRowBlocks][4]; /* keys g and g + 8 of each sixteen */
  using Weights = uint32_t[kKeyBlocks][kRowBlocks][2];

  __device__ static void score(uint32_t buffer, Place const &place, Queries const &queries, Scores &scores) {
    constexpr int kChains = kKeyBlocks * kRowBlocks == 1 ? 2 : 1; /* products that do not wait for each other */
    float chains[kChains][kKeyBlocks][kRowBlocks][4] = {};
    uint32_t const from = Buffer::address_of(buffer, place.lane % 16, place.lane / 16);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int keys = 0; keys < kKeyBlocks; ++keys) {
        uint32_t words[4];
        load_matrices(words, Buffer::step_on(from + keys * 16 * kPitch, step));
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
    uint32_t const from = Buffer::address_of(buffer, lane % 8 + lane / 16 * 8, lane / 8 % 2);
#pragma unroll
    for (int keys = 0; keys < kKeyBlocks; ++keys) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        uint32_t words[4];
        load_transposed(words, Buffer::step_on(from + keys * 16 * kPitch, step));
#pragma unroll
        for (int block = 0; block < kRowBlocks; ++block) {
          multiply(rows.sums[step][block], words, weights[keys][block], Element{});
        }
      }
    }
  }

  template <bool kAppends>
  __device__ static Queries queries_of(Place const &place, Appender const &appender) {
    if constexpr (kAppends) {
      return Queries(place, appender.fresh);
    } else {
      return Queries(place);
    }
  }

  template <bool kPaged, bool kAppends>
  __device__ static void loop(Place const &place, Rows &rows) {
    DecodeParams const &params = place.params;
    uint8_t *const shared = dynamic_shared() + place.team * kTeamBytes;
    uint32_t const buffers = shared_address(shared);
    uint64_t const policy = leaves_first();
    int64_t const k_base = (kPaged ? 0 : place.batch * params.k_batch) + place.kv_head * params.k_head;
    int64_t const v_base = (kPaged ? 0 : place.batch * params.v_batch) + place.kv_head * params.v_head;
    Appender const appender(place);
    int const end = place.last - (kAppends && appender.here);
    using Stream = typename Reads::template Stream<kPaged>;
    Stream const keys{static_cast<Element const *>(params.k) + k_base, params.k_token, params.k_batch, end, buffers,
                      policy};
    Stream const values{static_cast<Element const *>(params.v) + v_base, params.v_token, params.v_batch, end,
                        buffers + kStages * kTileBytes, policy};
    int const tiles = place.tiles();
    int pages[kStages];
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) {
      pages[stage] = Reads::template look_up<kPaged>(place, stage);
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
        if (ready == stage && (kAppends || stage >= tiles || place.key(stage) + kTile <= written)) {
          fill(stage);
          ++ready;
        }
      }
      if constexpr (kAppends) {
        appender.compute_angles();
      }
      await_prerequisites();
    }
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) {
      if (stage >= ready) {
        fill(stage);
      }
    }
    if constexpr (kAppends) {
      appender.template fetch<kPaged>();
    }
    Queries const queries = queries_of<kAppends>(place, appender);
    int ahead = Reads::template look_up<kPaged>(place, kStages);
    for (int tile = 0, slot = 0; tile < tiles; ++tile) {
      Scores scores;
      Weights weights;
      await_copies<kPending>();
      sync_team(place);
      if (kAppends && tile == appender.tile) {
        appender.place_in(shared + slot * kTileBytes, false);
        sync_team(place);
      }
      score(keys.target + slot * kTileBytes, place, queries, scores);
      sync_team(place);
      keys.load(place, tile + kStages, tiles, slot, ahead);
      adjust(place, place.key(tile), scores);
      weigh(scores, rows, weights);
      await_copies<kPending>();
      sync_team(place);
      if (kAppends && tile == appender.tile) {
        appender.place_in(shared + (kStages + slot) * kTileBytes, true);
        sync_team(place);
      }
      accumulate(values.target + slot * kTileBytes, place, weights, rows);
      sync_team(place);
      values.load(place, tile + kStages, tiles, slot, ahead);
      ahead = Reads::template look_up<kPaged>(place, tile + 1 + kStages);
      slot = slot + 1 == kStages ? 0 : slot + 1;
    }
  }

  template <bool kPaged, bool kAppends>
  __device__ static void run(DecodeParams const &params) {
    if constexpr (Traits::kDependentLaunch) {
      release_dependents();
      if constexpr (!kConstantCache) {
        if (!kPaged && !kAppends && params.lengths == nullptr) {
          Reads::warm_l2(Place(params));
        }
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
    loop<kPaged, kAppends>(place, rows);
    typename Combine::Finish const finish;
    __syncthreads();
    Combine::stage(place, rows, finish);
    __syncthreads();
    Combine::conclude(place, finish);
  }
};

template <class Traits, bool kPaged, bool kAppends>
__global__ void __launch_bounds__(DecodeAttention<Traits>::kThreads) decode_attention(DecodeParams const params) {
  DecodeAttention<Traits>::template run<kPaged, kAppends>(params);
}

}  // namespace gemmsmith
