// Everything that Python hands to the kernels: enumerations and fields, all matched by name.
// `From` reads one Python object: number(name), text(name), list<T>(name).
#pragma once

#include <cstdint>
#include <functional>
#include <iterator>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

namespace specgrad {

constexpr double kPi = 3.14159265358979323846;

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

template <class Number>
int64_t product(const std::vector<Number>& factors) {
  return std::accumulate(factors.begin(), factors.end(), int64_t{1}, std::multiplies<int64_t>());
}

// Each enumeration is followed by the names of its values, in their order.
enum class Strategy { mean, dense, band, full, box, weights, wide };
constexpr const char* kStrategies[] = {"mean", "dense",   "band", "full",
                                       "box",  "weights", "wide"};

enum class Boundary { count, circular, reflect, replicate };
constexpr const char* kBoundaries[] = {"count", "circular", "reflect", "replicate"};

enum class DType { f32, f64, bf16, f16 };
constexpr const char* kDTypes[] = {"float32", "float64", "bfloat16", "float16"};

// Why a call wrote nothing; `done` has filtered everything.
enum class Outcome { done, unknown_layout, interleaved, negated };
constexpr const char* kOutcomes[] = {"done", "unknown_layout", "interleaved", "negated"};

template <class Enumeration, size_t Count>
Enumeration named(const char* const (&names)[Count], const std::string& name) {
  for (size_t i = 0; i < Count; ++i) {
    if (name == names[i]) return static_cast<Enumeration>(i);
  }
  throw std::invalid_argument("specgrad: no value of an enumeration is called '" + name + "'");
}

// How one signal length is filtered; specgrad_kernels/design.py computes the numbers.
struct FilterDesign {
  Strategy strategy = Strategy::dense;
  bool double_precision = false;
  int64_t d = 0;                         // samples of the signal
  int hop = 1;                           // samples a coarse cell
  int width = 0;                         // cells under the window
  Boundary boundary = Boundary::count;   // of a local average
  bool removes_mean = false;             // completely, and other bins besides
  double cost = 0;                       // in the units of the cost model
  int64_t row_columns = 0;               // of a mean: a row is so many columns
  int row_inner = 1;                     // of so many samples
  std::vector<double> taps;              // [hop * width]; of wide weights, at distances 0, 1, ...
  std::vector<int64_t> column_radices;   // passes of the circulant's column transforms
  std::vector<int64_t> row_radices;      // and of its row transforms
  // band: eigenvalues of the first bins, all others 0. full: all others equal the last. Both
  // include the transforms' factor 1/size, as does wide, the spectrum of its weights. dense: share removed of the first bins. box, weights:
  // weights at distances 0, 1, ...
  std::vector<double> gains;

  template <class From>
  explicit FilterDesign(const From& from)
      : strategy(named<Strategy>(kStrategies, from.text("strategy"))),
        double_precision(from.number("double_precision") != 0),
        d(static_cast<int64_t>(from.number("d"))),
        hop(static_cast<int>(from.number("hop"))),
        width(static_cast<int>(from.number("width"))),
        boundary(named<Boundary>(kBoundaries, from.text("boundary"))),
        removes_mean(from.number("removes_mean") != 0),
        cost(from.number("cost")),
        row_columns(static_cast<int64_t>(from.number("row_columns"))),
        row_inner(static_cast<int>(from.number("row_inner"))),
        taps(from.template list<double>("taps")),
        column_radices(from.template list<int64_t>("column_radices")),
        row_radices(from.template list<int64_t>("row_radices")),
        gains(from.template list<double>("gains")) {}

  int64_t rows() const { return product(column_radices); }  // of the circulant's grid
  int64_t columns() const { return product(row_radices); }
  int64_t waves() const { return 2 * static_cast<int64_t>(gains.size()) - 1; }
  int64_t radius() const { return static_cast<int64_t>(gains.size()) - 1; }
};

// One gradient of a call: how it lies in memory, and the signals in it.
struct TensorLayout {
  DType dtype = DType::f32;
  std::vector<int64_t> shape, strides;                  // as torch gives them, in elements
  int64_t design = -1;                                  // index of its FilterDesign; -1: untouched
  int64_t extent = 0;                                   // bytes it spans; 0 when it is empty
  std::vector<int64_t> stack_sizes, stack_strides;      // dimensions that number the signals
  std::vector<int64_t> signal_sizes, signal_strides;    // dimensions of one signal, merged

  template <class From>
  explicit TensorLayout(const From& from)
      : dtype(named<DType>(kDTypes, from.text("dtype"))),
        shape(from.template list<int64_t>("shape")),
        strides(from.template list<int64_t>("strides")),
        design(static_cast<int64_t>(from.number("design"))),
        extent(static_cast<int64_t>(from.number("extent"))),
        stack_sizes(from.template list<int64_t>("stack_sizes")),
        stack_strides(from.template list<int64_t>("stack_strides")),
        signal_sizes(from.template list<int64_t>("signal_sizes")),
        signal_strides(from.template list<int64_t>("signal_strides")) {
    if (shape.size() != strides.size() || stack_sizes.size() != stack_strides.size() ||
        signal_sizes.size() != signal_strides.size()) {
      throw std::invalid_argument("specgrad: a layout has sizes without strides");
    }
  }
};

}  // namespace specgrad
