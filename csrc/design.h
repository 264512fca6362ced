// How one layer is filtered: strategy, window and transform sizes, chosen once by a cost model.
//
// Torch-free, so that the operator and the Python module share it. The mathematics is that of
// a band projector computed on a coarse grid: with d = cells * hop samples, the projection on
// |k| < cutoff is spread -> circulant of size `cells` -> transpose of spread.
#pragma once

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "radices.h"

namespace specgrad {

constexpr double kPi = 3.14159265358979323846;

enum class Strategy { identity, dense, band, full, padded };

inline const char* strategy_name(Strategy strategy) {
  switch (strategy) {
    case Strategy::identity: return "identity";
    case Strategy::dense: return "dense";
    case Strategy::band: return "band";
    case Strategy::full: return "full";
    case Strategy::padded: return "padded";
  }
  return "";
}

enum class Precision { single, double_ };

inline double epsilon(Precision precision) {
  return precision == Precision::single ? 1.2e-7 : 2.2e-16;
}

// Aliasing that a window may leave, as an operator norm: a bound for every gradient, not an
// average over random ones. Real gradients are dominated by the very band that is removed.
inline double alias_tolerance(Precision precision) {
  return precision == Precision::single ? 7e-7 : 5e-15;
}

// ---- Window --------------------------------------------------------------------------------

inline double bessel_i0(double x) {
  double term = 1, sum = 1;
  for (int k = 1; term > 1e-18 * sum; ++k) {
    term *= (x / (2 * k)) * (x / (2 * k));
    sum += term;
  }
  return sum;
}

// Kaiser-Bessel window of `width` cells of `hop` samples for an oversampled coarse grid.
inline std::vector<double> window_taps(int hop, int width, double oversampling) {
  const double ratio = width / oversampling * (oversampling - 0.5);
  const double beta = kPi * std::sqrt(std::max(ratio * ratio - 0.8, 0.1));
  const double norm = bessel_i0(beta);
  const int count = hop * width;
  std::vector<double> taps(count);
  for (int j = 0; j < count; ++j) {
    const double u = (2 * j + 1.0 - count) / count;
    taps[j] = bessel_i0(beta * std::sqrt(1 - u * u)) / norm;
  }
  return taps;
}

// Spectrum of a symmetric window at `frequency` cycles a sample, about the window's centre.
inline double window_response(const std::vector<double>& taps, double frequency) {
  const int count = static_cast<int>(taps.size());
  double sum = 0;
  for (int j = 0; j < count / 2; ++j) {
    sum += 2 * taps[j] * std::cos(kPi * frequency * (count - 1 - 2 * j));
  }
  return count % 2 ? sum + taps[count / 2] : sum;
}

// Operator norm of the aliasing error of spread and interpolation over the suppressed band.
inline double alias_error(const std::vector<double>& taps, int hop, double band_edge) {
  double worst = 0;
  for (int step = 0; step <= 8; ++step) {
    const double frequency = band_edge * step / 8;
    const double response = window_response(taps, frequency);
    double aliases = 0;
    for (int image = 1; image < hop; ++image) {
      const double leak = window_response(taps, frequency + static_cast<double>(image) / hop);
      aliases += leak * leak;
    }
    worst = std::max(worst, std::sqrt(2 * aliases) / std::abs(response));
  }
  return worst;
}

// ---- Transform sizes -------------------------------------------------------------------------

// Vector operations of a transform of length n, for each of its n vector elements.
inline double transform_cost(int64_t n) {
  double cost = 0;
  for (int radix : radices(n)) cost += pass_cost(radix);
  return cost;
}

// A real circulant of size columns * rows, as column transforms, twiddles and row transforms.
struct GridShape {
  int64_t rows = 0;     // length of the column transforms; grid rows of the coarse signal
  int64_t columns = 0;  // length of the row transforms; contiguous
  double cost = std::numeric_limits<double>::infinity();
};

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

inline GridShape choose_grid(int64_t size, int lanes) {
  GridShape best;
  constexpr int64_t kInCache = 1152;  // elements of a tile that the first-level cache nearly holds
  constexpr int64_t kLongest = 4096;  // and the second-level cache
  for (int64_t rows = 1; rows <= std::min(size, kLongest); ++rows) {
    if (size % rows) continue;
    const int64_t columns = size / rows;
    if (!transformable(rows) || !transformable(columns)) continue;
    const double tiles = static_cast<double>(ceil_div(columns, 2 * lanes));
    const double groups = static_cast<double>(ceil_div(rows / 2 + 1, lanes));
    // Parts of a tile are copied, and their spectra taken apart, in steps of their own.
    const bool packed = columns % (2 * lanes) == 0;
    double cost = tiles * rows * (2 * transform_cost(rows) + (packed ? 0 : 40)) +
                  groups * (columns * (2 * transform_cost(columns) + (packed ? 38 : 90)) + 100);
    if (std::max(rows, columns) > kInCache) cost *= 1.4;
    if (columns > kLongest) cost *= 2;
    if (cost < best.cost) best = {rows, columns, cost};
  }
  return best;
}

// ---- The choice ------------------------------------------------------------------------------

struct FftDesign {
  Strategy strategy = Strategy::identity;
  int64_t d = 0;
  int64_t cutoff = 0;
  int hop = 1;               // samples a coarse cell
  int width = 0;             // cells under the window
  std::vector<double> taps;  // hop * width
  GridShape grid;            // of the circulant
  double error_bound = 0;    // operator norm, aliasing and rounding
  double cost = std::numeric_limits<double>::infinity();

  int64_t grid_size() const { return grid.rows * grid.columns; }
};

// Rounding errors that follow each other add up like a random walk; the factors below are at
// least twice what white noise, constants and waves showed against long double.
//
// `amplification` is by how much the circulant's gains enlarge what rounding left behind.
inline double rounding_error(Precision precision, double amplification = 1) {
  return (3 + amplification) * epsilon(precision);
}

// Passes of a transform there and back, and in `padded` of the one that made the gains.
inline double transform_rounding(Precision precision, int64_t size) {
  return rounding_error(precision, 0.5 * std::log2(static_cast<double>(size)));
}

// `count` vectors of a basis, subtracted one after the other.
inline double dense_rounding(Precision precision, int64_t count) {
  return rounding_error(precision, 2 + 0.5 * std::sqrt(static_cast<double>(count)));
}

// A sum of weighted neighbours, 0 .. radius samples away on both sides.
inline double detrend_rounding(Precision precision, int64_t radius, bool box) {
  // Moving averages are pairwise sums.
  return rounding_error(precision, box ? 1 : 1 + 0.25 * std::sqrt(static_cast<double>(radius)));
}

// Windows for a small oversampling fall off so steeply that undoing them amplifies rounding.
constexpr double kLargestAmplification = 8;

inline FftDesign design_dense(int64_t d, int64_t cutoff, Precision precision, int lanes) {
  FftDesign design;
  design.strategy = Strategy::dense;
  design.d = d;
  design.cutoff = cutoff;
  design.error_bound = dense_rounding(precision, 2 * cutoff - 1);
  const double vectors = static_cast<double>(2 * cutoff - 1) * static_cast<double>(ceil_div(d, lanes));
  // A basis that outgrows the first caches is read from slower memory, twice.
  const double basis_bytes = vectors * lanes * (precision == Precision::single ? 4 : 8);
  design.cost = 2 * vectors * (1 + std::min(basis_bytes / (1 << 18), 4.0)) + 50;
  return design;
}

// The narrowest window that meets the tolerance with this hop; infinite cost if there is none.
inline FftDesign design_band(int64_t d, int64_t cutoff, int hop, Precision precision, int lanes) {
  FftDesign design;
  design.strategy = Strategy::band;
  design.d = d;
  design.cutoff = cutoff;
  design.hop = hop;
  if (d % hop) return design;
  const int64_t cells = d / hop;
  const double oversampling = static_cast<double>(cells) / (2.0 * cutoff);
  if (oversampling < 1.15) return design;
  const double band_edge = static_cast<double>(cutoff - 1) / static_cast<double>(d);
  // Aliasing falls like exp(-pi * width * sqrt(1 - 1/oversampling)): start just below that.
  const double decay = kPi * std::sqrt(1 - 1 / oversampling);
  const int first = std::max(4, static_cast<int>(-std::log(alias_tolerance(precision)) / decay) - 2);
  for (int width = first; width <= first + 8 && width < cells; ++width) {
    design.taps = window_taps(hop, width, oversampling);
    const double alias = alias_error(design.taps, hop, band_edge);
    if (alias > alias_tolerance(precision)) continue;
    const double amplification =
        window_response(design.taps, 0) / window_response(design.taps, band_edge);
    if (amplification > kLargestAmplification) return design;
    design.width = width;
    design.error_bound = alias + rounding_error(precision, amplification);
    design.grid = choose_grid(cells, lanes);
    const double spread = static_cast<double>(cells) * (ceil_div(hop * width, lanes) + 4.0);
    const double offsets = width + std::max(lanes / hop, 1) - 1;
    const double interpolate = static_cast<double>(ceil_div(d, lanes)) * (offsets + 3);
    design.cost = spread + interpolate + design.grid.cost + 200;
    return design;
  }
  return design;
}

inline int64_t padded_size(int64_t d) {
  int64_t size = 4;
  while (size < 2 * d - 1) size *= 2;
  return size;
}

// The whole spectrum. A length with a large prime is embedded in a power of two.
inline FftDesign design_full(int64_t d, int64_t cutoff, Precision precision, int lanes) {
  FftDesign design;
  design.d = d;
  design.cutoff = cutoff;
  const bool direct = transformable(d);
  design.strategy = direct ? Strategy::full : Strategy::padded;
  design.grid = choose_grid(direct ? d : padded_size(d), lanes);
  design.error_bound = transform_rounding(precision, design.grid_size());
  design.cost = design.grid.cost + 2.0 * ceil_div(d, lanes);
  return design;
}

// Dense bases above this many entries are refused: they would outgrow the gradients.
constexpr int64_t kLargestDenseBasis = int64_t{1} << 24;

inline FftDesign design_fft(int64_t d, int64_t cutoff, Precision precision, int lanes,
                            const std::string& strategy) {
  FftDesign best;
  best.d = d;
  if (cutoff == 0) {
    best.cost = 0;
    return best;
  }
  const bool any = strategy == "auto";
  const bool dense_fits = (2 * cutoff - 1) * d <= kLargestDenseBasis;
  if (strategy == "full") return design_full(d, cutoff, precision, lanes);
  if (strategy == "dense" || (any && dense_fits && cutoff <= 64)) {
    best = design_dense(d, cutoff, precision, lanes);
  }
  if (strategy == "band" || any) {
    for (int hop = 2; hop <= 64 && d % hop == 0; hop *= 2) {
      FftDesign candidate = design_band(d, cutoff, hop, precision, lanes);
      if (candidate.cost < best.cost) best = candidate;
    }
  }
  if (any) {
    FftDesign full = design_full(d, cutoff, precision, lanes);
    if (full.cost < best.cost) best = full;
  }
  if (!(best.cost < std::numeric_limits<double>::infinity()) ||
      (best.strategy == Strategy::dense && !dense_fits)) {
    throw std::invalid_argument("strategy '" + strategy + "' does not fit a layer of " +
                                std::to_string(d) + " samples with cutoff " +
                                std::to_string(cutoff) + "; use 'auto' or 'full'");
  }
  return best;
}

// Eigenvalues, for k = 0 .. size/2, of the circulant that a design solves on its grid, with the
// transforms' factor 1/size in them. Band and padded yield the low band, to be subtracted; full
// yields the filtered signal itself.
std::vector<double> circulant_gains(const FftDesign& design);

}  // namespace specgrad
