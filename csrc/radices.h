// The passes of a transform.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace specgrad {

constexpr int kLargestPrime = 1024;

// Radices of the passes of a transform of length n: few passes, and 4 last where there is one.
// Empty for n = 1 and if n has a larger prime.
inline std::vector<int> radices(int64_t n) {
  std::vector<int> passes;
  int twos = 0, threes = 0;
  for (; n % 2 == 0; n /= 2) ++twos;
  for (; n % 3 == 0; n /= 3) ++threes;
  for (int prime = 5; prime <= kLargestPrime; prime += 2) {
    for (; n % prime == 0; n /= prime) passes.push_back(prime);
  }
  if (n != 1) return {};
  int sixes = std::min(twos, threes);
  if (twos - sixes == 1 && sixes > 0) --sixes;  // 3 * 4 is cheaper than 6 * 2
  const int left = twos - sixes, eights = left % 2 && left > 1 ? 1 : 0;
  passes.insert(passes.end(), eights, 8);
  passes.insert(passes.end(), sixes, 6);
  passes.insert(passes.end(), threes - sixes, 3);
  passes.insert(passes.end(), left == 1, 2);
  passes.insert(passes.end(), (left - 3 * eights) / 2, 4);
  return passes;
}

}  // namespace specgrad
