#define SPECGRAD_ISA avx2
#define SPECGRAD_VECTOR_BYTES 32
#include "kernels_table.inl"
