// The kernels of processors with AVX2 and FMA: float32 only.
#include "lanes_avx2.h"
//
#include "float_kernels.h"

const FloatKernels avx2_kernels = FLOAT_KERNELS;
