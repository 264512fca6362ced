// Which instruction set the kernels use. Needs no kernel, so that the Python module can ask too.
#pragma once

#include <string>

namespace specgrad {

enum class Isa { portable, avx2, avx512 };

constexpr Isa kIsas[] = {Isa::avx512, Isa::avx2, Isa::portable};  // the widest first

const char* isa_name(Isa isa);
int vector_bytes(Isa isa);
bool cpu_runs(Isa isa);
std::string runnable_isas();  // names of those that this CPU runs, the widest first

// The widest that this CPU runs, or the one that SPECGRAD_ISA names; throws std::invalid_argument
// when it names none that runs here.
Isa chosen_isa();

template <class T>
int chosen_lanes() {
  return vector_bytes(chosen_isa()) / static_cast<int>(sizeof(T));
}

}  // namespace specgrad
