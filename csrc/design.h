// How one layer is filtered, as numbers that the plan designed (specgrad_kernels/design.py).
#pragma once

#include <cstdint>
#include <functional>
#include <numeric>
#include <vector>

namespace specgrad {

constexpr double kPi = 3.14159265358979323846;

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

inline int64_t product(const std::vector<int>& factors) {
  return std::accumulate(factors.begin(), factors.end(), int64_t{1}, std::multiplies<>());
}

enum class Strategy { dense, band, full, box, weights };

enum class Boundary { count, circular, reflect, replicate };

struct FilterDesign {
  Strategy strategy = Strategy::dense;
  bool double_precision = false;
  int64_t d = 0;
  int hop = 1;                             // samples a coarse cell
  int width = 0;                           // cells under the window
  std::vector<int> down, along;            // radices of the passes along columns and rows
  Boundary boundary = Boundary::count;     // of a local average
  bool removes_mean = false;               // as a whole, and more
  double cost = 0;
  std::vector<double> taps;                // hop * width
  // band: eigenvalues of the first bins, all others 0; full: all others like the last, with the
  // transforms' factor 1/size in them. dense: what is removed of the first bins. box, weights: the
  // weights at distances 0, 1, ...
  std::vector<double> gains;

  int64_t rows() const { return product(down); }  // of the circulant's grid
  int64_t columns() const { return product(along); }
  int64_t waves() const { return 2 * static_cast<int64_t>(gains.size()) - 1; }
  int64_t radius() const { return static_cast<int64_t>(gains.size()) - 1; }
};

}  // namespace specgrad
