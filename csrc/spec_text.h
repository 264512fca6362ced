// The specification as the operator receives it, and what it says about one layer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plans.h"

namespace specgrad {

struct Ratio {
  int64_t numerator = 0;
  int64_t denominator = 1;
};

struct Spec {
  std::string method;
  std::string strategy;
  bool per_tensor = false;
  std::vector<Ratio> ratios;
  int64_t window = 0;  // 0: from the ratio
  double sigma = 0;    // 0: from the ratio
  Boundary boundary = Boundary::count;
  int batch_dims = 0;
  bool raise_nonfinite = false;

  Ratio ratio_of(size_t tensor) const { return ratios[per_tensor ? tensor : 0]; }
};

// Reads what FilterSpec.text writes; throws std::invalid_argument on anything else.
Spec parse_spec(const std::string& text);

// floor(ratio * (d / 2 + 1)), exactly.
int64_t cutoff_of(Ratio ratio, int64_t d);

// Width of the Gaussian; 0 where the layer is left alone.
double sigma_of(const Spec& spec, size_t tensor, int64_t d);

// Samples that a local average reaches on each side; -1 where the layer is left alone.
int64_t detrend_radius(const Spec& spec, size_t tensor, int64_t d);

}  // namespace specgrad
