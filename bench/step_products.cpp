#include "step_products.h"

#include <algorithm>

#include "tessera/autograd/ops.h"

namespace tessera::bench {
namespace {

constexpr float kActivation = 1.0F, kWeight = 0.02F, kGradient = 1e-3F;  // standard deviations

}  // namespace

StepProducts::StepProducts(const GptConfig& gpt, std::int64_t tokens, DType dtype, Memory& memory)
    : memory_(memory), tokens_(tokens), dtype_(dtype) {
  const std::int64_t c = gpt.width;
  std::vector<Linear> layers;
  for (std::int64_t l = 0; l < gpt.layers; ++l) {
    layers.push_back(linear(c, 3 * c));
    layers.push_back(linear(c, c));
    layers.push_back(linear(c, 4 * c));
    layers.push_back(linear(4 * c, c));
  }
  const Linear head = linear(c, gpt.vocab_size);
  for (const Linear& l : layers) add_forward(l);
  add_head(head);
  std::ranges::reverse(layers);
  for (const Linear& l : layers) add_backward(l);
  choose_ways();
}

void StepProducts::run(Layouts layouts) {
  for (const Call& call : calls_) products_[call.product].run(layouts, call.operands);
}

double StepProducts::flops() const {
  double sum = 0.0;
  for (const Call& call : calls_) sum += call.shape.flops();
  return sum;
}

Tensor StepProducts::random(Shape shape, DType dtype, float stddev) {
  const auto seed = static_cast<std::uint64_t>(tensors_.size());
  return tensors_.emplace_back(random_operand(memory_, shape, dtype, stddev, seed));
}

const Tensor& StepProducts::shared(const char* role, std::int64_t width) {
  Tensor& tensor = shared_[{role, width}];
  if (!tensor) tensor = random({tokens_, width}, dtype_, kGradient);
  return tensor;
}

StepProducts::Linear StepProducts::linear(std::int64_t inputs, std::int64_t outputs) {
  return {.inputs = inputs,
          .outputs = outputs,
          .x = random({tokens_, inputs}, dtype_, kActivation),
          .weight = random({outputs, inputs}, dtype_, kWeight),
          .gradient = random({outputs, inputs}, DType::kFloat32, kGradient)};
}

/// y (T, out) = x (T, in) weight (out, in)^T
void StepProducts::add_forward(const Linear& l) {
  calls_.push_back({.shape = {.m = tokens_,
                              .n = l.outputs,
                              .k = l.inputs,
                              .a_stride = l.inputs,
                              .b_stride = l.inputs,
                              .c_stride = l.outputs,
                              .transpose_b = true,
                              .dtype = dtype_,
                              .c_dtype = dtype_},
                    .operands = {.a = l.x.view().data,
                                 .b = l.weight.view().data,
                                 .c = shared("result", l.outputs).view().data}});
}

/// gradient (out, in) = dy (T, out)^T x (T, in), then dx (T, in) = dy weight
void StepProducts::add_backward(const Linear& l) {
  const Tensor& dy = shared("dy", l.outputs);
  calls_.push_back(
      {.shape = {.m = l.outputs,
                 .n = l.inputs,
                 .k = tokens_,
                 .a_stride = l.outputs,
                 .b_stride = l.inputs,
                 .c_stride = l.inputs,
                 .transpose_a = true,
                 .dtype = dtype_,
                 .c_dtype = DType::kFloat32},
       .operands = {.a = dy.view().data, .b = l.x.view().data, .c = l.gradient.view().data}});
  calls_.push_back({.shape = {.m = tokens_,
                              .n = l.inputs,
                              .k = l.outputs,
                              .a_stride = l.outputs,
                              .b_stride = l.inputs,
                              .c_stride = l.inputs,
                              .dtype = dtype_,
                              .c_dtype = dtype_},
                    .operands = {.a = dy.view().data,
                                 .b = l.weight.view().data,
                                 .c = shared("result", l.inputs).view().data}});
}

/// The same for each chunk of rows, where y is the logits and dy takes their place.
void StepProducts::add_head(const Linear& l) {
  const auto element = static_cast<std::int64_t>(size_of(dtype_));
  const std::int64_t chunk = ops::cross_entropy_chunk_rows(tokens_, l.outputs, DeviceKind::kCpu);
  const std::int64_t align = 64 / element;
  const std::int64_t stride = (l.outputs + align - 1) / align * align;
  void* const logits = random({std::min(chunk, tokens_), stride}, dtype_, kGradient).view().data;
  for (std::int64_t begin = 0; begin < tokens_; begin += chunk) {
    const std::int64_t rows = std::min(chunk, tokens_ - begin);
    const auto at = [&](const Tensor& t) { return t.view().narrow(0, begin, rows).data; };
    const ProductShape forward{.m = rows,
                               .n = l.outputs,
                               .k = l.inputs,
                               .a_stride = l.inputs,
                               .b_stride = l.inputs,
                               .c_stride = stride,
                               .transpose_b = true,
                               .dtype = dtype_,
                               .c_dtype = dtype_};
    const ProductShape weight_gradient{.m = l.outputs,
                                       .n = l.inputs,
                                       .k = rows,
                                       .a_stride = stride,
                                       .b_stride = l.inputs,
                                       .c_stride = l.inputs,
                                       .transpose_a = true,
                                       .accumulate = begin > 0,
                                       .dtype = dtype_,
                                       .c_dtype = DType::kFloat32};
    const ProductShape input_gradient{.m = rows,
                                      .n = l.inputs,
                                      .k = l.outputs,
                                      .a_stride = stride,
                                      .b_stride = l.inputs,
                                      .c_stride = l.inputs,
                                      .dtype = dtype_,
                                      .c_dtype = dtype_};
    void* const weight = l.weight.view().data;
    calls_.push_back({forward, {.a = at(l.x), .b = weight, .c = logits}});
    calls_.push_back({weight_gradient, {.a = logits, .b = at(l.x), .c = l.gradient.view().data}});
    calls_.push_back(
        {input_gradient, {.a = logits, .b = weight, .c = at(shared("result", l.inputs))}});
  }
}

void StepProducts::choose_ways() {
  std::vector<ProductShape> shapes;
  for (Call& call : calls_) {
    const auto known = std::ranges::find(shapes, call.shape);
    call.product = static_cast<std::size_t>(known - shapes.begin());
    if (known == shapes.end()) shapes.push_back(call.shape);
  }
  for (const ProductShape& shape : shapes) {
    std::vector<Operands> samples;
    for (const Call& call : calls_) {
      if (call.shape == shape) samples.push_back(call.operands);
    }
    products_.emplace_back(shape, samples, memory_);
  }
}

}  // namespace tessera::bench
