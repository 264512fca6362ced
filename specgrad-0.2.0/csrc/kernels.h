// The kernels of one instruction set, as the engine calls them.
#pragma once

#include <cstdint>

#include "plans.h"
#include "signal.h"

namespace specgrad {

template <class T>
struct Kernels {
  void (*subtract_large_mean)(const Signal&);
  void (*spread)(const BandTables<T>&, const Signal&, int64_t begin, int64_t end, T* cells,
                 T* scratch);
  void (*wrap_margins)(const BandTables<T>&, T* cells);
  void (*interpolate)(const BandTables<T>&, const Signal&, int64_t begin, int64_t end,
                      const T* cells, T* scratch);
  void (*columns_forward)(const CirculantTables<T>&, T* grid, int64_t begin, int64_t end, T* tile);
  void (*rows_filter)(const CirculantTables<T>&, T* grid, int64_t begin, int64_t end, T* tile);
  void (*columns_inverse)(const CirculantTables<T>&, T* grid, int64_t begin, int64_t end, T* tile);
  void (*dense_filter)(const DenseTables<T>&, const Signal&, T* scratch);
  void (*subtract_means)(const MeanTables&, const Signal&, T* scratch);
  void (*read_extended)(const Signal&, Boundary, int64_t begin, int64_t end, T* out);
  void (*detrend)(const DetrendTables<T>&, const Signal&, int64_t begin, int64_t end, const T* left,
                  const T* right, T* scratch);
  void (*subtract_averages)(const WideTables<T>&, const Signal&, int64_t begin, int64_t end,
                            const T* averages, const T* ends);
  void (*read)(const Signal&, int64_t begin, int64_t end, T* out);
  void (*write)(const Signal&, int64_t begin, int64_t end, const T* values);
};

// The kernels of the chosen instruction set.
template <class T>
const Kernels<T>& kernels();

}  // namespace specgrad
