/* The encoder layer of fused.h as an operator of Paddle's static graph, and AdamW as another: compiled at first use with
 * the headers of the Paddle at hand, see operator.py.
 *
 * Nothing is computed here. The functions are those of the library that this process has already opened;
 * fused_operator_open() is given them. What the forward pass keeps for the backward pass is an output of
 * the operator, so Paddle's own memory pool frees it when nothing needs it any more: at once in an evaluation
 * and in the first of the two passes of recompute, after the backward pass in training.
 */
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "fused.h"
#include "paddle/phi/api/ext/op_meta_info.h"
#include "paddle/phi/api/ext/tensor_compat.h"

namespace {

/* FUNCTIONS in operator.py. */
struct Library {
  decltype(&fused_version) version;
  decltype(&fused_level) level;
  decltype(&fused_packed_bytes) packed_bytes;
  decltype(&fused_saved_bytes) saved_bytes;
  decltype(&fused_work_bytes) work_bytes;
  decltype(&fused_layer_pack) pack;
  decltype(&fused_layer_forward) forward;
  decltype(&fused_layer_backward) backward;
  decltype(&fused_adamw_step) adamw_step;
};

Library library = {};
int threads = 1;
std::mutex one_at_a_time; /* each call takes all threads, and Paddle may run two operators at once */

constexpr size_t kAlignment = 64; /* what fused.h requires */

size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

enum Attribute {
  kHeads, kLayer, kActivation, kPrecision, kHiddenDropout, kAttentionDropout, kEpsilon, kReadRowsAlone, kIsTest
};

/* One run of the op, forward or backward: the inputs that both have are contiguous from `seed` on. */
class Call {
 public:
  Call(const paddle::CustomOpKernelContext &context, int seed)
      : context_(context), first_(seed + 2), layer(settings(seed)) {
    for (int i = 0; i < FUSED_LAYER_PARAMETERS; ++i) parameters.push_back(context.InputAt(first_ + i).data<float>());
    if (!context.AttrAt<bool>(kReadRowsAlone)) return;
    read_rows(context.InputAt(seed + 1));
    layer.out_rows = static_cast<int32_t>(rows.size());
    layer.rows = rows.data();
  }
  Call(const Call &) = delete;
  Call &operator=(const Call &) = delete;

  const paddle::Tensor &parameter(int number) const { return context_.InputAt(first_ + number); }
  const paddle::Tensor &after_parameters(int number) const { return parameter(FUSED_LAYER_PARAMETERS + number); }

 private:
  const paddle::CustomOpKernelContext &context_;
  const int first_; /* of the parameters */

 public:
  fused_layer layer;
  std::vector<const float *> parameters;
  std::vector<int32_t> rows; /* those of [B S] that are read; empty: all */

 private:
  fused_layer settings(int seed) const {
    if (library.forward == nullptr) PD_THROW("fused_operator_open() was not called");
    const auto shape = context_.InputAt(0).shape();
    const bool is_test = context_.AttrAt<bool>(kIsTest);
    fused_layer of = {};
    of.batch = static_cast<int32_t>(shape[0]);
    of.length = static_cast<int32_t>(shape[1]);
    of.hidden = static_cast<int32_t>(shape[2]);
    of.heads = context_.AttrAt<int>(kHeads);
    of.inner = static_cast<int32_t>(parameter(FUSED_W1).shape()[1]);
    of.activation = context_.AttrAt<int>(kActivation);
    of.precision = context_.AttrAt<int>(kPrecision);
    of.threads = threads;
    of.hidden_dropout = is_test ? 0.0f : context_.AttrAt<float>(kHiddenDropout);
    of.attention_dropout = is_test ? 0.0f : context_.AttrAt<float>(kAttentionDropout);
    of.epsilon = context_.AttrAt<float>(kEpsilon);
    of.seed = static_cast<uint32_t>(context_.InputAt(seed).data<int32_t>()[0]);
    of.layer = static_cast<uint32_t>(context_.AttrAt<int>(kLayer));
    return of;
  }

  /* The first of each sequence, which the pooler reads, and those of `positions`, each once, in order. */
  void read_rows(const paddle::Tensor &positions) {
    const int64_t all = static_cast<int64_t>(layer.batch) * layer.length;
    std::vector<bool> is_read(all, false);
    for (int64_t first = 0; first < all; first += layer.length) is_read[first] = true;
    const int64_t *position = positions.data<int64_t>();
    for (int64_t i = 0; i < positions.numel(); ++i) {
      if (position[i] < 0 || position[i] >= all) PD_THROW("position ", position[i], " is in none of ", all, " tokens");
      is_read[position[i]] = true;
    }
    for (int64_t row = 0; row < all; ++row)
      if (is_read[row]) rows.push_back(static_cast<int32_t>(row));
  }
};

/* Bytes from Paddle's own memory pool, aligned as fused.h requires. */
paddle::Tensor bytes_of(size_t count, const paddle::Place &place) {
  return paddle::empty({static_cast<int64_t>(count + kAlignment)}, paddle::DataType::UINT8, place);
}

char *start_of(const paddle::Tensor &bytes) {
  const auto address = reinterpret_cast<uintptr_t>(bytes.data<uint8_t>());
  return reinterpret_cast<char *>((address + kAlignment - 1) / kAlignment * kAlignment);
}

/* The memory of an output of the shape of `like`. Memory that it already has is used: if gradients are summed over
 * processes, Paddle has placed them side by side before. */
float *output(paddle::CustomOpKernelContext *context, int place, const paddle::Tensor &like) {
  paddle::Tensor *tensor = context->MutableOutputAt(place);
  const bool is_there =
      tensor->initialized() && tensor->dtype() == paddle::DataType::FLOAT32 && tensor->shape() == like.shape();
  if (!is_there) paddle::AssignTensorImpl(paddle::empty_like(like), tensor);
  return tensor->data<float>();
}

/* Copy rows between [B S, D] and [R, D]; rows of the first without a counterpart are zero. */
void spread(const Call &call, const float *chosen, float *all) {
  const size_t width = call.layer.hidden;
  std::memset(all, 0, sizeof(float) * width * call.layer.batch * call.layer.length);
  for (size_t i = 0; i < call.rows.size(); ++i)
    std::memcpy(all + call.rows[i] * width, chosen + i * width, sizeof(float) * width);
}

void gather(const Call &call, const float *all, float *chosen) {
  const size_t width = call.layer.hidden;
  for (size_t i = 0; i < call.rows.size(); ++i)
    std::memcpy(chosen + i * width, all + call.rows[i] * width, sizeof(float) * width);
}

/* (x, mask, seed, positions, parameters) -> (y, saved): the packed weights, then what the library saves. */
void forward(paddle::CustomOpKernelContext *context) {
  const paddle::Tensor &x = context->InputAt(0), &mask = context->InputAt(1);
  const Call call(*context, 2);
  const fused_layer &layer = call.layer;
  if (mask.numel() != static_cast<int64_t>(layer.batch) * layer.length)
    PD_THROW("the mask of the fused operator has ", mask.numel(), " values for ", layer.batch, " x ", layer.length);
  const size_t packed_bytes = aligned(library.packed_bytes(&layer)), work_bytes = aligned(library.work_bytes(&layer));
  const size_t rows_bytes = sizeof(float) * call.rows.size() * layer.hidden;
  const paddle::Tensor saved = bytes_of(packed_bytes + library.saved_bytes(&layer), x.place());
  const paddle::Tensor work = bytes_of(work_bytes + rows_bytes, x.place());
  char *packed = start_of(saved);
  float *y = output(context, 0, x);
  float *rows_of_y = call.rows.empty() ? y : reinterpret_cast<float *>(start_of(work) + work_bytes);
  const std::lock_guard<std::mutex> alone(one_at_a_time);
  library.pack(&layer, call.parameters.data(), packed);
  const int refused = library.forward(&layer, x.data<float>(), mask.data<float>(), call.parameters.data(), packed,
                                      packed + packed_bytes, start_of(work), rows_of_y);
  if (refused) PD_THROW("oneDNN refused a product of an encoder layer");
  if (!call.rows.empty()) spread(call, rows_of_y, y);
  paddle::AssignTensorImpl(saved, context->MutableOutputAt(1));
}

/* (x, seed, positions, parameters, saved, dy) -> (dx, gradients of the parameters) */
void backward(paddle::CustomOpKernelContext *context) {
  const paddle::Tensor &x = context->InputAt(0);
  const Call call(*context, 1);
  const fused_layer &layer = call.layer;
  const char *packed = start_of(call.after_parameters(0));
  const float *dy = call.after_parameters(1).data<float>();
  float *gradients[FUSED_LAYER_PARAMETERS];
  for (int i = 0; i < FUSED_LAYER_PARAMETERS; ++i) gradients[i] = output(context, 1 + i, call.parameter(i));
  const size_t work_bytes = aligned(library.work_bytes(&layer));
  const paddle::Tensor work = bytes_of(work_bytes + sizeof(float) * call.rows.size() * layer.hidden, x.place());
  if (!call.rows.empty()) {
    float *rows_of_dy = reinterpret_cast<float *>(start_of(work) + work_bytes);
    gather(call, dy, rows_of_dy);
    dy = rows_of_dy;
  }
  const std::lock_guard<std::mutex> alone(one_at_a_time);
  const int refused = library.backward(&layer, x.data<float>(), call.parameters.data(), packed,
                                       packed + aligned(library.packed_bytes(&layer)), dy, start_of(work),
                                       output(context, 0, x), gradients);
  if (refused) PD_THROW("oneDNN refused a product of an encoder layer, backward");
}

using Shape = std::vector<int64_t>;

std::vector<Shape> shapes(const std::vector<Shape> &inputs, const std::vector<std::vector<Shape>> &,
                          const std::vector<paddle::any> &) {
  return {inputs[0], {-1}};
}

std::vector<paddle::DataType> types(const std::vector<paddle::DataType> &inputs,
                                    const std::vector<std::vector<paddle::DataType>> &,
                                    const std::vector<paddle::any> &) {
  return {inputs[0], paddle::DataType::UINT8};
}

const std::vector<std::string> kParameters = {"WQ", "BQ", "WK", "BK", "WV", "BV", "WO", "BO",
                                              "W1", "B1", "W2", "B2", "G1", "E1", "G2", "E2"};

std::vector<std::string> names(std::vector<std::string> before, const std::vector<std::string> &after) {
  before.insert(before.end(), kParameters.begin(), kParameters.end());
  before.insert(before.end(), after.begin(), after.end());
  return before;
}

std::vector<std::string> gradient_names() {
  std::vector<std::string> all = {paddle::Grad("X")};
  for (const auto &name : kParameters) all.push_back(paddle::Grad(name));
  return all;
}

std::vector<std::string> attributes() {
  return {"heads: int",
          "layer: int",
          "activation: int",
          "precision: int",
          "hidden_dropout: float",
          "attention_dropout: float",
          "epsilon: float",
          "read_rows_alone: bool",
          "is_test: bool"};
}

}  // namespace

/* Set the functions of the library that this process has open, in the order of `Library`, for `count` threads.
 * Returns what is wrong with it, NULL when nothing is. */
extern "C" __attribute__((visibility("default"))) const char *fused_operator_open(const Library *functions,
                                                                                  int count) {
  if (functions->version() != FUSED_VERSION) return "the library of the kernels is of another version";
  if (functions->level() == FUSED_NONE) return "the library of the kernels is not open";
  library = *functions;
  threads = count;
  return nullptr;
}

PD_BUILD_OP(ernie_pair_encoder_layer)
    .Inputs(names({"X", "Mask", "Seed", "Positions"}, {}))
    .Outputs({"Y", "Saved"})
    .Attrs(attributes())
    .SetKernelFn(forward)
    .SetInferShapeFn(shapes)
    .SetInferDtypeFn(types);

PD_BUILD_GRAD_OP(ernie_pair_encoder_layer)
    .Inputs(names({"X", "Seed", "Positions"}, {"Saved", paddle::Grad("Y")}))
    .Outputs(gradient_names())
    .Attrs(attributes())
    .SetKernelFn(backward);

#include "adamw_operator.h"
