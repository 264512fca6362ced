// A real circulant applied in place to a grid of rows x columns numbers: real transforms down
// the columns, twiddles and row transforms with the gains between them, and the way back.
// Included inside the namespace of an instruction set.
//
// Column tiles are 2 * lanes wide: two real columns a, b travel as one complex signal a + ib. A row
// is whole tiles, `pitch` numbers; those that fill the last are zero. Between the steps the grid
// holds the spectra of these signals, in the order that the transform left them in.

// Tiles are transformed where they are; the passes between the first and the last in a tile of
// neighbours, because rows that lie far apart would push each other out of the cache.
template <bool Inverse, class T>
static void columns_transform(const CirculantTables<T>& plan, T* grid, int64_t begin, int64_t end,
                              T* tile) {
  constexpr int wide = 2 * kLanes<T>;
  for (int64_t t = begin; t < end; ++t) {
    const Elements<T> ends{grid + t * wide, plan.pitch};
    const Elements<T> between = plan.pitch == wide ? ends : Elements<T>{tile};
    if constexpr (Inverse) {
      transform<true>(plan.down, ends, between, Scaled<T>{ends, plan.scale});
    } else {
      transform<false>(plan.down, ends, between, ends);
    }
  }
}

// Twiddles of the rows of one group, for every column; in large grids multiplied into `room`.
template <class T>
static inline Elements<const T> twiddles_of(const CirculantTables<T>& plan, int64_t group, T* room) {
  constexpr int wide = 2 * kLanes<T>;
  const T* coarse = plan.coarse.data() + group * plan.spans * wide;
  if (plan.fine.empty()) return {coarse};
  const Elements<const T> fine{plan.fine.data() + group * kTwiddleBlock * wide};
  const Elements<T> products{room};
  for (int64_t first = 0; first < plan.pitch; first += kTwiddleBlock, coarse += wide) {
    const Complex<T> base = load_complex(coarse);
    const int64_t count = std::min(kTwiddleBlock, plan.pitch - first);
    for (int64_t i = 0; i < count; ++i) {
      const Complex<T> turn = fine[i];
      products.put(first + i, rotate<false>(base, turn.re, turn.im));
    }
  }
  return {room};
}

// The rows of a group, and those of the negative frequencies. Lanes beyond the last row take the
// place of `beyond`.
template <class T>
struct Rows {
  T* plus[kLanes<T>];
  T* minus[kLanes<T>];

  Rows(const CirculantTables<T>& plan, T* grid, int64_t group, T* beyond) {
    const int* position = plan.down.position.data();
    for (int lane = 0; lane < kLanes<T>; ++lane) {
      const int64_t k = group * kLanes<T> + lane;
      const bool inside = 2 * k <= plan.rows;
      plus[lane] = inside ? grid + position[k] * plan.pitch : beyond;
      minus[lane] = inside ? grid + position[k ? plan.rows - k : 0] * plan.pitch : beyond;
    }
  }
};

// Takes the spectra of two real columns apart, turns columns into elements, and applies twiddles.
template <class T>
static void gather(const Rows<T>& rows, Elements<const T> twiddles, int64_t pitch,
                   Elements<T> elements) {
  constexpr int lanes = kLanes<T>;
  for (int64_t m2 = 0; m2 < pitch; m2 += 2 * lanes) {
    const auto put = [&](int64_t first, Vec<T>* re, Vec<T>* im) __attribute__((always_inline)) {
      transpose<T>(re);
      transpose<T>(im);
      repeat<lanes>(SPECGRAD_EACH {
        const Complex<T> twiddle = twiddles[first + index];
        elements.put(first + index,
                     rotate<false>(Complex<T>{re[index], im[index]}, twiddle.re, twiddle.im));
      });
    };
    Vec<T> re[lanes], im[lanes];
    repeat<lanes>(SPECGRAD_EACH {
      const T *plus = rows.plus[index] + m2, *minus = rows.minus[index] + m2;
      re[index] = load(plus) + load(minus);
      im[index] = load(plus + lanes) - load(minus + lanes);
    });
    put(m2, re, im);
    repeat<lanes>(SPECGRAD_EACH {
      const T *plus = rows.plus[index] + m2, *minus = rows.minus[index] + m2;
      re[index] = load(plus + lanes) + load(minus + lanes);
      im[index] = load(minus) - load(plus);
    });
    put(m2 + lanes, re, im);
  }
}

// The way back.
template <class T>
static void scatter(const Rows<T>& rows, Elements<const T> twiddles, int64_t pitch,
                    Elements<T> elements) {
  constexpr int lanes = kLanes<T>;
  for (int64_t m2 = 0; m2 < pitch; m2 += 2 * lanes) {
    const auto put = [&](int64_t column, Vec<T>* plus, Vec<T>* minus)
                         __attribute__((always_inline)) {
      transpose<T>(plus);
      transpose<T>(minus);
      repeat<lanes>(SPECGRAD_EACH {
        store(rows.plus[index] + column, plus[index] + minus[index]);
        store(rows.minus[index] + column, plus[index] - minus[index]);
      });
    };
    Vec<T> a[lanes], b[lanes];
    repeat<lanes>(SPECGRAD_EACH {
      const Complex<T> x = elements[m2 + index], turn = twiddles[m2 + index];
      a[index] = x.re * turn.re + x.im * turn.im;
    });
    repeat<lanes>(SPECGRAD_EACH {
      const Complex<T> x = elements[m2 + lanes + index], turn = twiddles[m2 + lanes + index];
      b[index] = x.re * turn.im - x.im * turn.re;
    });
    put(m2, a, b);
    repeat<lanes>(SPECGRAD_EACH {
      const Complex<T> x = elements[m2 + lanes + index], turn = twiddles[m2 + lanes + index];
      a[index] = x.re * turn.re + x.im * turn.im;
    });
    repeat<lanes>(SPECGRAD_EACH {
      const Complex<T> x = elements[m2 + index], turn = twiddles[m2 + index];
      b[index] = x.im * turn.re - x.re * turn.im;
    });
    put(m2 + lanes, a, b);
  }
}

// The last pass forward, the gains and the first pass back, element by element of a group.
// R == 0 stands for any odd radix. Not inlined: side by side they crowd each other's registers.
template <int R, class T>
static __attribute__((noinline)) void gain_pass(const CirculantTables<T>& plan, int64_t group,
                                                Elements<T> elements) {
  const int count = R ? R : plan.along.passes.back().radix;
  const T* roots = plan.along.roots.data() + plan.along.passes.back().roots;
  const int64_t row = group * kLanes<T>;
  const auto amplified = [&](int64_t position, Complex<T> x) __attribute__((always_inline)) {
    const int64_t offset = plan.gain_offset[position];
    if (offset < 0) return Complex<T>{};
    const Vec<T> gain = load(plan.gains.data() + offset + row * plan.gain_step[position]);
    return Complex<T>{x.re * gain, x.im * gain};
  };
  for (int64_t block = 0; block < plan.columns; block += count) {
    Complex<T> a[R ? R : kLargestPrime];
    for (int r = 0; r < count; ++r) a[r] = elements[block + r];
    small_transform<R, false>(a, count, roots);
    for (int r = 0; r < count; ++r) a[r] = amplified(block + r, a[r]);
    small_transform<R, true>(a, count, roots);
    for (int r = 0; r < count; ++r) elements.put(block + r, a[r]);
  }
}

template <class T>
static inline void any_gain_pass(const CirculantTables<T>& plan, int64_t group,
                                 Elements<T> elements) {
  const bool small = with_constant<1, 2, 3, 4, 5, 6, 8>(
      plan.along.passes.back().radix, SPECGRAD_EACH { gain_pass<index>(plan, group, elements); });
  if (!small) gain_pass<0>(plan, group, elements);
}

// Transforms along the rows of a group, with the gains between them.
template <class T>
static __attribute__((noinline)) void filter_elements(const CirculantTables<T>& plan, int64_t group,
                                                      Elements<T> elements) {
  const int middle = static_cast<int>(plan.along.passes.size()) - 1;
  for (int pass = 0; pass < middle; ++pass) any_pass<false>(plan.along, pass, elements, elements);
  any_gain_pass(plan, group, elements);
  for (int pass = middle - 1; pass >= 0; --pass) {
    any_pass<true>(plan.along, pass, elements, elements);
  }
}

template <class T>
static void rows_filter(const CirculantTables<T>& plan, T* grid, int64_t begin, int64_t end,
                        T* tile) {
  const Elements<T> elements{tile};
  T* room = tile + plan.pitch * elements.stride;
  T* beyond = room + plan.pitch * elements.stride;
  std::fill_n(beyond, plan.pitch, T(0));
  for (int64_t group = begin; group < end; ++group) {
    const Rows<T> rows(plan, grid, group, beyond);
    const Elements<const T> twiddles = twiddles_of(plan, group, room);
    gather(rows, twiddles, plan.pitch, elements);
    filter_elements(plan, group, elements);
    scatter(rows, twiddles, plan.pitch, elements);
  }
}
