// The kernels of bfloat16. The level that includes this defines FUSED_HALF if it has them, and FUSED_TILES if it
// multiplies in tiles: the compiler's own macros depend on flags that the user may have set for all files.
#pragma once
#include "lanes_avx512.h"
//
#include "dense_product.h"
#include "encoder_layer.h"
#include "kernels.h"

#define HALF_KERNELS                                                                                    \
  {                                                                                                     \
    {layer_saved_bytes<Half>, layer_work_bytes<Half>, layer_forward<Half>, layer_backward<Half>},      \
        dense_of_half, dense_work_bytes, layer_packed_bytes, layer_pack                                 \
  }
