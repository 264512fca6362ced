// Memory that a filter needs, in numbers of its precision: `shared` once a signal, `scratch` once
// a thread.
#pragma once

#include <algorithm>
#include <cstdint>

#include "design.h"

namespace specgrad {

// A tile of vectors, each element complex; for rows also one of twiddles, and a row for lanes
// that have none.
inline int64_t circulant_scratch(const GridShape& grid, int lanes) {
  return std::max(2 * grid.rows * lanes, (4 * lanes + 1) * grid.columns);
}

// Cells handled at once when a gradient must be copied to be read.
constexpr int64_t kSpreadCells = 64;

// Cells that are computed together: enough sums to hide the latency of a multiply-add.
constexpr int cell_block(int lanes) { return lanes < 8 ? 8 : lanes; }

// Room for wrapped cells before the first and after the last, in whole cache lines.
inline int64_t band_margin(int width, int lanes) { return ceil_div(width + lanes, 16) * 16; }

inline int64_t band_shared(const FilterDesign& design, int lanes) {
  return design.grid_size() + 2 * band_margin(design.width, lanes);
}

inline int64_t band_scratch(const FilterDesign& design, int lanes) {
  const int64_t copied = (kSpreadCells + cell_block(lanes) + design.width) * design.hop + 4 * lanes;
  return std::max(circulant_scratch(design.grid, lanes), copied);
}

// Samples copied at once by the whole transform when it cannot work in place.
constexpr int64_t kFullStrip = 1024;

inline bool works_in_place(const FilterDesign& design, bool direct) {
  return direct && design.strategy == Strategy::full;
}

// Samples a thread filters before it saves what the next ones need.
inline int64_t detrend_tile(int64_t radius) { return std::max<int64_t>(2048, radius); }

// Samples between two points at which threads may part.
inline int64_t detrend_chunk(int64_t radius) { return std::max<int64_t>(1 << 16, 8 * radius); }

inline int64_t detrend_shared(int64_t d, int64_t radius) {
  return 2 * radius * ceil_div(d, detrend_chunk(radius));
}

// One level of a moving sum, rounded up so that whole vectors can be written.
inline int64_t moving_sum_level(int64_t length, int64_t window, int lanes) {
  return ceil_div(length + window - 1, 4 * lanes) * 4 * lanes;
}

// Levels it keeps: sums of 2, 4, ... samples for the digits of the window below one vector, then
// of one vector, four, sixteen, ...
inline int64_t moving_sum_levels(int64_t window, int lanes) {
  int64_t levels = 0;
  for (int64_t width = 2; width < lanes; width *= 2) levels += (window & width) != 0;
  for (int64_t width = lanes; width <= window; width *= 4) ++levels;
  return levels;
}

inline int64_t detrend_scratch(int64_t radius, bool box, int lanes) {
  const int64_t tile = detrend_tile(radius), window = 2 * radius + 1;
  const int64_t sums = box ? moving_sum_levels(window, lanes) * moving_sum_level(tile, window, lanes)
                           : tile + lanes;
  return 2 * tile + 2 * radius + 4 * lanes + sums;
}

inline int64_t shared_of(const FilterDesign& design, int lanes, bool direct) {
  switch (design.strategy) {
    case Strategy::dense: return 0;
    case Strategy::band: return band_shared(design, lanes);
    case Strategy::full:
    case Strategy::padded: return works_in_place(design, direct) ? 0 : design.grid_size();
    case Strategy::box:
    case Strategy::weights: return detrend_shared(design.d, design.radius());
  }
  return 0;
}

inline int64_t scratch_of(const FilterDesign& design, int lanes) {
  switch (design.strategy) {
    case Strategy::dense: return design.d + design.waves();
    case Strategy::band: return band_scratch(design, lanes);
    case Strategy::full:
    case Strategy::padded: return std::max(circulant_scratch(design.grid, lanes), kFullStrip);
    case Strategy::box:
    case Strategy::weights:
      return detrend_scratch(design.radius(), design.strategy == Strategy::box, lanes);
  }
  return 0;
}

}  // namespace specgrad
