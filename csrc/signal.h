// A gradient seen as a signal of d samples in logical order, whatever its dtype and strides.
#pragma once

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

#include "interface.h"

namespace specgrad {

inline int64_t element_size(DType dtype) {
  return dtype == DType::f64 ? 8 : dtype == DType::f32 ? 4 : 2;
}

// Merged dimensions have two entries or more, and no memory holds 2^64 samples.
constexpr int kMaxDims = 64;

// Shape and strides after merging neighbours; one dimension of stride 1 when contiguous.
struct Layout {
  DType dtype = DType::f32;
  int64_t d = 0;
  int dims = 1;
  int64_t sizes[kMaxDims] = {};
  int64_t strides[kMaxDims] = {};

  Layout() = default;
  Layout(DType type, const std::vector<int64_t>& sizes_of, const std::vector<int64_t>& strides_of)
      : dtype(type), d(product(sizes_of)), dims(static_cast<int>(sizes_of.size())) {
    if (dims < 1 || dims > kMaxDims) {
      throw std::invalid_argument("specgrad: a gradient has too many dimensions");
    }
    std::copy(sizes_of.begin(), sizes_of.end(), sizes);
    std::copy(strides_of.begin(), strides_of.end(), strides);
  }

  bool contiguous() const { return dims == 1 && strides[0] == 1; }

  // The same samples in the order of their addresses.
  Layout in_memory_order() const {
    std::vector<std::pair<int64_t, int64_t>> steps;
    for (int dim = 0; dim < dims; ++dim) steps.emplace_back(strides[dim], sizes[dim]);
    std::sort(steps.rbegin(), steps.rend());
    std::vector<int64_t> merged_sizes, merged_strides;
    for (const auto& [stride, size] : steps) {
      if (!merged_sizes.empty() && merged_strides.back() == stride * size) {
        merged_sizes.back() *= size;
        merged_strides.back() = stride;
      } else {
        merged_sizes.push_back(size);
        merged_strides.push_back(stride);
      }
    }
    return {dtype, merged_sizes, merged_strides};
  }
};

struct Signal {
  const Layout* layout = nullptr;
  void* data = nullptr;
  // For filters that take runs: so many signals of one layout, `step` bytes apart.
  int64_t count = 1, step = 0;
};

}  // namespace specgrad
