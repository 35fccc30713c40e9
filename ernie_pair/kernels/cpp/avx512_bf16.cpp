// The kernels of processors that multiply bfloat16 (AVX512_BF16). A compiler older than they are makes none of them.
#ifdef __AVX512BF16__
#include "lanes_avx512.h"
//
#include "dense_product.h"
#include "encoder_layer.h"
#include "kernels.h"

const HalfKernels avx512_bf16_kernels = {
    {layer_saved_bytes<Half>, layer_work_bytes<Half>, layer_forward<Half>, layer_backward<Half>},
    dense_of_half, dense_work_bytes, layer_packed_bytes, layer_pack};
#else
#include "kernels.h"

const HalfKernels avx512_bf16_kernels = {};
#endif
