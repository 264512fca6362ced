// Everything that is compiled once for each instruction set. The including file defines
// SPECGRAD_ISA (its namespace) and SPECGRAD_VECTOR_BYTES.

namespace specgrad {
namespace SPECGRAD_ISA {

#include "simd.h"
#include "samples.h"
#include "transform.h"
#include "circulant.h"
#include "band.h"
#include "dense.h"
#include "detrend.h"

template <class T>
const Kernels<T>& table() {
  static const Kernels<T> kernels = {
      spread<T>,      wrap_margins<T>,    interpolate<T>,  columns_forward<T>,
      rows_filter<T>, columns_inverse<T>, dense_filter<T>, read_extended<T>,
      detrend<T>,     read_samples,       write_samples,
  };
  return kernels;
}

template const Kernels<float>& table<float>();
template const Kernels<double>& table<double>();

}  // namespace SPECGRAD_ISA
}  // namespace specgrad
