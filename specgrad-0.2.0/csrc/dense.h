// Very short layers: the projector as an explicit orthonormal basis. Included inside the
// namespace of an instruction set.

// A mean that outweighs the rest leaves before the filter that would remove it, and rounds nothing
// there. Eight samples say whether there is one. Halves, which could not hold what is left of it,
// are filtered as they are.
template <class T>
static void subtract_large_mean(const Signal& signal) {
  const int64_t d = signal.layout->d;
  T* const direct = is_direct<T>(signal) ? static_cast<T*>(signal.data) : nullptr;
  if (element_size(signal.layout->dtype) != sizeof(T)) return;
  alignas(64) T copy[1024];
  read_samples(signal, 0, 1, copy);
  T low = copy[0], high = copy[0];
  for (int64_t i = 1; i < 8; ++i) {
    read_samples(signal, i * d / 8, i * d / 8 + 1, copy);
    low = std::min(low, copy[0]);
    high = std::max(high, copy[0]);
    if (!(5 * (high - low) < 3 * std::abs(low + high))) return;  // 4 times as large, or more
  }
  const auto for_each_piece = [&](auto visit) {
    for (int64_t begin = 0; begin < d; begin += 1024) {
      const int64_t count = std::min<int64_t>(1024, d - begin);
      if (!direct) read_samples(signal, begin, begin + count, copy);
      visit(begin, count, direct ? direct + begin : copy);
    }
  };
  double mean = 0;
  for_each_piece([&](int64_t, int64_t count, const T* x) {
    const T part = sum_row<T>(Plain<T>{}, x, count, 1) / static_cast<T>(count);
    mean += static_cast<double>(part) * (static_cast<double>(count) / d);
  });
  if (!std::isfinite(mean)) return;
  const T rounded = static_cast<T>(mean);
  for_each_piece([&](int64_t begin, int64_t count, T* x) {
    for (int64_t i = 0; i < count; ++i) x[i] -= rounded;
    if (!direct) write_samples(signal, begin, begin + count, x);
  });
}

// Filters each signal of a run. `scratch` holds d + plan.count numbers.
template <class T>
static void dense_filter(const DenseTables<T>& plan, const Signal& run, T* scratch) {
  const int64_t d = run.layout->d;
  const bool direct = is_direct<T>(run);
  T* coefficients = scratch + d;
  for (int64_t number = 0; number < run.count; ++number) {
    const Signal signal = {run.layout, static_cast<char*>(run.data) + number * run.step};
    T* x = direct ? static_cast<T*>(signal.data) : scratch;
    if (!direct) read_samples(signal, 0, d, x);
    for (int64_t b = 0; b < plan.count; ++b) coefficients[b] = dot(plan.basis.data() + b * d, x, d);
    for (int64_t b = 0; b < plan.count; ++b) {
      const T* basis = plan.basis.data() + b * d;
      for (int64_t i = 0; i < d; ++i) x[i] -= coefficients[b] * basis[i];
    }
    if (!direct) write_samples(signal, 0, d, x);
  }
}
