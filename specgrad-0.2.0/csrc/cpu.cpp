#include "cpu.h"

#include <cstdlib>
#include <cstring>
#include <stdexcept>

namespace specgrad {

const char* isa_name(Isa isa) {
#if defined(__aarch64__)
  if (isa == Isa::portable) return "neon";  // what its vectors of 128 bits are compiled to
#endif
  return isa == Isa::avx512 ? "avx512" : isa == Isa::avx2 ? "avx2" : "portable";
}

int vector_bytes(Isa isa) { return isa == Isa::avx512 ? 64 : isa == Isa::avx2 ? 32 : 16; }

bool cpu_runs(Isa isa) {
#if defined(__x86_64__) && defined(__clang__)  // clang before 18 knows features, no levels
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  if (isa == Isa::avx2) return avx2;
  if (isa == Isa::avx512) {
    return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
  }
#elif defined(__x86_64__)
  if (isa == Isa::avx512) return __builtin_cpu_supports("x86-64-v4");
  if (isa == Isa::avx2) return __builtin_cpu_supports("x86-64-v3");
#endif
  return isa == Isa::portable;
}

std::string runnable_isas() {
  std::string names;
  for (Isa isa : kIsas) {
    if (cpu_runs(isa)) names += std::string(names.empty() ? "" : ", ") + isa_name(isa);
  }
  return names;
}

Isa chosen_isa() {
  static const Isa chosen = [] {
    const char* wanted = std::getenv("SPECGRAD_ISA");
    for (Isa isa : kIsas) {
      if (!cpu_runs(isa)) continue;
      if (!wanted || !*wanted || std::strcmp(wanted, isa_name(isa)) == 0) return isa;
    }
    throw std::invalid_argument("SPECGRAD_ISA must be one of " + runnable_isas() +
                                " on this CPU, or unset; got '" + wanted + "'");
  }();
  return chosen;
}

}  // namespace specgrad
