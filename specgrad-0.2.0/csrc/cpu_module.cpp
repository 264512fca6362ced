// What this CPU runs, for Python. Includes no torch header, so it fits every torch.

#include <pybind11/pybind11.h>

#include "cpu.h"

namespace py = pybind11;

PYBIND11_MODULE(_cpu, m) {
  m.doc() = "The instruction sets of the native kernels, and which of them this CPU runs.";
  m.def(
      "features",
      [] {
        py::dict result;
        for (specgrad::Isa isa : specgrad::kIsas) {
          result[specgrad::isa_name(isa)] = specgrad::cpu_runs(isa);
        }
        return result;
      },
      "Instruction sets with kernels, and whether this CPU runs them.");
}
