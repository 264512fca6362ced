#include <cstdlib>
#include <cstring>

#include "kernels.h"

namespace specgrad {

const InstructionSet& instruction_set() {
  static const InstructionSet& chosen = []() -> const InstructionSet& {
    const char* wanted = std::getenv("SPECGRAD_ISA");
    for (const InstructionSet* set : {&avx512_kernels(), &avx2_kernels(), &portable_kernels()}) {
      if (set->supported() && (!wanted || !*wanted || std::strcmp(wanted, set->name) == 0)) {
        return *set;
      }
    }
    return portable_kernels();
  }();
  return chosen;
}

}  // namespace specgrad
