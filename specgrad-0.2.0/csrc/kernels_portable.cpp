#define SPECGRAD_ISA portable
#define SPECGRAD_VECTOR_BYTES 16
#include "kernels_table.inl"
