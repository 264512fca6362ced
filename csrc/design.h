// How one layer is filtered, as numbers that the plan designed (specgrad_kernels/design.py).
#pragma once

#include <cstdint>
#include <stdexcept>
#include <vector>

namespace specgrad {

constexpr double kPi = 3.14159265358979323846;

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// A real circulant of size columns * rows, as column transforms, twiddles and row transforms.
struct GridShape {
  int64_t rows = 0;     // length of the column transforms; grid rows of the coarse signal
  int64_t columns = 0;  // length of the row transforms; contiguous
};

enum class Strategy { dense, band, full, padded, box, weights };

enum class Boundary { count, circular, reflect, replicate };

struct FilterDesign {
  Strategy strategy = Strategy::dense;
  bool double_precision = false;
  int64_t d = 0;
  int hop = 1;                             // samples a coarse cell
  int width = 0;                           // cells under the window
  GridShape grid;                          // of the circulant
  Boundary boundary = Boundary::count;     // of a local average
  double cost = 0;
  std::vector<double> taps;                // hop * width
  // band, padded: eigenvalues of the first bins, all others 0; full: all others like the last,
  // with the transforms' factor 1/size in them. dense: what is removed of the first bins. box,
  // weights: the weights at distances 0, 1, ...
  std::vector<double> gains;

  int64_t grid_size() const { return grid.rows * grid.columns; }
  int64_t waves() const { return 2 * static_cast<int64_t>(gains.size()) - 1; }
  int64_t radius() const { return static_cast<int64_t>(gains.size()) - 1; }

  static constexpr size_t kIntegers = 9;
  // strategy, precision, d, hop, width, rows, columns, number of gains, boundary; then the cost,
  // the taps and the gains. `values` advances behind what was read.
  static FilterDesign read(const int64_t* integers, const double*& values, const double* end) {
    FilterDesign design;
    design.strategy = static_cast<Strategy>(integers[0]);
    design.double_precision = integers[1] != 0;
    design.d = integers[2];
    design.hop = static_cast<int>(integers[3]);
    design.width = static_cast<int>(integers[4]);
    design.grid = {integers[5], integers[6]};
    design.boundary = static_cast<Boundary>(integers[8]);
    const int64_t taps = integers[3] * integers[4], gains = integers[7];
    if (taps < 0 || gains < 0 || end - values < 1 + taps + gains) {
      throw std::invalid_argument("specgrad: a design holds fewer numbers than it says");
    }
    design.cost = *values++;
    design.taps.assign(values, values + taps);
    design.gains.assign(values + taps, values + taps + gains);
    values += taps + gains;
    return design;
  }
};

}  // namespace specgrad
