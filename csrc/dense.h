// Very short layers: the projector as an explicit orthonormal basis. Included inside the
// namespace of an instruction set.

// `scratch` holds d + count numbers.
template <class T>
static void dense_filter(const DensePlan<T>& plan, const Signal& signal, T* scratch) {
  const int64_t d = signal.layout->d;
  const bool direct = is_direct<T>(signal);
  T* x = direct ? static_cast<T*>(signal.data) : scratch;
  T* coefficients = scratch + d;
  if (!direct) read_samples(signal, 0, d, x);
  for (int64_t b = 0; b < plan.count; ++b) coefficients[b] = dot(plan.basis.data() + b * d, x, d);
  for (int64_t b = 0; b < plan.count; ++b) {
    const T* basis = plan.basis.data() + b * d;
    for (int64_t i = 0; i < d; ++i) x[i] -= coefficients[b] * basis[i];
  }
  if (!direct) write_samples(signal, 0, d, x);
}
