// The kernels of processors that multiply tiles of bfloat16 (AMX). Compilers too old for them build none.
#ifdef __AMX_BF16__
#define FUSED_HALF
#define FUSED_TILES
#include "half_kernels.h"

const HalfKernels amx_bf16_kernels = HALF_KERNELS;
#else
#include "kernels.h"

const HalfKernels amx_bf16_kernels = {};
#endif
