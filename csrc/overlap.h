// Whether strided tensors share memory, decided from sizes and strides alone.
//
// Two tensors share a byte when some element of one and some element of the other do: an equation
// between two sums of steps. Counting the second tensor's steps backwards from its last element
// turns it into one question, whether a distance is a sum of so many steps of each size, which a
// search answers after a few tries whatever the number of elements. overlap.py is its twin.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "engine.h"

namespace specgrad {

// x with number * x = 1 modulo `modulus`, to which it has no common divisor.
inline int64_t modular_inverse(int64_t number, int64_t modulus) {
  int64_t a = number % modulus, b = modulus, x = 1, y = 0;
  while (b != 0) {
    const int64_t quotient = a / b;
    a = std::exchange(b, a - quotient * b);
    x = std::exchange(y, x - quotient * y);
  }
  return (x % modulus + modulus) % modulus;
}

// Sums of steps of positive sizes, each taken up to so many times.
class StepSums {
 public:
  void add(int64_t size, int64_t most) {
    if (size > 0 && most > 0) most_[size] += most;
  }

  bool contain(int64_t distance) {
    levels_.assign(most_.size() + 1, {});
    size_t level = most_.size();
    for (auto step = most_.begin(); step != most_.end(); ++step) {  // the smallest first
      const Level& smaller = levels_[level--];
      levels_[level] = {step->first, step->second, smaller.reach + step->first * step->second,
                        std::gcd(smaller.divisor, step->first)};
    }
    hopeless_.clear();
    return search(0, distance);
  }

 private:
  struct Level {
    int64_t size = 0, most = 0;
    int64_t reach = 0, divisor = 0;  // of the sums of all steps from this level on
  };

  bool search(size_t at, int64_t rest) {
    if (rest == 0) return true;
    const Level& level = levels_[at];
    if (rest < 0 || rest > level.reach || rest % level.divisor) return false;
    if (at + 2 == levels_.size()) return true;
    if (hopeless_.count({at, rest})) return false;
    const Level& smaller = levels_[at + 1];
    const int64_t lacking = std::max<int64_t>(0, rest - smaller.reach);
    const int64_t fewest = (lacking + level.size - 1) / level.size;
    const int64_t most = std::min(level.most, rest / level.size);
    // Smaller steps can only make up what their divisor divides.
    const int64_t period = smaller.divisor / level.divisor;
    const int64_t wanted = static_cast<int64_t>(
        static_cast<__int128>(rest / level.divisor % period) *
        modular_inverse(level.size / level.divisor, period) % period);
    const int64_t first = fewest + ((wanted - fewest) % period + period) % period;
    for (int64_t count = first; count <= most; count += period) {
      if (search(at + 1, rest - count * level.size)) return true;
    }
    hopeless_.emplace(at, rest);
    return false;
  }

  std::map<int64_t, int64_t> most_;
  std::vector<Level> levels_;
  std::set<std::pair<size_t, int64_t>> hopeless_;
};

// Bytes from the first that a tensor can touch to the last; 0 when it is empty.
inline int64_t extent_bytes(const LayoutKey::Tensor& tensor) {
  int64_t last = 0;
  for (size_t i = 0; i < tensor.sizes.size(); ++i) {
    if (tensor.sizes[i] == 0) return 0;
    last += (tensor.sizes[i] - 1) * tensor.strides[i];
  }
  return (last + 1) * element_size(tensor.dtype);
}

inline bool shares_memory_with_itself(const LayoutKey::Tensor& tensor) {
  std::vector<std::pair<int64_t, int64_t>> dims;  // stride, most steps
  for (size_t i = 0; i < tensor.sizes.size(); ++i) {
    if (tensor.sizes[i] == 0) return false;
    if (tensor.sizes[i] > 1) dims.emplace_back(tensor.strides[i], tensor.sizes[i] - 1);
  }
  std::sort(dims.begin(), dims.end(), std::greater<>());
  if (!dims.empty() && dims.back().first == 0) return true;
  for (size_t i = 0; i < dims.size(); ++i) {
    // Two places that differ first in this dimension, by one step or more.
    StepSums sums;
    sums.add(dims[i].first, dims[i].second - 1);
    int64_t distance = -dims[i].first;
    for (size_t j = i + 1; j < dims.size(); ++j) {
      sums.add(dims[j].first, 2 * dims[j].second);
      distance += dims[j].first * dims[j].second;
    }
    if (distance >= 0 && sums.contain(distance)) return true;
  }
  return false;
}

// Whether two tensors, neither of them empty, have a byte in common; `apart` is by how many bytes
// the second starts after the first.
inline bool share_memory(const LayoutKey::Tensor& first, const LayoutKey::Tensor& second,
                         int64_t apart) {
  const int64_t width = element_size(first.dtype), other = element_size(second.dtype);
  const bool aligned = width == other && apart % width == 0;
  const int64_t unit = aligned ? width : 1;
  StepSums sums;
  if (!aligned) sums.add(1, width + other - 2);
  for (const LayoutKey::Tensor* tensor : {&first, &second}) {
    for (size_t i = 0; i < tensor->sizes.size(); ++i) {
      sums.add(tensor->strides[i] * element_size(tensor->dtype) / unit, tensor->sizes[i] - 1);
    }
  }
  return sums.contain((apart + extent_bytes(second) - unit) / unit);
}

}  // namespace specgrad
