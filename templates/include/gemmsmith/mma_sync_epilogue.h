/* What a 2.x kernel writes for a sum: what finish.h says, plus beta * C.
 *
 * CUTLASS's epilogue moves accumulators through shared memory and hands each thread its pieces of
 * rows; `MmaSyncFinish` is the one operation that visits them. Where a piece lies is asked of the iterator
 * that stores it, so that any thread map will do, Volta's too. Device rows are tokens, but features
 * where D is column-major.
 */
#pragma once

#include "cutlass/array.h"
#include "cutlass/cutlass.h"
#include "cutlass/gemm/gemm.h"
#include "cutlass/matrix_coord.h"
#include "cutlass/numeric_conversion.h"
#include "gemmsmith/finish.h"

namespace gemmsmith {

/* A vector along the device's columns: what a thread needs of it is read once. It is read element by
 * element, because its address divides by the size of an element only. */
template <class Map, class Element, bool kUsed>
struct AlongColumns {
  static constexpr int kWidth = Map::kElementsPerAccess;
  static constexpr int kPieces = Map::Iterations::kColumn;
  cutlass::Array<Element, kWidth> pieces[kPieces];

  CUTLASS_DEVICE void begin(Element const *values, Element otherwise, int column, int columns) {
    CUTLASS_PRAGMA_UNROLL
    for (int piece = 0; piece < kPieces; ++piece) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kWidth; ++i) {
        int const at = column + piece * Map::Delta::kColumn + i;
        pieces[piece][i] = values != nullptr && at < columns ? values[at] : otherwise;
      }
    }
  }
  CUTLASS_DEVICE void step(Element const *, Element, int, int) {}
  template <class Compute>
  CUTLASS_DEVICE cutlass::Array<Compute, kWidth> at(int, int piece) const {
    return cutlass::NumericArrayConverter<Compute, Element, kWidth>{}(pieces[piece]);
  }
};

/* A vector along the device's rows: one value for each row of a step. */
template <class Map, class Element, bool kUsed>
struct AlongRows {
  static constexpr int kWidth = Map::kElementsPerAccess;
  using Iterations = typename Map::Iterations;
  Element values_of_step[Iterations::kRow * Iterations::kGroup * Iterations::kCluster];

  CUTLASS_DEVICE void begin(Element const *, Element, int, int) {}
  CUTLASS_DEVICE void step(Element const *values, Element otherwise, int first, int rows) {
    CUTLASS_PRAGMA_UNROLL
    for (int cluster = 0; cluster < Iterations::kCluster; ++cluster) {
      CUTLASS_PRAGMA_UNROLL
      for (int group = 0; group < Iterations::kGroup; ++group) {
        CUTLASS_PRAGMA_UNROLL
        for (int row = 0; row < Iterations::kRow; ++row) {
          int const at = first + row * Map::Delta::kRow + group * Map::Delta::kGroup + cluster * Map::Delta::kCluster;
          values_of_step[row + Iterations::kRow * (group + Iterations::kGroup * cluster)] =
              values != nullptr && at < rows ? values[at] : otherwise;
        }
      }
    }
  }
  template <class Compute>
  CUTLASS_DEVICE cutlass::Array<Compute, kWidth> at(int row, int) const {
    cutlass::Array<Compute, kWidth> result;
    result.fill(static_cast<Compute>(values_of_step[row]));
    return result;
  }
};

/* A vector that the kernel does not have. */
template <class Map, class Element>
struct AlongColumns<Map, Element, false> {
  CUTLASS_DEVICE void begin(Element const *, Element, int, int) {}
  CUTLASS_DEVICE void step(Element const *, Element, int, int) {}
};
template <class Map, class Element>
struct AlongRows<Map, Element, false> {
  CUTLASS_DEVICE void begin(Element const *, Element, int, int) {}
  CUTLASS_DEVICE void step(Element const *, Element, int, int) {}
};

/* `Tile` is CUTLASS's iterator over a block's tile of D, `Block` the shape of that. */
template <class Traits, bool kTransposed, class Block, class Tile>
class MmaSyncFinish {
 public:
  using ElementD = typename Traits::ElementD;
  using ElementBias = typename Traits::ElementBias;
  using Compute = typename Traits::ElementCompute;
  using Map = typename Tile::ThreadMap;
  static constexpr int kWidth = Map::kElementsPerAccess;

  template <class Element, bool kUsed>
  using OfTokens = cutlass::platform::conditional_t<kTransposed, AlongColumns<Map, Element, kUsed>,
                                                    AlongRows<Map, Element, kUsed>>;
  template <class Element, bool kUsed>
  using OfFeatures = cutlass::platform::conditional_t<kTransposed, AlongRows<Map, Element, kUsed>,
                                                      AlongColumns<Map, Element, kUsed>>;

  static constexpr bool kToInt8 = cutlass::platform::is_same<ElementD, int8_t>::value;
  static constexpr bool kPlain = Traits::kActivation == Activation::kNone && !Traits::kScaled && !kToInt8;

  struct SharedStorage {};

  struct Arguments {
    FinishArguments finish;
    float beta;
    float const *a_scale, *b_scale;
    int32_t const *a_zero, *b_sum;
    ElementBias const *bias;
    ElementD const *c; /* null where beta is 0 */
    ElementD *d;
    int64_t ldc, ldd, c_batch, d_batch;
  };

  struct Params {
    Arguments call;
    typename Tile::Params c, d;
  };

  static Params to_underlying_arguments(cutlass::gemm::GemmCoord, Arguments const &call, void *) {
    using Layout = typename Tile::Layout;
    return {call, typename Tile::Params(Layout(call.ldc)), typename Tile::Params(Layout(call.ldd))};
  }

  class Callbacks {
   public:
    CUTLASS_DEVICE
    Callbacks(Params const &params, int rows, int columns, int batch, int thread, cutlass::MatrixCoord origin)
        : call(params.call),
          rows(rows),
          columns(columns),
          c(params.c, const_cast<ElementD *>(moved(params.call.c, batch, params.call.c_batch)), {rows, columns},
            thread, origin),
          d(params.d, moved(params.call.d, batch, params.call.d_batch), {rows, columns}, thread, origin) {}

    CUTLASS_DEVICE void begin_epilogue() {
      int const column = d.thread_start_column();
      a_scale.begin(call.a_scale, 1.0f, column, columns);
      b_scale.begin(call.b_scale, 1.0f, column, columns);
      a_zero.begin(call.a_zero, 0, column, columns);
      b_sum.begin(call.b_sum, 0, column, columns);
      bias.begin(call.bias, ElementBias(0), column, columns);
    }

    /* Reads what the step needs while its accumulators are under way. */
    CUTLASS_DEVICE void begin_step(int) {
      if constexpr (Traits::kResidual) {
        of_c.clear(); /* what is not read is 0, and beta with it */
        c.load(of_c);
        ++c;
      }
      int const row = d.thread_start_row();
      a_scale.step(call.a_scale, 1.0f, row, rows);
      b_scale.step(call.b_scale, 1.0f, row, rows);
      a_zero.step(call.a_zero, 0, row, rows);
      b_sum.step(call.b_sum, 0, row, rows);
      bias.step(call.bias, ElementBias(0), row, rows);
    }

    CUTLASS_DEVICE void begin_row(int) {}

    template <class Accumulator>
    CUTLASS_DEVICE void visit(int, int row, int piece, int index, cutlass::Array<Accumulator, kWidth> const &sums) {
      cutlass::Array<Compute, kWidth> values = finished(row, piece, corrected(row, piece, sums));
      if constexpr (Traits::kResidual) {
        auto const addend = cutlass::NumericArrayConverter<Compute, ElementD, kWidth>{}(
            reinterpret_cast<cutlass::Array<ElementD, kWidth> const *>(&of_c)[index]);
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < kWidth; ++i) {
          values[i] += static_cast<Compute>(call.beta) * addend[i];
        }
      }
      reinterpret_cast<cutlass::Array<ElementD, kWidth> *>(&of_d)[index] =
          cutlass::NumericArrayConverter<ElementD, Compute, kWidth>{}(values);
    }

    CUTLASS_DEVICE void end_row(int) {}

    CUTLASS_DEVICE void end_step(int) {
      d.store(of_d);
      ++d;
    }

    CUTLASS_DEVICE void end_epilogue() {}

   private:
    template <class Element>
    CUTLASS_DEVICE static Element *moved(Element *matrix, int batch, int64_t stride) {
      return matrix == nullptr ? nullptr : matrix + batch * stride;
    }

    template <class Accumulator>
    CUTLASS_DEVICE cutlass::Array<Compute, kWidth> corrected(
        int row, int piece, cutlass::Array<Accumulator, kWidth> const &sums) const {
      if constexpr (Traits::kZeroPoint) { /* b_sum holds the negative sums of B's columns */
        auto const zero = a_zero.template at<int32_t>(row, piece);
        auto const sum = b_sum.template at<int32_t>(row, piece);
        cutlass::Array<Accumulator, kWidth> result;
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < kWidth; ++i) {
          result[i] = sums[i] + zero[i] * sum[i];
        }
        return cutlass::NumericArrayConverter<Compute, Accumulator, kWidth>{}(result);
      } else {
        return cutlass::NumericArrayConverter<Compute, Accumulator, kWidth>{}(sums);
      }
    }

    CUTLASS_DEVICE cutlass::Array<Compute, kWidth> finished(int row, int piece,
                                                            cutlass::Array<Compute, kWidth> const &sums) const {
      using Fragment = cutlass::Array<Compute, kWidth>;
      if constexpr (kPlain) {
        Fragment result;
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < kWidth; ++i) {
          result[i] = static_cast<Compute>(call.finish.alpha) * sums[i];
        }
        if constexpr (Traits::kBias) {
          Fragment const addend = bias.template at<Compute>(row, piece);
          CUTLASS_PRAGMA_UNROLL
          for (int i = 0; i < kWidth; ++i) {
            result[i] += addend[i];
          }
        }
        return result;
      } else {
        Finish<Traits::kActivation, Traits::kScaled, Traits::kBias, kToInt8, Fragment> const finish;
        if constexpr (Traits::kScaled && Traits::kBias) {
          return finish(sums, a_scale.template at<float>(row, piece), b_scale.template at<float>(row, piece),
                        bias.template at<float>(row, piece), call.finish);
        } else if constexpr (Traits::kScaled) {
          return finish(sums, a_scale.template at<float>(row, piece), b_scale.template at<float>(row, piece),
                        call.finish);
        } else if constexpr (Traits::kBias) {
          return finish(sums, bias.template at<float>(row, piece), call.finish);
        } else {
          return finish(sums, call.finish);
        }
      }
    }

    Arguments const &call;
    int rows, columns;
    Tile c, d;
    typename Tile::Fragment of_c, of_d;
    OfTokens<float, Traits::kScaled> a_scale;
    OfFeatures<float, Traits::kScaled> b_scale;
    OfTokens<int32_t, Traits::kZeroPoint> a_zero;
    OfFeatures<int32_t, Traits::kZeroPoint> b_sum;
    OfFeatures<ElementBias, Traits::kBias> bias;
  };

  CUTLASS_HOST_DEVICE
  MmaSyncFinish(Params const &params_, SharedStorage const &) : params(params_) {}

  template <class Problem> /* (rows, columns, batch) */
  CUTLASS_DEVICE Callbacks get_callbacks(cutlass::gemm::GemmCoord tile, int thread, Problem problem) const {
    return Callbacks(params, cute::get<0>(problem), cute::get<1>(problem), tile.k(), thread,
                     {tile.m() * Block::kM, tile.n() * Block::kN});
  }

 private:
  Params const &params;
};

}  // namespace gemmsmith
