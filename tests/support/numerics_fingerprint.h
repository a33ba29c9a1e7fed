#pragma once

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "support/golden_folder.h"
#include "support/small_run.h"
#include "tessera/kernels/optimizer.h"
#include "tessera/kernels/philox.h"
#include "tessera/model/gpt_family.h"
#include "tessera/trainer/parameter_hash.h"

// A number for how this machine rounds: results may differ in their bits where it differs.
namespace tessera::test {

/// What kernels compute of fixed inputs, by one thread and without the sharding engine: losses and
/// gradients of small_gpt() in each family and dtype, with and without adapters; the steps of
/// optimizers that work element by element; the codes and the values of all weight formats.
class NumericsFingerprint {
 public:
  std::string compute() {
    for (const FamilyRow& family : gpt_families()) {
      for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
        for (const bool adapted : {false, true}) add_model(family.family, dtype, adapted);
      }
    }
    for (const Optimizer& optimizer : optimizers()) {
      if (!is_factored(optimizer)) add_optimizer(optimizer);
    }
    for (const WeightFormat format : weight_formats()) add_format(format);
    return hash_.finish();
  }

 private:
  static std::vector<float> normal(const std::string& name, std::int64_t numel) {
    std::vector<float> values(static_cast<std::size_t>(numel));
    for (std::int64_t i = 0; i < numel; ++i) {
      values[static_cast<std::size_t>(i)] = 0.2F * random_normal({1, stream_of(name)}, i);
    }
    return values;
  }
  void add_bytes(std::vector<std::byte> bytes) {
    bytes.resize((bytes.size() + sizeof(float) - 1) / sizeof(float) * sizeof(float));
    std::vector<float> words(bytes.size() / sizeof(float));
    std::memcpy(words.data(), bytes.data(), bytes.size());
    hash_.add(words);
  }
  static TensorView view_of(std::vector<float>& values) {
    return {values.data(), DType::kFloat32, Shape{static_cast<std::int64_t>(values.size())}};
  }

  void add_model(GptFamily family, DType dtype, bool adapted) {
    GptConfig config = small_gpt(0.1F, family);
    if (adapted) {
      config.adapter = {.kind = LoraOptions{.rank = 3, .alpha = 6.0, .dropout = 0.1F},
                        .target_pattern = "all-linear"};
    }
    const Model model = make_gpt(config);
    InitialValues initial;
    for (const auto& layer : model.layers) {
      for (const ParameterSpec& spec : layer->parameters()) {
        initial[spec.name] = normal(spec.name, spec.shape.numel());
      }
    }
    const RandomTokens source(11, 61, false);
    std::vector<std::int32_t> inputs(kSmallBatch * 11), targets = inputs;
    const Shape shape{kSmallBatch, 11};
    const std::int64_t items = source.fill(0, kSmallBatch, {inputs.data(), DType::kInt32, shape},
                                           {targets.data(), DType::kInt32, shape});
    const Computed computed =
        compute_batch(model, initial, inputs, shape, targets, items, dtype, false);
    hash_.add(computed.logits);
    hash_.add(computed.losses);
    for (const auto& [name, gradient] : computed.gradients) hash_.add(gradient);
  }

  void add_optimizer(const Optimizer& optimizer) {
    constexpr std::int64_t kNumel = 1000;
    const auto device = make_cpu_device();
    const auto stream = device->create_stream({.name = "optimizer"});
    const std::vector<double> values = hyperparameter_values(optimizer);
    std::vector<float> master = normal("master", kNumel), gradient_scale{0.7F};
    std::vector<std::vector<std::byte>> states;
    std::vector<TensorView> views;
    for (const OptimizerState& state : optimizer_states(optimizer, values)) {
      const std::int64_t numel = (kNumel + state.block - 1) / state.block;
      states.emplace_back(static_cast<std::size_t>(numel) * size_of(state.dtype));
      views.emplace_back(states.back().data(), state.dtype, Shape{numel});
    }
    const OptimizerSegment all{0, kNumel, 0.1F};
    for (int step = 1; step <= 3; ++step) {
      std::vector<float> gradient = normal(concat("gradient ", step), kNumel);
      const OptimizerScalars of_step = optimizer_scalars(optimizer, values, 1e-2, step);
      std::vector<float> scalars(of_step.begin(), of_step.end());
      run_on(*stream, [&] {
        kernels_for(*device).optimizer_step({.optimizer = &optimizer,
                                             .master = view_of(master),
                                             .gradient = view_of(gradient),
                                             .states = views,
                                             .segments = std::span(&all, 1),
                                             .scalars = view_of(scalars),
                                             .gradient_scale = view_of(gradient_scale)},
                                            *stream);
      });
    }
    hash_.add(master);
    for (const auto& state : states) add_bytes(state);
  }

  void add_format(WeightFormat format) {
    const Shape shape{12, 64};
    std::vector<float> weights = normal("weights", shape.numel()), decoded(weights.size());
    const std::int64_t size = quantized_sizes(format, shape).bytes;
    std::vector<std::byte> bytes(static_cast<std::size_t>(size));
    quantize(format, shape, weights, bytes, "the fingerprint's weights");
    const auto device = make_cpu_device();
    const auto stream = device->create_stream({.name = "format"});
    run_on(*stream, [&] {
      kernels_for(*device).dequantize({.format = format,
                                       .src = {bytes.data(), DType::kUInt8, Shape{size}},
                                       .dst = {decoded.data(), DType::kFloat32, shape}},
                                      *stream);
    });
    hash_.add(decoded);
    add_bytes(std::move(bytes));
  }

  ParameterHash hash_;
};

}  // namespace tessera::test
