#include "spec_text.h"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <stdexcept>

namespace specgrad {
namespace {

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

Ratio parse_ratio(const std::string& text) {
  const std::vector<std::string> parts = split(text, '/');
  if (parts.size() != 2) throw std::invalid_argument("specgrad: bad ratio '" + text + "'");
  const Ratio ratio{std::stoll(parts[0]), std::stoll(parts[1])};
  if (ratio.numerator < 0 || ratio.denominator <= ratio.numerator) {
    throw std::invalid_argument("specgrad: ratio must lie in [0, 1); got " + text);
  }
  return ratio;
}

Boundary parse_boundary(const std::string& name) {
  if (name == "count") return Boundary::count;
  if (name == "circular") return Boundary::circular;
  if (name == "reflect") return Boundary::reflect;
  if (name == "replicate") return Boundary::replicate;
  throw std::invalid_argument("specgrad: unknown boundary '" + name + "'");
}

}  // namespace

Spec parse_spec(const std::string& text) {
  Spec spec;
  for (const std::string& field : split(text, ';')) {
    const size_t equals = field.find('=');
    if (equals == std::string::npos) {
      throw std::invalid_argument("specgrad: bad field '" + field + "' in the specification");
    }
    const std::string key = field.substr(0, equals), value = field.substr(equals + 1);
    if (value.empty()) continue;
    if (key == "method") {
      spec.method = value;
    } else if (key == "ratio") {
      spec.ratios = {parse_ratio(value)};
    } else if (key == "ratios") {
      spec.per_tensor = true;
      for (const std::string& part : split(value, ',')) spec.ratios.push_back(parse_ratio(part));
    } else if (key == "window") {
      spec.window = std::stoll(value);
    } else if (key == "sigma") {
      spec.sigma = std::stod(value);
    } else if (key == "boundary") {
      spec.boundary = parse_boundary(value);
    } else if (key == "batch_dims") {
      spec.batch_dims = std::stoi(value);
    } else if (key == "nonfinite") {
      spec.raise_nonfinite = value == "raise";
    } else if (key == "strategy") {
      spec.strategy = value;
    } else if (key != "seed") {
      throw std::invalid_argument("specgrad: unknown field '" + key + "' in the specification");
    }
  }
  if (spec.method != "fft" && spec.method != "lap" && spec.method != "gaussian") {
    throw std::invalid_argument("specgrad: the native kernels do not compute '" + spec.method +
                                "'");
  }
  if (spec.ratios.empty()) throw std::invalid_argument("specgrad: no ratio in the specification");
  return spec;
}

int64_t cutoff_of(Ratio ratio, int64_t d) {
  return static_cast<int64_t>(static_cast<__int128>(ratio.numerator) * (d / 2 + 1) /
                              ratio.denominator);
}

namespace {

// 0 where the layer is left alone.
int64_t window_of(const Spec& spec, size_t tensor, int64_t d) {
  if (spec.window) return spec.window;
  const Ratio ratio = spec.ratio_of(tensor);
  if (cutoff_of(ratio, d) == 0) return 0;
  // Half amplitude at the FFT cutoff: 1.2067 / ratio, to the nearest odd number.
  const __int128 half = static_cast<__int128>(12067) * ratio.denominator /
                        (static_cast<__int128>(20000) * ratio.numerator);
  return 2 * static_cast<int64_t>(half) + 1;
}

}  // namespace

double sigma_of(const Spec& spec, size_t tensor, int64_t d) {
  if (spec.sigma > 0) return spec.sigma;
  const Ratio ratio = spec.ratio_of(tensor);
  if (cutoff_of(ratio, d) == 0) return 0;
  return 0.37478 / (static_cast<double>(ratio.numerator) / static_cast<double>(ratio.denominator));
}

namespace {

int64_t unbounded_radius(const Spec& spec, size_t tensor, int64_t d) {
  if (spec.method == "lap") {
    const int64_t window = window_of(spec, tensor, d);
    return window ? window / 2 : -1;
  }
  const double sigma = sigma_of(spec, tensor, d);
  return sigma > 0 ? static_cast<int64_t>(std::ceil(4 * sigma)) : -1;
}

}  // namespace

int64_t detrend_radius(const Spec& spec, size_t tensor, int64_t d) {
  const int64_t radius = unbounded_radius(spec, tensor, d);
  // With `count`, what lies more than d - 1 away is never inside.
  return spec.boundary == Boundary::count ? std::min(radius, d - 1) : radius;
}

}  // namespace specgrad
