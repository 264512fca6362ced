#define SPECGRAD_ISA avx512
#define SPECGRAD_VECTOR_BYTES 64
#include "kernels_table.inl"
