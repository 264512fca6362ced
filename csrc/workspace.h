// Sizes of the pieces that filters work in, on which the memory they need depends.
#pragma once

#include <algorithm>
#include <cstdint>

#include "interface.h"

namespace specgrad {

// Cells handled at once when a gradient must be copied to be read.
constexpr int64_t kSpreadCells = 64;

// Cells that are computed together: enough sums to hide the latency of a multiply-add.
constexpr int cell_block(int lanes) { return lanes < 8 ? 8 : lanes; }

// Room for wrapped cells before the first and after the last, in whole cache lines.
inline int64_t band_margin(int width, int lanes) { return ceil_div(width + lanes, 16) * 16; }

// Numbers from a row of a circulant's grid to the next: whole tiles of columns.
inline int64_t grid_pitch(int64_t columns, int lanes) {
  return ceil_div(columns, 2 * lanes) * 2 * lanes;
}

// Blocks of columns that a mean adds one after the other; more are halved (mean.h).
constexpr int64_t kBlocksInALeaf = 16;

inline int64_t whole_vectors(int64_t count, int lanes) { return ceil_div(count, lanes) * lanes; }

// Rows side by side whose accumulators, four vectors of columns each, leave room for the gradient in
// a cache of the second level.
constexpr int64_t most_beside(int lanes, int64_t bytes) { return (1 << 17) / bytes / (4 * lanes); }

// Numbers for the sums of such rows: one set of accumulators, one for each halving, and the totals.
inline int64_t beside_scratch(int64_t columns, int lanes, int64_t bytes) {
  int64_t sets = 2;
  for (int64_t blocks = columns / (4 * lanes); blocks > kBlocksInALeaf; ++sets) {
    blocks = ceil_div(blocks, 2);
  }
  return sets * 4 * lanes * most_beside(lanes, bytes);
}

// Whether the whole transform finds such a grid in the gradient's own memory.
inline bool works_in_place(const FilterDesign& design, bool direct, int lanes) {
  const int64_t columns = design.columns();
  return direct && design.rows() * columns == design.d && grid_pitch(columns, lanes) == columns;
}

// Samples a thread filters before it saves what the next ones need.
inline int64_t detrend_tile(int64_t radius) { return std::max<int64_t>(2048, radius); }

// Samples between two points at which threads may part.
inline int64_t detrend_chunk(int64_t radius) { return std::max<int64_t>(1 << 16, 8 * radius); }

// Numbers of a tile with its neighbours, in whole vectors, and beyond them a block of up to 16.
inline int64_t detrend_extent(int64_t radius, int lanes) {
  return (ceil_div(detrend_tile(radius) + 2 * radius, lanes) + 16) * lanes;
}

// The sums that a moving sum is made of double up to one vector, then they grow fourfold.
constexpr int64_t wider_sums(int64_t width, int lanes) { return (width < lanes ? 2 : 4) * width; }

inline int64_t moving_sum_scratch(int64_t radius, int lanes) {
  const int64_t widest = std::max<int64_t>(2 * radius + 1, lanes);
  int64_t levels = 0;
  for (int64_t width = 2; width <= widest; width = wider_sums(width, lanes)) ++levels;
  return levels * detrend_extent(radius, lanes);
}

}  // namespace specgrad
