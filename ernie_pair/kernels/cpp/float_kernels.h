// Fills a FloatKernels. Included once per level, after its lanes.
#pragma once
#include "dense_product.h"
#include "embeddings.h"
#include "encoder_layer.h"
#include "kernels.h"
#include "optimizer.h"

#define FLOAT_KERNELS                                                                                                 \
  {{layer_saved_bytes<float>, layer_work_bytes<float>, layer_forward<float>, layer_backward<float>},                 \
   dense_of_float, embedding_saved_bytes, embedding_work_bytes, embedding_forward, embedding_backward, adamw_step,    \
   sum_of_squares}
