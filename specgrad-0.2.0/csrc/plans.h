// What the kernels need for one layer, in the precision they compute in.
#pragma once

#include <cstdint>
#include <vector>

#include "interface.h"
#include "signal.h"

namespace specgrad {

// Memory of a table.
struct Span {
  const void* first;
  int64_t bytes;
};
using Spans = std::vector<Span>;

template <class... Vectors>
Spans spans_of(const Vectors&... vectors) {
  return {{vectors.data(),
           static_cast<int64_t>(vectors.size() * sizeof(typename Vectors::value_type))}...};
}

inline Spans operator+(Spans spans, const Spans& others) {
  spans.insert(spans.end(), others.begin(), others.end());
  return spans;
}

constexpr int kLargestPrime = 1024;

// A transform over vector elements: passes of mixed radix, in place, output digit-reversed.
template <class T>
struct TransformTables {
  struct Pass {
    int radix, length;       // of its blocks
    size_t twiddles, roots;  // where its numbers start
  };
  int length = 1;
  std::vector<Pass> passes;
  std::vector<T> twiddles;    // for each q of a pass, radix - 1 pairs (re, im)
  std::vector<T> roots;       // for odd radices above 3: e^(-2 pi i j / radix), pairs
  std::vector<int> position;  // where frequency k ends up

  Spans tables() const { return spans_of(passes, twiddles, roots, position); }
};

constexpr int64_t kTwiddleBlock = 32;

// A real circulant on a grid of rows x columns.
template <class T>
struct CirculantTables {
  int64_t rows = 0;
  int64_t columns = 0;
  TransformTables<T> down;   // length rows
  TransformTables<T> along;  // length columns
  int64_t pitch = 0;       // numbers from a row to the next
  int64_t groups = 0;      // of `lanes` half-spectrum rows
  // Twiddles of the rows of a group at column m2, a vector of real and one of imaginary parts:
  // coarse[group][m2], or in large grids coarse[group][m2 / 32] * fine[group][m2 % 32].
  int64_t spans = 0;  // of columns in coarse
  std::vector<T> coarse, fine;
  // Gains of frequency k1 + rows * k2, ordered like the output of `along`: for each position
  // an offset into `gains` (or -1 where all are zero), to which k1 * step is added.
  std::vector<T> gains;
  std::vector<int64_t> gain_offset;
  std::vector<int> gain_step;
  // The power of two of the transforms' factor 1/size, with which the way back ends: until then
  // numbers are larger than the signal's, and the smallest keep their digits.
  T scale = 1;

  Spans tables() const {
    return down.tables() + along.tables() + spans_of(coarse, fine, gains, gain_offset, gain_step);
  }
};

template <class T>
struct BandTables {
  int64_t cells = 0;
  int hop = 0;
  int width = 0;
  int tap_vectors = 0;      // that the windows of the cells starting in one vector reach
  std::vector<T> taps;      // [lanes / hop or 1][tap_vectors][lanes], each row a cell's window
  int offsets = 0;          // coarse cells that touch one vector of samples
  std::vector<T> spline;    // [hop / lanes or 1][offsets][lanes]
  CirculantTables<T> circulant;

  int lead() const { return width / 2; }  // cells by which a window starts before its own cell
  Spans tables() const { return spans_of(taps, spline) + circulant.tables(); }
};

// Rows of a signal, in whose order its mean is summed.
struct MeanTables {
  int64_t columns = 0;
  int inner = 1;
};

template <class T>
struct DenseTables {
  int64_t count = 0;     // orthonormal basis vectors
  std::vector<T> basis;  // [count][d]

  Spans tables() const { return spans_of(basis); }
};

template <class T>
struct DetrendTables {
  Boundary boundary = Boundary::count;
  int64_t radius = 0;
  std::vector<T> weights;         // 2 * radius + 1; empty for a moving average
  std::vector<double> one_sided;  // sum of the weights at distances 1 .. i, for i <= radius

  Spans tables() const { return spans_of(weights, one_sided); }
};

// Weights that reach so far that their spectrum is cheaper.
template <class T>
struct WideTables {
  Boundary boundary = Boundary::count;
  int64_t radius = 0;
  double centre = 0;
  std::vector<double> one_sided;  // as of a DetrendTables
  CirculantTables<T> circulant;

  Spans tables() const { return spans_of(one_sided) + circulant.tables(); }
};

}  // namespace specgrad
