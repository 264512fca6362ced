#include "kernels.h"

#include "cpu.h"

namespace specgrad {

#define SPECGRAD_DECLARE(isa) \
  namespace isa {             \
  template <class T>          \
  const Kernels<T>& table();  \
  }
SPECGRAD_DECLARE(portable)
SPECGRAD_DECLARE(avx2)
SPECGRAD_DECLARE(avx512)

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
