// A real circulant applied in place to a grid of rows x columns numbers: real transforms down
// the columns, twiddles and row transforms with the gains between them, and the way back.
// Included inside the namespace of an instruction set.
//
// Between the steps the grid holds half-complex columns: row k the real and row (rows - k) the
// imaginary part of frequency k, times two.

// `count` <= lanes numbers, the rest zero.
template <class T>
static inline Vec<T> load_part(const T* p, int64_t count) {
  if (count >= kLanes<T>) return load(p);
  alignas(64) T buffer[kLanes<T>] = {};
  for (int64_t i = 0; i < count; ++i) buffer[i] = p[i];
  return load(buffer);
}

template <class T>
static inline void store_part(T* p, Vec<T> v, int64_t count) {
  if (count >= kLanes<T>) return store(p, v);
  alignas(64) T buffer[kLanes<T>];
  store(buffer, v);
  for (int64_t i = 0; i < count; ++i) p[i] = buffer[i];
}

// Column tiles are 2 * lanes wide: two real columns travel as one complex signal.
template <class T>
static void columns_forward(const CirculantPlan<T>& plan, T* grid, int64_t begin, int64_t end,
                            T* tile) {
  constexpr int lanes = kLanes<T>;
  const int64_t rows = plan.rows, columns = plan.columns;
  const int* position = plan.down.position.data();
  for (int64_t t = begin; t < end; ++t) {
    T* corner = grid + t * 2 * lanes;
    const int64_t first = columns - t * 2 * lanes, second = first - lanes;
    for (int64_t r = 0; r < rows; ++r) {
      const T* p = corner + r * columns;
      store_element<T>(tile, r, {load_part(p, first), load_part(p + lanes, second)});
    }
    transform<false>(plan.down, tile);
    const auto put = [&](int64_t row, Vec<T> a, Vec<T> b) {
      T* p = corner + row * columns;
      store_part(p, a, first);
      store_part(p + lanes, b, second);
    };
    const Complex<T> zero = load_element(tile, 0);
    put(0, zero.re + zero.re, zero.im + zero.im);
    for (int64_t k = 1; 2 * k < rows; ++k) {
      const Complex<T> plus = load_element(tile, position[k]);
      const Complex<T> minus = load_element(tile, position[rows - k]);
      put(k, plus.re + minus.re, plus.im + minus.im);
      put(rows - k, plus.im - minus.im, minus.re - plus.re);
    }
    if (rows % 2 == 0) {
      const Complex<T> middle = load_element(tile, position[rows / 2]);
      put(rows / 2, middle.re + middle.re, middle.im + middle.im);
    }
  }
}

template <class T>
static void columns_inverse(const CirculantPlan<T>& plan, T* grid, int64_t begin, int64_t end,
                            T* tile) {
  constexpr int lanes = kLanes<T>;
  const int64_t rows = plan.rows, columns = plan.columns;
  const int* position = plan.down.position.data();
  for (int64_t t = begin; t < end; ++t) {
    T* corner = grid + t * 2 * lanes;
    const int64_t first = columns - t * 2 * lanes, second = first - lanes;
    const auto get = [&](int64_t row) -> Complex<T> {
      const T* p = corner + row * columns;
      return {load_part(p, first), load_part(p + lanes, second)};
    };
    store_element(tile, 0, get(0));
    for (int64_t k = 1; 2 * k < rows; ++k) {
      const Complex<T> real = get(k), imaginary = get(rows - k);
      store_element<T>(tile, position[k], {real.re - imaginary.im, imaginary.re + real.im});
      store_element<T>(tile, position[rows - k], {real.re + imaginary.im, real.im - imaginary.re});
    }
    if (rows % 2 == 0) store_element(tile, position[rows / 2], get(rows / 2));
    transform<true>(plan.down, tile);
    for (int64_t r = 0; r < rows; ++r) {
      const Complex<T> pair = load_element(tile, r);
      T* p = corner + r * columns;
      store_part(p, pair.re, first);
      store_part(p + lanes, pair.im, second);
    }
  }
}

// Twiddles of the rows of one group at column m2.
template <class T>
static inline Complex<T> twiddle_at(const CirculantPlan<T>& plan, int64_t k1, int64_t m2) {
  const int64_t coarse = (m2 / plan.block) * plan.padded_rows + k1;
  const Complex<T> base = {load(plan.coarse_re.data() + coarse),
                           load(plan.coarse_im.data() + coarse)};
  if (plan.block == 1) return base;
  const int64_t fine = (m2 % plan.block) * plan.padded_rows + k1;
  return rotate<false>(base, load(plan.fine_re.data() + fine), load(plan.fine_im.data() + fine));
}

template <class T>
static void rows_filter(const CirculantPlan<T>& plan, T* grid, int64_t begin, int64_t end,
                        T* tile) {
  constexpr int lanes = kLanes<T>;
  const int64_t rows = plan.rows, columns = plan.columns;
  for (int64_t group = begin; group < end; ++group) {
    const int64_t k1 = group * lanes;
    T* real[lanes];
    T* imaginary[lanes];
    for (int lane = 0; lane < lanes; ++lane) {
      const int64_t k = k1 + lane;
      real[lane] = 2 * k <= rows ? grid + k * columns : nullptr;
      imaginary[lane] = k > 0 && 2 * k < rows ? grid + (rows - k) * columns : nullptr;
    }
    for (int64_t m2 = 0; m2 < columns; m2 += lanes) {
      const int64_t count = std::min<int64_t>(lanes, columns - m2);
      Vec<T> re[lanes], im[lanes];
      for (int lane = 0; lane < lanes; ++lane) {
        re[lane] = real[lane] ? load_part(real[lane] + m2, count) : Vec<T>{};
        im[lane] = imaginary[lane] ? load_part(imaginary[lane] + m2, count) : Vec<T>{};
      }
      transpose<T>(re);
      transpose<T>(im);
      for (int64_t i = 0; i < count; ++i) {
        const Complex<T> twiddle = twiddle_at(plan, k1, m2 + i);
        store_element(tile, m2 + i, rotate<false>(Complex<T>{re[i], im[i]}, twiddle.re, twiddle.im));
      }
    }
    transform<false>(plan.along, tile);
    for (int64_t p = 0; p < columns; ++p) {
      if (plan.gain_offset[p] < 0) {
        store_element(tile, p, Complex<T>{});
        continue;
      }
      const Vec<T> gain = load(plan.gains.data() + plan.gain_offset[p] + k1 * plan.gain_step[p]);
      const Complex<T> x = load_element(tile, p);
      store_element<T>(tile, p, {x.re * gain, x.im * gain});
    }
    transform<true>(plan.along, tile);
    for (int64_t m2 = 0; m2 < columns; m2 += lanes) {
      const int64_t count = std::min<int64_t>(lanes, columns - m2);
      Vec<T> re[lanes] = {}, im[lanes] = {};
      for (int64_t i = 0; i < count; ++i) {
        const Complex<T> twiddle = twiddle_at(plan, k1, m2 + i);
        const Complex<T> x = rotate<true>(load_element(tile, m2 + i), twiddle.re, twiddle.im);
        re[i] = x.re;
        im[i] = x.im;
      }
      transpose<T>(re);
      transpose<T>(im);
      for (int lane = 0; lane < lanes; ++lane) {
        if (real[lane]) store_part(real[lane] + m2, re[lane], count);
        if (imaginary[lane]) store_part(imaginary[lane] + m2, im[lane], count);
      }
    }
  }
}
