// Tables of a design, rounded once from double to the computing precision.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "interface.h"
#include "plans.h"
#include "workspace.h"

namespace specgrad {

template <class T>
TransformTables<T> make_transform(std::vector<int64_t> radices) {
  if (radices.empty()) radices = {1};
  TransformTables<T> plan;
  plan.length = static_cast<int>(product(radices));
  const auto add_root = [](std::vector<T>& list, double turns) {
    list.push_back(static_cast<T>(std::cos(-2 * kPi * turns)));
    list.push_back(static_cast<T>(std::sin(-2 * kPi * turns)));
  };
  int block = plan.length;
  for (const int64_t each : radices) {
    const int radix = static_cast<int>(each);
    plan.passes.push_back({radix, block, plan.twiddles.size(), plan.roots.size()});
    for (int q = 0; q < block / radix; ++q) {
      for (int s = 1; s < radix; ++s) {
        add_root(plan.twiddles, static_cast<double>(static_cast<int64_t>(q) * s % block) / block);
      }
    }
    if (radix % 2 && radix > 3) {
      for (int j = 0; j < radix; ++j) add_root(plan.roots, static_cast<double>(j) / radix);
    }
    block /= radix;
  }
  plan.position.resize(plan.length);
  for (int k = 0; k < plan.length; ++k) {
    int64_t position = 0, rest = k, stride = plan.length;
    for (const int64_t radix : radices) {
      stride /= radix;
      position += rest % radix * stride;
      rest /= radix;
    }
    plan.position[k] = static_cast<int>(position);
  }
  return plan;
}

template <class T>
void fill_twiddles(CirculantTables<T>& plan, int lanes) {
  const int64_t size = plan.rows * plan.columns;
  // A full table is as large as the grid itself: affordable only for small grids.
  const int64_t block = size <= (1 << 15) ? 1 : kTwiddleBlock;
  plan.spans = ceil_div(plan.pitch, block);
  const auto fill = [&](std::vector<T>& table, int64_t count, int64_t step) {
    table.assign(plan.groups * count * 2 * lanes, T(0));
    for (int64_t k = 0; k <= plan.rows / 2; ++k) {
      for (int64_t m = 0; m < count; ++m) {
        const double turns = static_cast<double>(k * m * step % size) / static_cast<double>(size);
        T* element = table.data() + (k / lanes * count + m) * 2 * lanes + k % lanes;
        element[0] = static_cast<T>(std::cos(-2 * kPi * turns));
        element[lanes] = static_cast<T>(std::sin(-2 * kPi * turns));
      }
    }
  };
  fill(plan.coarse, plan.spans, block);
  if (block > 1) fill(plan.fine, block, 1);
}

// Lays the gains out by output position; runs that are all zero or all equal are not stored.
template <class T>
void fill_gains(CirculantTables<T>& plan, const FilterDesign& design, int lanes) {
  const int64_t size = plan.rows * plan.columns;
  const int64_t run = plan.groups * lanes;
  const int64_t given = static_cast<int64_t>(design.gains.size());
  const double later = design.strategy == Strategy::full ? design.gains.back() : 0.0;
  // The column step doubles its spectrum.
  const double factor = 0.5 / static_cast<double>(plan.scale);
  const auto gain_at = [&](int64_t k) {
    const int64_t bin = std::min(k % size, size - k % size);
    return factor * (bin < given ? design.gains[bin] : later);
  };
  plan.gain_offset.assign(plan.columns, -1);
  plan.gain_step.assign(plan.columns, 0);
  for (int64_t k2 = 0; k2 < plan.columns; ++k2) {
    const int position = plan.along.position[k2];
    const int64_t first = plan.rows * k2;
    bool constant = true;
    for (int64_t k1 = 1; k1 <= plan.rows / 2; ++k1) {
      constant = constant && gain_at(first + k1) == gain_at(first);
    }
    if (constant && gain_at(first) == 0) continue;
    plan.gain_offset[position] = static_cast<int64_t>(plan.gains.size());
    plan.gain_step[position] = constant ? 0 : 1;
    for (int64_t k1 = 0; k1 < (constant ? lanes : run); ++k1) {
      plan.gains.push_back(static_cast<T>(gain_at(first + (constant ? 0 : k1))));
    }
  }
}

template <class T>
CirculantTables<T> make_circulant(const FilterDesign& design, int lanes) {
  CirculantTables<T> plan;
  plan.rows = design.rows();
  plan.columns = design.columns();
  plan.pitch = grid_pitch(plan.columns, lanes);
  plan.groups = ceil_div(plan.rows / 2 + 1, lanes);
  plan.scale = static_cast<T>(std::ldexp(1.0, -std::ilogb(plan.rows * plan.columns)));
  plan.down = make_transform<T>(design.column_radices);
  plan.along = make_transform<T>(design.row_radices);
  fill_twiddles(plan, lanes);
  fill_gains(plan, design, lanes);
  return plan;
}

template <class T>
BandTables<T> make_band(const FilterDesign& design, int lanes) {
  BandTables<T> plan;
  plan.cells = design.d / design.hop;
  plan.hop = design.hop;
  plan.width = design.width;
  const int cells_a_vector = std::max(lanes / plan.hop, 1);
  const int segments = std::max(plan.hop / lanes, 1);
  const int reach = (plan.width + cells_a_vector - 1) * plan.hop;
  plan.tap_vectors = static_cast<int>(ceil_div(reach, lanes));
  plan.taps.assign(static_cast<size_t>(cells_a_vector) * plan.tap_vectors * lanes, T(0));
  for (int cell = 0; cell < cells_a_vector; ++cell) {
    const int64_t start = static_cast<int64_t>(cell) * (plan.tap_vectors * lanes + plan.hop);
    for (size_t j = 0; j < design.taps.size(); ++j) {
      plan.taps[start + j] = static_cast<T>(design.taps[j]);
    }
  }
  plan.circulant = make_circulant<T>(design, lanes);
  const T scale = std::exchange(plan.circulant.scale, T(1));
  plan.offsets = plan.width + cells_a_vector - 1;
  for (int segment = 0; segment < segments; ++segment) {
    for (int offset = 0; offset < plan.offsets; ++offset) {
      for (int lane = 0; lane < lanes; ++lane) {
        const int sample = segment * lanes + lane;
        const int q = sample / plan.hop + plan.width - 1 - offset;
        const bool inside = q >= 0 && q < plan.width;
        plan.spline.push_back(
            inside ? scale * static_cast<T>(design.taps[q * plan.hop + sample % plan.hop]) : T(0));
      }
    }
  }
  return plan;
}

template <class T>
DenseTables<T> make_dense(const FilterDesign& design) {
  DenseTables<T> plan;
  plan.count = design.waves();
  plan.basis.resize(plan.count * design.d);
  for (int64_t b = 0; b < plan.count; ++b) {
    const int64_t k = (b + 1) / 2;
    const double norm = std::sqrt((k ? 2.0 : 1.0) * design.gains[k] / static_cast<double>(design.d));
    for (int64_t n = 0; n < design.d; ++n) {
      const double angle = 2 * kPi * static_cast<double>(k * n % design.d) / design.d;
      plan.basis[b * design.d + n] =
          static_cast<T>(norm * (b % 2 ? std::sin(angle) : std::cos(angle)));
    }
  }
  return plan;
}

// Sums of the weights at distances 1 .. i.
inline std::vector<double> one_sided_sums(std::vector<double> weights) {
  weights[0] = 0;
  std::partial_sum(weights.begin(), weights.end(), weights.begin());
  return weights;
}

// A moving average, or any other symmetric weights.
template <class T>
DetrendTables<T> make_detrend(const FilterDesign& design) {
  DetrendTables<T> plan;
  plan.boundary = design.boundary;
  plan.radius = design.radius();
  if (design.strategy == Strategy::box) return plan;
  for (int64_t j = -plan.radius; j <= plan.radius; ++j) {
    plan.weights.push_back(static_cast<T>(design.gains[std::abs(j)]));
  }
  plan.one_sided = one_sided_sums(design.gains);
  return plan;
}

template <class T>
WideTables<T> make_wide(const FilterDesign& design, int lanes) {
  WideTables<T> plan;
  plan.boundary = design.boundary;
  plan.radius = static_cast<int64_t>(design.taps.size()) - 1;
  plan.centre = design.taps[0];
  plan.one_sided = one_sided_sums(design.taps);
  plan.circulant = make_circulant<T>(design, lanes);
  return plan;
}

}  // namespace specgrad
