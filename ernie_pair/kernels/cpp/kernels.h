// The kernels of one level of processors, as a table of functions. Each level is compiled from the same sources, with the
// flags and the lanes of that level.
#pragma once
#include "fused.h"

// A product of m x k by k x n; see fused_product.
struct Dense {
  int64_t m, n, k;
  int threads;
};
typedef void (*DenseKernel)(const Dense &, const float *a, const float *b, void *work, float *c);

// Of one precision of products.
struct LayerKernels {
  size_t (*saved_bytes)(const fused_layer *);
  size_t (*work_bytes)(const fused_layer *);
  void (*forward)(const fused_layer *, const float *, const float *, const float *const *, const void *, void *, void *,
                  float *);
  void (*backward)(const fused_layer *, const float *, const float *const *, const void *, const void *, const float *,
                   void *, float *, float *const *);
};

struct HalfKernels {
  LayerKernels layer;
  DenseKernel product;
  size_t (*product_work_bytes)(const Dense &);
  size_t (*packed_bytes)(const fused_layer *);
  void (*pack)(const fused_layer *, const float *const *, void *);
};

struct FloatKernels {
  LayerKernels layer;
  DenseKernel product;
  decltype(&fused_embedding_saved_bytes) embedding_saved_bytes;
  decltype(&fused_embedding_work_bytes) embedding_work_bytes;
  decltype(&fused_embedding_forward) embedding_forward;
  decltype(&fused_embedding_backward) embedding_backward;
  decltype(&fused_adamw_step) adamw_step;
  decltype(&fused_sum_of_squares) sum_of_squares;
};

extern const FloatKernels avx2_kernels, avx512_kernels;
extern const HalfKernels avx512_bf16_kernels, amx_bf16_kernels;
