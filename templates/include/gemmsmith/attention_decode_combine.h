/* How attention_decode.h's kernels end: what teams, blocks and clusters found is put together and written. */
#pragma once

#include "gemmsmith/attention_decode_shape.h"

namespace gemmsmith {

template <class Traits>
struct DecodeCombine : DecodeShape<Traits> {
  using Shape = DecodeShape<Traits>;
  using typename Shape::Element;
  using typename Shape::Place;
  using typename Shape::Rows;
  using Shape::kCluster;
  using Shape::kHeadDim;
  using Shape::kPartialFloats;
  using Shape::kRowBlocks;
  using Shape::kRows;
  using Shape::kSteps;
  using Shape::kSumPitch;
  using Shape::kSums;
  using Shape::kTeams;
  using Shape::kThreads;
  using Shape::minus_infinity;
  using Shape::weight;

  struct Partial { /* four neighbours of a row's output, before they are divided by `total` */
    float4 sums;
    float most; /* the largest score, in base 2 */
    float total;
  };

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
};

}  // namespace gemmsmith
