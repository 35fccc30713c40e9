/* The C interface of the fused CPU kernels: plain arrays in, nothing of Paddle.
 *
 * It is called through ctypes by the dynamic graph and through a thin custom operator by the static graph. All arrays
 * are row-major and contiguous; float is IEEE float32. B batch, S sequence length, D hidden, H heads, F inner
 * width of the feed-forward, V vocabulary, N rows. M is the number of rows of a layer: B S, or without padding
 * starts[B]; R is how many it returns: M, or B with first_token_only, or out_rows.
 *
 * Functions that return an int status return 0, or 1 when oneDNN refused a product.
 * On one processor a result depends only on the arguments and on fused_level(), to the last bit: not on the number of
 * threads. Products are oneDNN's, which checks the processor itself, except for bfloat16 on AMX. Denormals are zero.
 */
#ifndef ERNIE_PAIR_FUSED_H
#define ERNIE_PAIR_FUSED_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define FUSED_API __attribute__((visibility("default")))
#else
#define FUSED_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Incremented with every change of this file, so that an operator and a library of two versions never meet. */
#define FUSED_VERSION 7

enum { FUSED_NONE = 0, FUSED_AVX2 = 1, FUSED_AVX512 = 2, FUSED_AVX512_BF16 = 3, FUSED_AMX_BF16 = 4 };
enum { FUSED_FLOAT32 = 0, FUSED_BFLOAT16 = 1 };
enum { FUSED_GELU = 0, FUSED_RELU = 1 };

/* The parameters of an encoder layer, in this order, and so their gradients. Weights are [in, out]. */
enum {
  FUSED_WQ, FUSED_BQ, FUSED_WK, FUSED_BK, FUSED_WV, FUSED_BV, FUSED_WO, FUSED_BO, /* attention */
  FUSED_W1, FUSED_B1, FUSED_W2, FUSED_B2,                                         /* feed-forward */
  FUSED_G1, FUSED_E1, FUSED_G2, FUSED_E2, /* scale and shift of the norms after each */
  FUSED_LAYER_PARAMETERS
};

/* One call of a post-norm encoder layer. */
typedef struct {
  int32_t batch, length, hidden, heads, inner; /* length: of the longest sequence */
  int32_t precision;        /* of products and of what is kept for the backward pass */
  int32_t first_token_only; /* 1: the output is of the first token of each sequence */
  int32_t forward_only; /* 1: there is no backward pass, no dropout and no `rows`; nothing is saved */
  int32_t threads;
  float hidden_dropout, attention_dropout; /* 0: none */
  float epsilon;                           /* of the norms */
  uint32_t seed;  /* dropout is Philox of (seed, layer, which dropout, row, column): of (run, rank, step, micro-batch) */
  uint32_t layer;     /* its number in the model */
  int32_t activation; /* FUSED_GELU, of the error function, or FUSED_RELU */
  int32_t out_rows;
  const int32_t *rows;   /* [out_rows], each larger than the last: the rows of M that are returned; NULL: all */
  const int32_t *starts; /* [batch + 1]: where each sequence begins, and the last ends; NULL: all are of `length` */
} fused_layer;

/* One call of the embeddings: word + position + token type (+ task) -> norm -> dropout. */
typedef struct {
  int32_t batch, length, hidden;
  int32_t vocab_size, num_positions, num_types;
  int32_t threads;
  float dropout, epsilon;
  uint32_t seed;
  int64_t padding_id; /* whose row has no gradient; -1: none */
} fused_embedding;

FUSED_API int fused_version(void);
/* What this processor offers: FUSED_NONE to FUSED_AMX_BF16. */
FUSED_API int fused_processor_level(void);
/* Open oneDNN's library and choose the kernels, at most level `most`. Returns the level in use; FUSED_NONE:
 * the library cannot be opened or its products do not work, and no other function may be called. */
FUSED_API int fused_open(const char *onednn, int most);
FUSED_API int fused_level(void);

/* Bytes of the three workspaces of a layer. All must be aligned to 64. */
FUSED_API size_t fused_packed_bytes(const fused_layer *layer); /* the weights, packed for the products; 0 in float32 */
FUSED_API size_t fused_saved_bytes(const fused_layer *layer);  /* from forward to backward; 0 if forward_only */
FUSED_API size_t fused_work_bytes(const fused_layer *layer);   /* within one call, of either */

/* Fill `packed` from the parameters: call it whenever they have changed. */
FUSED_API void fused_layer_pack(const fused_layer *layer, const float *const *parameters, void *packed);
/* x [M, D], mask [M] to be added to the attention scores or NULL -> y [R, D]. */
FUSED_API int fused_layer_forward(const fused_layer *layer, const float *x, const float *mask,
                                   const float *const *parameters, const void *packed, void *saved, void *work,
                                   float *y);
/* dy [R, D] -> dx [M, D] and the gradients of the parameters, all overwritten. x, parameters, packed and
 * saved are those of the forward pass. */
FUSED_API int fused_layer_backward(const fused_layer *layer, const float *x, const float *const *parameters,
                                    const void *packed, const void *saved, const float *dy, void *work, float *dx,
                                    float *const *gradients);

FUSED_API size_t fused_embedding_saved_bytes(const fused_embedding *embedding);
FUSED_API size_t fused_embedding_work_bytes(const fused_embedding *embedding);
/* ids, types and positions int64 [B, S]; positions NULL: 0, 1, ... S - 1. `task` float [D] or NULL is added to
 * every row. -> y [B, S, D]. The caller has checked that all ids are in range. */
FUSED_API void fused_embedding_forward(const fused_embedding *embedding, const int64_t *ids, const int64_t *types,
                                       const int64_t *positions, const float *words, const float *places,
                                       const float *kinds, const float *task, const float *scale,
                                       const float *shift, void *saved, float *y);
/* Gradients: words [V, D], places [num_positions, D], kinds [num_types, D], task [D] or NULL, scale and shift
 * [D]; all overwritten. */
FUSED_API void fused_embedding_backward(const fused_embedding *embedding, const int64_t *ids, const int64_t *types,
                                        const int64_t *positions, const float *scale, const void *saved,
                                        const float *dy, void *work, float *d_words, float *d_places,
                                        float *d_kinds, float *d_task, float *d_scale, float *d_shift);

/* c [m, n] = a [m, k] b [k, n], float32 in and out; with `precision` FUSED_BFLOAT16 the factors are rounded first. */
FUSED_API size_t fused_product_work_bytes(int64_t m, int64_t n, int64_t k, int precision);
FUSED_API int fused_product(int64_t m, int64_t n, int64_t k, const float *a, const float *b, int precision, int threads,
                             void *work, float *c);

/* One step of AdamW over `count` tensors, in place; gradients are multiplied by `gradient_factor` (of clipping).
 * Per tensor: its size, its rate, its decay. power1 and power2 are beta1 and beta2 to the number of the step. */
typedef struct {
  float beta1, beta2, epsilon, power1, power2, gradient_factor;
  int32_t threads;
} fused_adamw;
FUSED_API void fused_adamw_step(const fused_adamw *settings, int64_t count, const int64_t *sizes,
                                const float *rates, const float *decays, float *const *parameters,
                                const float *const *gradients, float *const *moments1, float *const *moments2);
/* The sum of the squares of all elements. */
FUSED_API double fused_sum_of_squares(int64_t count, const int64_t *sizes, const float *const *tensors, int threads);

#ifdef __cplusplus
}
#endif
#endif
