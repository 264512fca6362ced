// Everything that is compiled once for each instruction set. The including file defines
// SPECGRAD_ISA (its namespace) and SPECGRAD_VECTOR_BYTES.

// Standard headers come before any instruction set is switched on.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#if SPECGRAD_VECTOR_BYTES > 16 && defined(__x86_64__)
#include <immintrin.h>
#endif

#include "kernels.h"
#include "workspace.h"

#if defined(__x86_64__) || SPECGRAD_VECTOR_BYTES == 16

#if defined(__clang__) && SPECGRAD_VECTOR_BYTES == 32
#pragma clang attribute push(__attribute__((target("arch=x86-64-v3"))), apply_to = function)
#elif defined(__clang__) && SPECGRAD_VECTOR_BYTES == 64
#pragma clang attribute push(__attribute__((target("arch=x86-64-v4"))), apply_to = function)
#elif SPECGRAD_VECTOR_BYTES == 32
#pragma GCC push_options
#pragma GCC target("arch=x86-64-v3")
#elif SPECGRAD_VECTOR_BYTES == 64
#pragma GCC push_options
#pragma GCC target("arch=x86-64-v4")
#endif

namespace specgrad {
namespace SPECGRAD_ISA {

#include "simd.h"
#include "samples.h"
#include "transform.h"
#include "circulant.h"
#include "band.h"
#include "mean.h"
#include "dense.h"
#include "detrend.h"

template <class T>
const Kernels<T>& table() {
  static const Kernels<T> kernels = {
      subtract_large_mean<T>,      spread<T>,       wrap_margins<T>,  interpolate<T>,
      columns_transform<false, T>, rows_filter<T>,  columns_transform<true, T>,
      dense_filter<T>,             subtract_means<T>, read_extended<T>, detrend<T>,
      subtract_averages<T>,        read_samples<T>,   write_samples<T>,
  };
  return kernels;
}

template const Kernels<float>& table<float>();
template const Kernels<double>& table<double>();

}  // namespace SPECGRAD_ISA
}  // namespace specgrad

#if defined(__clang__) && SPECGRAD_VECTOR_BYTES > 16
#pragma clang attribute pop
#elif SPECGRAD_VECTOR_BYTES > 16
#pragma GCC pop_options
#endif
#endif
