#include "kernels_common.h"

#define SPECGRAD_ISA portable
#define SPECGRAD_VECTOR_BYTES 16
#define SPECGRAD_SUPPORTED true
#include "kernels_table.inl"

namespace specgrad {
const InstructionSet& portable_kernels() {
  static const InstructionSet set{"portable", portable::supported, portable::kernels<float>,
                                  portable::kernels<double>};
  return set;
}
}  // namespace specgrad
