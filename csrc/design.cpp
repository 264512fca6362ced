#include "design.h"

namespace specgrad {
namespace {

// Plain radix-2 transform in double precision, used once per awkward length.
void transform_in_place(std::vector<std::complex<double>>& x) {
  const size_t n = x.size();
  for (size_t i = 1, j = 0; i < n; ++i) {
    size_t bit = n >> 1;
    for (; j & bit; bit >>= 1) j ^= bit;
    j ^= bit;
    if (i < j) std::swap(x[i], x[j]);
  }
  for (size_t length = 2; length <= n; length *= 2) {
    const double angle = -2 * kPi / static_cast<double>(length);
    for (size_t k = 0; k < length / 2; ++k) {
      const std::complex<double> twiddle = std::polar(1.0, angle * static_cast<double>(k));
      for (size_t start = 0; start < n; start += length) {
        const auto odd = x[start + k + length / 2] * twiddle;
        x[start + k + length / 2] = x[start + k] - odd;
        x[start + k] += odd;
      }
    }
  }
}

// sin(pi * turns / d), with the argument brought exactly into the half turn where rounding it
// costs nothing.
double sine_of_half_turns(int64_t turns, int64_t d) {
  const int64_t wrapped = turns % (2 * d);
  const int64_t half = wrapped % d;
  const double value =
      std::sin(kPi * static_cast<double>(std::min(half, d - half)) / static_cast<double>(d));
  return wrapped < d ? value : -value;
}

// Impulse response of the projector on the low band of d samples, at distance j.
double dirichlet_kernel(int64_t d, int64_t cutoff, int64_t j) {
  // A ratio below 1 never reaches the Nyquist bin, so every bin but the first counts twice.
  if (j == 0) return (2.0 * cutoff - 1) / static_cast<double>(d);
  const int64_t reduced = static_cast<int64_t>(static_cast<unsigned __int128>(2 * cutoff - 1) * j %
                                               (2 * static_cast<uint64_t>(d)));
  return sine_of_half_turns(reduced, d) / (static_cast<double>(d) * sine_of_half_turns(j, d));
}

std::vector<double> padded_gains(const FftDesign& design) {
  const int64_t size = design.grid_size();
  std::vector<std::complex<double>> kernel(size);
  for (int64_t j = 0; j < design.d; ++j) {
    const double value = dirichlet_kernel(design.d, design.cutoff, j);
    kernel[j] = value;
    if (j) kernel[size - j] = value;
  }
  transform_in_place(kernel);
  std::vector<double> gains(size / 2 + 1);
  for (size_t k = 0; k < gains.size(); ++k) {
    gains[k] = kernel[k].real() / static_cast<double>(size);
  }
  return gains;
}

}  // namespace

std::vector<double> circulant_gains(const FftDesign& design) {
  if (design.strategy == Strategy::padded) return padded_gains(design);
  const int64_t size = design.grid_size();
  std::vector<double> gains(size / 2 + 1, 0.0);
  for (int64_t k = 0; k < static_cast<int64_t>(gains.size()); ++k) {
    if (design.strategy == Strategy::full) {
      gains[k] = k < design.cutoff ? 0.0 : 1.0 / static_cast<double>(size);
    } else if (k < design.cutoff) {
      const double response =
          window_response(design.taps, static_cast<double>(k) / static_cast<double>(design.d));
      gains[k] = design.hop / (response * response * static_cast<double>(size));
    }
  }
  return gains;
}

}  // namespace specgrad
