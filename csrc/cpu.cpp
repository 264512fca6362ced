#include "cpu.h"

#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

namespace specgrad {

const char* isa_name(Isa isa) {
  return isa == Isa::avx512 ? "avx512" : isa == Isa::avx2 ? "avx2" : "portable";
}

int vector_bytes(Isa isa) { return isa == Isa::avx512 ? 64 : isa == Isa::avx2 ? 32 : 16; }

bool cpu_runs(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::avx512) return __builtin_cpu_supports("x86-64-v4");
  if (isa == Isa::avx2) return __builtin_cpu_supports("x86-64-v3");
#endif
  return isa == Isa::portable;
}

Isa chosen_isa() {
  static const Isa chosen = [] {
    const char* wanted = std::getenv("SPECGRAD_ISA");
    std::string runnable;
    for (Isa isa : kIsas) {
      if (!cpu_runs(isa)) continue;
      if (!wanted || !*wanted || std::strcmp(wanted, isa_name(isa)) == 0) return isa;
      runnable += std::string(runnable.empty() ? "" : ", ") + isa_name(isa);
    }
    throw std::invalid_argument("SPECGRAD_ISA must be one of " + runnable +
                                " on this CPU, or unset; got '" + wanted + "'");
  }();
  return chosen;
}

}  // namespace specgrad
