// A gradient seen as a signal of d samples in logical order, whatever its dtype and strides.
#pragma once

#include <cstdint>

namespace specgrad {

enum class DType { f32, f64, bf16, f16 };

inline int64_t element_size(DType dtype) {
  return dtype == DType::f64 ? 8 : dtype == DType::f32 ? 4 : 2;
}

// Each has two entries or more, and no memory holds 2^64 samples.
constexpr int kMaxDims = 64;

// Shape and strides after merging neighbours; one dimension of stride 1 when contiguous.
struct Layout {
  DType dtype = DType::f32;
  int64_t d = 0;
  int dims = 1;
  int64_t sizes[kMaxDims] = {};
  int64_t strides[kMaxDims] = {};

  bool contiguous() const { return dims == 1 && strides[0] == 1; }
};

struct Signal {
  const Layout* layout = nullptr;
  void* data = nullptr;
};

}  // namespace specgrad
