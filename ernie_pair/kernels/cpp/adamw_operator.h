/* AdamW over all parameters of a program, with the factor of clipping: one op instead of one per parameter. It is a part of
 * fused_operator.cc, after `library`.
 */
#pragma once

namespace adamw {

enum Input { kParameters, kGradients, kMoments1, kMoments2, kPowers1, kPowers2, kRate, kFactor, kSkip };
enum Attribute { kBeta1, kBeta2, kEpsilon, kDecays };

using Tensors = std::vector<paddle::Tensor>;

Tensors tensors_of(const paddle::CustomOpKernelContext &context, Input which) {
  const auto &range = context.InputRangeAt(which);
  return context.InputsBetween(range.first, range.second);
}

const paddle::Tensor &tensor_of(const paddle::CustomOpKernelContext &context, Input which) {
  return context.InputAt(context.InputRangeAt(which).first);
}

std::vector<float *> data_of(Tensors *tensors) {
  std::vector<float *> data;
  for (auto &tensor : *tensors) data.push_back(tensor.data<float>());
  return data;
}

/* In place. Neighbours with the same number of steps, which is all of them but for odd checkpoints, go together. */
void step(paddle::CustomOpKernelContext *context) {
  const paddle::Tensor &skip = tensor_of(*context, kSkip), &factor = tensor_of(*context, kFactor);
  if (skip.initialized() && skip.data<bool>()[0]) return;
  Tensors held[kRate];
  std::vector<float *> data[kRate];
  for (int which = 0; which < kRate; ++which) {
    held[which] = tensors_of(*context, static_cast<Input>(which));
    data[which] = data_of(&held[which]);
  }
  const size_t count = data[kParameters].size();
  std::vector<int64_t> sizes;
  for (const auto &parameter : held[kParameters]) sizes.push_back(parameter.numel());
  const std::vector<float> rates(count, tensor_of(*context, kRate).data<float>()[0]);
  const auto decays = context->AttrAt<std::vector<float>>(kDecays);
  fused_adamw settings = {};
  settings.beta1 = context->AttrAt<float>(kBeta1);
  settings.beta2 = context->AttrAt<float>(kBeta2);
  settings.epsilon = context->AttrAt<float>(kEpsilon);
  settings.gradient_factor = factor.initialized() ? factor.data<float>()[0] : 1.0f;
  settings.threads = threads;
  for (size_t begin = 0, end = 0; begin < count; begin = end) {
    settings.power1 = *data[kPowers1][begin];
    settings.power2 = *data[kPowers2][begin];
    while (end < count && *data[kPowers1][end] == settings.power1 && *data[kPowers2][end] == settings.power2) ++end;
    library.adamw_step(&settings, static_cast<int64_t>(end - begin), sizes.data() + begin, rates.data() + begin,
                       decays.data() + begin, data[kParameters].data() + begin, data[kGradients].data() + begin,
                       data[kMoments1].data() + begin, data[kMoments2].data() + begin);
  }
  for (float *power : data[kPowers1]) *power *= settings.beta1;
  for (float *power : data[kPowers2]) *power *= settings.beta2;
}

std::vector<std::string> vectors(const std::string &ending, bool with_gradients) {
  std::vector<std::string> all;
  for (const char *name : {"Parameters", "Gradients", "Moments1", "Moments2", "Powers1", "Powers2"})
    if (with_gradients || std::string(name) != "Gradients") all.push_back(paddle::Vec(name + ending));
  return all;
}

std::vector<std::string> inputs() {
  std::vector<std::string> all = vectors("", true);
  all.insert(all.end(), {"Rate", paddle::Optional("Factor"), paddle::Optional("Skip")});
  return all;
}

std::unordered_map<std::string, std::string> in_place() {
  std::unordered_map<std::string, std::string> map;
  const auto from = vectors("", false), to = vectors("Out", false);
  for (size_t i = 0; i < from.size(); ++i) map[from[i]] = to[i];
  return map;
}

}  // namespace adamw

PD_BUILD_OP(ernie_pair_adamw)
    .Inputs(adamw::inputs())
    .Outputs(adamw::vectors("Out", false))
    .Attrs({"beta1: float", "beta2: float", "epsilon: float", "decays: std::vector<float>"})
    .SetInplaceMap(adamw::in_place())
    .SetKernelFn(adamw::step);
