// The kernels of processors with AVX-512 (F, BW, VL, DQ): float32.
#include "lanes_avx512.h"
//
#include "float_kernels.h"

const FloatKernels avx512_kernels = FLOAT_KERNELS;
