// The Python face of plan design. Includes no torch header, so it fits every torch.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "cpu.h"
#include "design.h"
#include "spec_text.h"
#include "workspace.h"

namespace py = pybind11;
using namespace specgrad;

namespace {

Precision precision_named(const std::string& name) {
  if (name == "single") return Precision::single;
  if (name == "double") return Precision::double_;
  throw py::value_error("precision must be 'single' or 'double'; got '" + name + "'");
}

int lanes_of(Precision precision) {
  return precision == Precision::single ? chosen_lanes<float>() : chosen_lanes<double>();
}

py::dict describe_fft(const FftDesign& design) {
  py::dict result;
  result["strategy"] = strategy_name(design.strategy);
  result["hop"] = design.hop;
  result["width"] = design.width;
  result["rows"] = design.grid.rows;
  result["columns"] = design.grid.columns;
  result["error_bound"] = design.error_bound;
  result["cost"] = design.cost;
  return result;
}

py::dict explain(const std::string& spec_text, size_t tensor, int64_t d,
                 const std::string& precision_name, bool direct) {
  const Spec spec = parse_spec(spec_text);
  const Precision precision = precision_named(precision_name);
  const int lanes = lanes_of(precision);
  const int64_t bytes = precision == Precision::single ? 4 : 8;
  if (spec.method == "fft") {
    const FftDesign design =
        design_fft(d, cutoff_of(spec.ratio_of(tensor), d), precision, lanes, spec.strategy);
    py::dict result = describe_fft(design);
    result["workspace_bytes"] =
        bytes * (fft_shared(design, lanes, direct) + fft_scratch(design, lanes));
    return result;
  }
  const int64_t radius = detrend_radius(spec, tensor, d);
  const bool box = spec.method == "lap";
  py::dict result;
  result["strategy"] = radius < 0 ? "identity" : spec.method;
  result["error_bound"] = radius < 0 ? 0.0 : detrend_rounding(precision, radius, box);
  result["workspace_bytes"] =
      radius < 0 ? 0
                 : bytes * (detrend_shared(d, radius) +
                            detrend_scratch(radius, box, lanes));
  return result;
}

py::dict cpu_features() {
  py::dict result;
  for (Isa isa : kIsas) result[isa_name(isa)] = cpu_runs(isa);
  return result;
}

}  // namespace

PYBIND11_MODULE(_design, m) {
  m.doc() = "Plan design of the native kernels: windows, coefficients, strategies, CPU features.";
  m.def("window_taps", &window_taps, py::arg("hop"), py::arg("width"), py::arg("oversampling"),
        "Kaiser-Bessel window of hop * width taps.");
  m.def("alias_error", &alias_error, py::arg("taps"), py::arg("hop"), py::arg("band_edge"),
        "Operator norm of the aliasing that a window leaves below band_edge cycles a sample.");
  m.def(
      "design_fft",
      [](int64_t d, int64_t cutoff, const std::string& precision, const std::string& strategy) {
        const Precision p = precision_named(precision);
        return describe_fft(design_fft(d, cutoff, p, lanes_of(p), strategy));
      },
      py::arg("d"), py::arg("cutoff"), py::arg("precision") = "single",
      py::arg("strategy") = "auto", "How a layer of d samples loses its first cutoff bins.");
  m.def(
      "circulant_gains",
      [](int64_t d, int64_t cutoff, const std::string& precision, const std::string& strategy) {
        const Precision p = precision_named(precision);
        return circulant_gains(design_fft(d, cutoff, p, lanes_of(p), strategy));
      },
      py::arg("d"), py::arg("cutoff"), py::arg("precision") = "single",
      py::arg("strategy") = "auto", "Eigenvalues that the design applies on its grid.");
  m.def("explain", &explain, py::arg("spec_text"), py::arg("tensor"), py::arg("d"),
        py::arg("precision"), py::arg("direct"),
        "Strategy, error bound and workspace of one layer under a specification.");
  m.def("cpu_features", &cpu_features, "Instruction sets with kernels, and whether this CPU runs them.");
  m.def("instruction_set", [] { return isa_name(chosen_isa()); },
        "The instruction set whose kernels are used.");
}
