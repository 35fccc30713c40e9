// The kernels of processors that multiply bfloat16 (AVX512_BF16). Compilers too old for them build none.
#ifdef __AVX512BF16__
#define FUSED_HALF
#include "half_kernels.h"

const HalfKernels avx512_bf16_kernels = HALF_KERNELS;
#else
#include "kernels.h"

const HalfKernels avx512_bf16_kernels = {};
#endif
