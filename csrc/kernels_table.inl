// Everything that is compiled once for each instruction set. The including file defines
// SPECGRAD_ISA (namespace), SPECGRAD_VECTOR_BYTES and SPECGRAD_SUPPORTED (an expression).

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
static void read_range(const Signal& signal, int64_t begin, int64_t end, T* out) {
  read_samples(signal, begin, end, out);
}
template <class T>
static void write_range(const Signal& signal, int64_t begin, int64_t end, const T* values) {
  write_samples(signal, begin, end, values);
}

template <class T>
static const Kernels<T> kernels = {
    kLanes<T>,          band_scratch<T>,    spread<T>,          wrap_margins<T>,
    interpolate<T>,     columns_forward<T>, rows_filter<T>,     columns_inverse<T>,
    dense_filter<T>,    detrend_scratch<T>, read_extended<T>,   detrend<T>,
    read_range<T>,      write_range<T>,     is_direct<T>,
};

static bool supported() { return SPECGRAD_SUPPORTED; }

}  // namespace SPECGRAD_ISA
}  // namespace specgrad
