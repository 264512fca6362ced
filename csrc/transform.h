// Complex transforms whose elements are whole vectors: every lane transforms a signal of its
// own, so there are no shuffles and all twiddles are scalars. Forward leaves its output in
// digit-reversed order and inverse starts from it, so nothing is ever reordered. Included
// inside the namespace of an instruction set.
//
// Element e of a tile is two vectors, its real and imaginary parts, at tile + 2 * e * lanes.

template <class T>
struct Complex {
  Vec<T> re, im;
};

template <class T>
static inline Complex<T> load_element(const T* tile, int64_t e) {
  const Vec<T>* p = reinterpret_cast<const Vec<T>*>(tile) + 2 * e;
  return {p[0], p[1]};
}

template <class T>
static inline void store_element(T* tile, int64_t e, Complex<T> x) {
  Vec<T>* p = reinterpret_cast<Vec<T>*>(tile) + 2 * e;
  p[0] = x.re;
  p[1] = x.im;
}

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

template <int R, bool Inverse, class T>
static inline void small_transform(Complex<T>* a) {
  if constexpr (R == 2) {
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
  } else {
    static_assert(R == 5, "radix without a small transform");
    const T c1 = T(0.30901699437494742410), c2 = T(-0.80901699437494742410);
    const T s1 = T(0.95105651629515357212), s2 = T(0.58778525229247312917);
    const Complex<T> p1 = a[1] + a[4], p2 = a[2] + a[3];
    const Complex<T> m1 = quarter_turn<Inverse>(a[1] - a[4]);
    const Complex<T> m2 = quarter_turn<Inverse>(a[2] - a[3]);
    const Complex<T> u1 = {a[0].re + p1.re * c1 + p2.re * c2, a[0].im + p1.im * c1 + p2.im * c2};
    const Complex<T> u2 = {a[0].re + p1.re * c2 + p2.re * c1, a[0].im + p1.im * c2 + p2.im * c1};
    const Complex<T> v1 = {m1.re * s1 + m2.re * s2, m1.im * s1 + m2.im * s2};
    const Complex<T> v2 = {m1.re * s2 - m2.re * s1, m1.im * s2 - m2.im * s1};
    a[0] = a[0] + p1 + p2;
    a[1] = u1 + v1;
    a[2] = u2 + v2;
    a[3] = u2 - v2;
    a[4] = u1 - v1;
  }
}

// Any odd radix, from the table of its roots of unity.
template <bool Inverse, class T>
static inline void odd_transform(Complex<T>* a, int radix, const T* roots) {
  const int half = radix / 2;
  Complex<T> sums[kLargestPrime / 2 + 1], turns[kLargestPrime / 2 + 1];
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

// One pass over blocks of `length` elements. R == 0 stands for any odd radix.
template <int R, bool Inverse, class T>
static inline void transform_pass(T* tile, int n, int length, int radix, const T* twiddles,
                                  const T* roots) {
  const int count = R ? R : radix;
  const int stride = length / count;
  Complex<T> a[R ? R : kLargestPrime];
  for (int q = 0; q < stride; ++q) {
    const T* twiddle = twiddles + 2 * static_cast<int64_t>(q) * (count - 1);
    for (int block = 0; block < n; block += length) {
      for (int r = 0; r < count; ++r) a[r] = load_element(tile, block + q + r * stride);
      if (Inverse && q) {
        for (int r = 1; r < count; ++r) {
          a[r] = rotate<true>(a[r], twiddle[2 * r - 2], twiddle[2 * r - 1]);
        }
      }
      if constexpr (R != 0) {
        small_transform<R, Inverse>(a);
      } else {
        odd_transform<Inverse>(a, radix, roots);
      }
      if (!Inverse && q) {
        for (int r = 1; r < count; ++r) {
          a[r] = rotate<false>(a[r], twiddle[2 * r - 2], twiddle[2 * r - 1]);
        }
      }
      for (int r = 0; r < count; ++r) store_element(tile, block + q + r * stride, a[r]);
    }
  }
}

template <bool Inverse, class T>
static inline void transform(const TransformPlan<T>& plan, T* tile) {
  const int passes = static_cast<int>(plan.radices.size());
  for (int step = 0; step < passes; ++step) {
    const int pass = Inverse ? passes - 1 - step : step;
    const int radix = plan.radices[pass], n = plan.length, length = plan.lengths[pass];
    const T* twiddles = plan.twiddles.data() + plan.twiddles_start[pass];
    const T* roots = plan.roots.data() + plan.roots_start[pass];
    switch (radix) {
      case 2: transform_pass<2, Inverse>(tile, n, length, radix, twiddles, roots); break;
      case 3: transform_pass<3, Inverse>(tile, n, length, radix, twiddles, roots); break;
      case 4: transform_pass<4, Inverse>(tile, n, length, radix, twiddles, roots); break;
      case 5: transform_pass<5, Inverse>(tile, n, length, radix, twiddles, roots); break;
      default: transform_pass<0, Inverse>(tile, n, length, radix, twiddles, roots);
    }
  }
}
