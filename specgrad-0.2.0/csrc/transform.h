// Complex transforms whose elements are whole vectors: every lane transforms a signal of its
// own, so there are no shuffles and all twiddles are scalars. Forward leaves its output in
// digit-reversed order and inverse starts from it, so nothing is ever reordered. Included
// inside the namespace of an instruction set.
//
// Element e is two vectors, its real and imaginary parts, at first + e * stride; those of a tile
// follow each other.

template <class T>
struct Complex {
  Vec<T> re, im;
};

template <class T>
static SPECGRAD_INLINE Complex<T> load_complex(const T* p) {
  return {load(p), load(p + kLanes<T>)};
}

template <class T>
struct Elements {
  using Number = std::remove_const_t<T>;
  T* first;
  int64_t stride = 2 * kLanes<Number>;

  SPECGRAD_INLINE Complex<Number> operator[](int64_t e) const {
    return load_complex<Number>(first + e * stride);
  }
  SPECGRAD_INLINE void put(int64_t e, Complex<Number> x) const {
    store(first + e * stride, x.re);
    store(first + e * stride + kLanes<Number>, x.im);
  }
};

// Where numbers are put times `factor`.
template <class T>
struct Scaled {
  Elements<T> elements;
  T factor;

  SPECGRAD_INLINE void put(int64_t e, Complex<T> x) const {
    elements.put(e, {x.re * factor, x.im * factor});
  }
};

template <class T>
static inline Complex<T> operator+(Complex<T> a, Complex<T> b) {
  return {a.re + b.re, a.im + b.im};
}
template <class T>
static inline Complex<T> operator-(Complex<T> a, Complex<T> b) {
  return {a.re - b.re, a.im - b.im};
}
// Times -i, or +i for the inverse.
template <bool Inverse, class T>
static inline Complex<T> quarter_turn(Complex<T> a) {
  if constexpr (Inverse) return {-a.im, a.re};
  return {a.im, -a.re};
}
// Times (re, im), or its conjugate for the inverse.
template <bool Inverse, class T, class S>
static inline Complex<T> rotate(Complex<T> a, S re, S im) {
  if constexpr (Inverse) return {a.re * re + a.im * im, a.im * re - a.re * im};
  return {a.re * re - a.im * im, a.im * re + a.re * im};
}

// Any odd radix, from the table of its roots of unity; R is 0 where it is not known before.
template <int R, bool Inverse, class T>
static SPECGRAD_INLINE void odd_transform(Complex<T>* a, int any_radix, const T* roots) {
  const int radix = R ? R : any_radix, half = radix / 2;
  Complex<T> sums[(R ? R : kLargestPrime) / 2 + 1], turns[(R ? R : kLargestPrime) / 2 + 1];
  Complex<T> total = a[0];
  for (int r = 1; r <= half; ++r) {
    sums[r] = a[r] + a[radix - r];
    turns[r] = quarter_turn<Inverse>(a[r] - a[radix - r]);
    total = total + sums[r];
  }
  const Complex<T> first = a[0];
  for (int s = 1; s <= half; ++s) {
    Complex<T> even = first, odd = {};
    for (int r = 1, index = s; r <= half; ++r) {
      const T cosine = roots[2 * index], sine = -roots[2 * index + 1];
      even.re += sums[r].re * cosine;
      even.im += sums[r].im * cosine;
      odd.re += turns[r].re * sine;
      odd.im += turns[r].im * sine;
      index += s;
      if (index >= radix) index -= radix;
    }
    a[s] = even + odd;
    a[radix - s] = even - odd;
  }
  a[0] = total;
}

// R numbers; R == 0 stands for any odd `radix`. Those without a form of their own need their roots.
template <int R, bool Inverse, class T>
static SPECGRAD_INLINE void small_transform(Complex<T>* a, int radix = R,
                                            const T* roots = nullptr) {
  if constexpr (R == 1) {
    return;
  } else if constexpr (R == 2) {
    const Complex<T> x = a[0], y = a[1];
    a[0] = x + y;
    a[1] = x - y;
  } else if constexpr (R == 3) {
    const T half = T(0.5), sine = T(0.86602540378443864676);
    const Complex<T> sum = a[1] + a[2], difference = a[1] - a[2];
    const Complex<T> turned = quarter_turn<Inverse>(difference);
    const Complex<T> middle = {a[0].re - sum.re * half, a[0].im - sum.im * half};
    a[0] = a[0] + sum;
    a[1] = {middle.re + turned.re * sine, middle.im + turned.im * sine};
    a[2] = {middle.re - turned.re * sine, middle.im - turned.im * sine};
  } else if constexpr (R == 4) {
    const Complex<T> even = a[0] + a[2], odd = a[0] - a[2];
    const Complex<T> other = a[1] + a[3], turned = quarter_turn<Inverse>(a[1] - a[3]);
    a[0] = even + other;
    a[1] = odd + turned;
    a[2] = even - other;
    a[3] = odd - turned;
  } else if constexpr (R == 6) {
    // Two and three have no common factor: no twiddles between them.
    Complex<T> sums[3] = {a[0] + a[3], a[2] + a[5], a[4] + a[1]};
    Complex<T> differences[3] = {a[0] - a[3], a[2] - a[5], a[4] - a[1]};
    small_transform<3, Inverse>(sums);
    small_transform<3, Inverse>(differences);
    a[0] = sums[0], a[4] = sums[1], a[2] = sums[2];
    a[3] = differences[0], a[1] = differences[1], a[5] = differences[2];
  } else if constexpr (R == 8) {
    const T half = T(0.70710678118654752440);
    Complex<T> even[4] = {a[0], a[2], a[4], a[6]}, odd[4] = {a[1], a[3], a[5], a[7]};
    small_transform<4, Inverse>(even);
    small_transform<4, Inverse>(odd);
    const Complex<T> turned[3] = {quarter_turn<Inverse>(odd[1]), quarter_turn<Inverse>(odd[2]),
                                  quarter_turn<Inverse>(odd[3])};
    const Complex<T> first = odd[1] + turned[0], third = turned[2] - odd[3];
    a[0] = even[0] + odd[0];
    a[4] = even[0] - odd[0];
    a[1] = {even[1].re + first.re * half, even[1].im + first.im * half};
    a[5] = {even[1].re - first.re * half, even[1].im - first.im * half};
    a[2] = even[2] + turned[1];
    a[6] = even[2] - turned[1];
    a[3] = {even[3].re + third.re * half, even[3].im + third.im * half};
    a[7] = {even[3].re - third.re * half, even[3].im - third.im * half};
  } else {
    static_assert(R == 0 || R == 5, "radix without a small transform");
    odd_transform<R, Inverse>(a, radix, roots);
  }
}

// One pass over blocks of `length` elements. R == 0 stands for any odd radix.
template <int R, bool Inverse, class T, class To>
static inline void transform_pass(const TransformTables<T>& plan,
                                  const typename TransformTables<T>::Pass& pass, Elements<T> from,
                                  To to) {
  const int n = plan.length, length = pass.length, count = R ? R : pass.radix;
  const int stride = length / count;
  const T *twiddles = plan.twiddles.data() + pass.twiddles, *roots = plan.roots.data() + pass.roots;
  const auto blocks = [&](int q, auto twiddled) __attribute__((always_inline)) {
    const T* twiddle = twiddles + 2 * static_cast<int64_t>(q) * (count - 1);
    for (int block = q; block < n; block += length) {
      Complex<T> a[R ? R : kLargestPrime];
      for (int r = 0; r < count; ++r) a[r] = from[block + r * stride];
      if constexpr (Inverse && twiddled) {
        for (int r = 1; r < count; ++r) {
          a[r] = rotate<true>(a[r], twiddle[2 * r - 2], twiddle[2 * r - 1]);
        }
      }
      small_transform<R, Inverse>(a, count, roots);
      if constexpr (!Inverse && twiddled) {
        for (int r = 1; r < count; ++r) {
          a[r] = rotate<false>(a[r], twiddle[2 * r - 2], twiddle[2 * r - 1]);
        }
      }
      for (int r = 0; r < count; ++r) to.put(block + r * stride, a[r]);
    }
  };
  blocks(0, std::false_type{});
  for (int q = 1; q < stride; ++q) blocks(q, std::true_type{});
}

template <bool Inverse, class T, class To>
static inline void any_pass(const TransformTables<T>& plan, int index_of_pass, Elements<T> from,
                            To to) {
  const auto& pass = plan.passes[index_of_pass];
  const bool small = with_constant<1, 2, 3, 4, 5, 6, 8>(
      pass.radix, SPECGRAD_EACH { transform_pass<index, Inverse>(plan, pass, from, to); });
  if (!small) transform_pass<0, Inverse>(plan, pass, from, to);
}

// All passes from `from` to `to`; those between the first and the last work on `tile`.
template <bool Inverse, class T, class To>
static inline void transform(const TransformTables<T>& plan, Elements<T> from, Elements<T> tile,
                             To to) {
  const int last = static_cast<int>(plan.passes.size()) - 1;
  for (int step = 0; step < last; ++step, from = tile) {
    any_pass<Inverse>(plan, Inverse ? last - step : step, from, tile);
  }
  any_pass<Inverse>(plan, Inverse ? 0 : last, from, to);
}
