#include "kernels.h"

#include "cpu.h"

namespace specgrad {

namespace portable {
template <class T>
const Kernels<T>& table();
}
#if defined(__x86_64__)
namespace avx2 {
template <class T>
const Kernels<T>& table();
}
namespace avx512 {
template <class T>
const Kernels<T>& table();
}
#endif

template <class T>
const Kernels<T>& kernels() {
#if defined(__x86_64__)
  if (chosen_isa() == Isa::avx512) return avx512::table<T>();
  if (chosen_isa() == Isa::avx2) return avx2::table<T>();
#endif
  return portable::table<T>();
}

template const Kernels<float>& kernels<float>();
template const Kernels<double>& kernels<double>();

}  // namespace specgrad
