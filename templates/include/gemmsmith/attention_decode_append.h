/* How attention_decode.h's kernels append a key and a value to each sequence: turned by RoPE, as q is, they
 * go to the cache, and from the block's shared memory into the buffer of their tile. So no kernel ahead has
 * to write the cache, and all that is read from it was there before.
 */
#pragma once

#include "gemmsmith/attention_decode_shape.h"
#include "gemmsmith/rope_angles.h"
#include "gemmsmith/row_chunks.h"

namespace gemmsmith {

template <class Traits>
struct DecodeAppender : DecodeShape<Traits> {
  using Shape = DecodeShape<Traits>;
  using typename Shape::Element;
  using typename Shape::Place;
  using Shape::kChunks;
  using Shape::kConstantCache;
  using Shape::kFreshPitch;
  using Shape::kHeadDim;
  using Shape::kRows;
  using Shape::kTeamThreads;
  using Shape::kThreads;
  using Shape::kTile;
  using Raw = rows::Raw<Element>;

  static constexpr int kKeyRow = kRows, kValueRow = kRows + 1; /* of `fresh`, behind those of q */
  static constexpr int kPieces = (kRows + 2) * kChunks;        /* of eight elements */

  Place const &place;
  DecodeAppend const &call;
  float2 *angles; /* cosine and sine of each pair */
  uint8_t *fresh; /* rows of kFreshPitch bytes */
  bool here;      /* whether the block has the key, which is its last */
  int tile, row;  /* of the team's tiles the one that has it, and where; below 0: none */

  __device__ explicit DecodeAppender(Place const &of)
      : place(of),
        call(of.params.append),
        angles(reinterpret_cast<float2 *>(dynamic_shared() + Shape::kAppendAt)),
        fresh(reinterpret_cast<uint8_t *>(angles + kHeadDim / 2)),
        here(of.newest() >= of.first && of.newest() < of.last) {
    tile = place.tiles() - 1;
    row = here && tile >= 0 ? place.newest() - place.key(tile) : -1;
    tile = row >= 0 && row < kTile ? tile : -1;
  }

  /* Writes the angles of the newest token's position; they are there once the block has met. */
  __device__ void compute_angles() const {
    for (int pair = int(threadIdx.x); pair < call.pairs; pair += kThreads) {
      angles[pair] = rope::angle_of(place.told - 1, call.frequencies, call.wide, pair, call.factor);
    }
  }

  /* Eight elements of a row, and of halves their partners. */
  struct Piece {
    int row, column;
    bool there, turns;
    Raw own{}, partners{};

    __device__ Piece(DecodeAppender const &appender, int index) : row(index / kChunks), column(index % kChunks * 8) {
      Place const &place = appender.place;
      DecodeAppend const &call = appender.call;
      there = row < kRows ? row < place.rows : row <= kValueRow && appender.here;
      if (!there || column >= place.params.head_dim) {
        turns = false;
        return;
      }
      turns = row != kValueRow && column < 2 * call.pairs;
      Element const *const from = source(place, call, row);
      own = rows::load<true, false>(from + column, rows::kChunk);
      if (turns && !call.interleaved) {
        int const other = column < call.pairs ? column + call.pairs : column - call.pairs;
        partners = rows::load<true, false>(from + other, rows::kChunk);
      }
    }

    __device__ static Element const *source(Place const &place, DecodeAppend const &call, int row) {
      DecodeParams const &params = place.params;
      if (row < kRows) {
        return static_cast<Element const *>(params.q) +
               place.offset(place.first_row + row, params.q_batch, params.q_token, params.q_head);
      }
      return row == kKeyRow
                 ? static_cast<Element const *>(call.k) + place.batch * call.k_batch + place.kv_head * call.k_head
                 : static_cast<Element const *>(call.v) + place.batch * call.v_batch + place.kv_head * call.v_head;
    }

    __device__ void turn(DecodeAppend const &call, float2 const *angles) {
      float values[rows::kChunk], others[rows::kChunk];
      rows::to_floats(own, values);
      if (call.interleaved) {
#pragma unroll
        for (int at = 0; at < rows::kChunk; at += 2) {
          float2 const angle = angles[(column + at) / 2];
          rope::turn(values[at], values[at + 1], angle.x, angle.y);
        }
      } else {
        rows::to_floats(partners, others);
        bool const second = column >= call.pairs;
        float2 const *const from = angles + (second ? column - call.pairs : column);
#pragma unroll
        for (int at = 0; at < rows::kChunk; ++at) {
          float one = second ? others[at] : values[at], other = second ? values[at] : others[at];
          rope::turn(one, other, from[at].x, from[at].y);
          values[at] = second ? other : one;
        }
      }
      own = rows::from_floats<Element>(values);
    }
  };

  /* Reads q, and in the block that has them key and value, and turns what is to be turned: they are then in
   * `fresh`, and key and value in the cache. With kConstantCache the angles were computed ahead of the wait. */
  template <bool kPaged>
  __device__ void fetch() const {
    int index = int(threadIdx.x);
    Piece first(*this, index);
    if constexpr (!kConstantCache) {
      compute_angles();
    }
    __syncthreads();
    for (; index < kPieces; index += kThreads) {
      Piece piece = index < kThreads ? first : Piece(*this, index);
      if (piece.turns) {
        piece.turn(call, angles);
      }
      auto const &words = piece.own.words;
      *reinterpret_cast<uint4 *>(fresh + piece.row * kFreshPitch + 2 * piece.column) =
          make_uint4(words[0], words[1], words[2], words[3]);
      bool const cached = piece.row >= kRows && piece.there && piece.column < place.params.head_dim;
      if (cached && place.first_row == 0) { /* of the blocks that share a head the first */
        write<kPaged>(piece);
      }
    }
    __syncthreads();
  }

  template <bool kPaged>
  __device__ void write(Piece const &piece) const {
    DecodeParams const &params = place.params;
    int64_t page = place.batch, slot = place.newest();
    if constexpr (kPaged) {
      page = params.table[place.batch * params.table_stride + (slot >> params.page_shift)];
      slot &= (1 << params.page_shift) - 1;
      if (page < 0 || page >= call.pages) {
        return;
      }
    }
    bool const value = piece.row == kValueRow;
    int64_t const at = value ? page * params.v_batch + slot * params.v_token + place.kv_head * params.v_head
                             : page * params.k_batch + slot * params.k_token + place.kv_head * params.k_head;
    auto *const cache = static_cast<Element *>(const_cast<void *>(value ? params.v : params.k));
    rows::store<true>(cache + at + piece.column, piece.own, rows::kChunk);
  }

  /* Puts the key, or the value, into the buffer of the team's tile that has it, once all of the team's copies
   * are there. */
  __device__ void place_in(uint8_t *buffer, bool value) const {
    uint4 const *const from = reinterpret_cast<uint4 const *>(fresh + (value ? kValueRow : kKeyRow) * kFreshPitch);
    for (int chunk = place.member * 32 + place.lane; chunk < kChunks; chunk += kTeamThreads) {
      *reinterpret_cast<uint4 *>(buffer + Shape::Buffer::address_of(0, row, chunk)) = from[chunk];
    }
  }
};

}  // namespace gemmsmith
