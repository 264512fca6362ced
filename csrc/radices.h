// The passes of a transform, chosen by what they cost.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

namespace specgrad {

constexpr int kLargestPrime = 31;

// Vector operations of a pass for each of its elements, memory included.
inline double pass_cost(int radix) {
  switch (radix) {
    case 2: return 7;
    case 3: return 9;
    case 4: return 10;
    case 5: return 13;
    case 6: return 12.5;
    case 8: return 15;
    default: return 6 + 2.5 * radix;
  }
}

// Radices of the passes of a transform of length n, 4 last where there is one; empty for n = 1
// and if n has a larger prime.
inline std::vector<int> radices(int64_t n) {
  std::vector<int> primes;
  int twos = 0, threes = 0;
  for (; n % 2 == 0; n /= 2) ++twos;
  for (; n % 3 == 0; n /= 3) ++threes;
  for (int prime = 5; prime <= kLargestPrime; prime += 2) {
    for (; n % prime == 0; n /= prime) primes.push_back(prime);
  }
  if (n != 1) return {};
  std::vector<int> best;
  double best_cost = std::numeric_limits<double>::infinity();
  for (int sixes = 0; sixes <= std::min(twos, threes); ++sixes) {
    for (int eights = 0; sixes + 3 * eights <= twos; ++eights) {
      const int left = twos - sixes - 3 * eights;
      std::vector<int> passes = primes;
      passes.insert(passes.end(), eights, 8);
      passes.insert(passes.end(), sixes, 6);
      passes.insert(passes.end(), threes - sixes, 3);
      passes.insert(passes.end(), left % 2, 2);
      passes.insert(passes.end(), left / 2, 4);
      double cost = 0;
      for (int radix : passes) cost += pass_cost(radix);
      if (cost < best_cost) {
        best_cost = cost;
        best = passes;
      }
    }
  }
  return best;
}

inline bool transformable(int64_t n) { return n == 1 || !radices(n).empty(); }

}  // namespace specgrad
