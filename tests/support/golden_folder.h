#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "support/golden_run.h"
#include "support/model_run.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/core/input_file.h"
#include "tessera/model/pretrained.h"

// Models of golden folders, and what they compute on a golden's first batch.
namespace tessera::test {

inline InitialValues values_in(const PretrainedGpt& folder, const Model& model) {
  InitialValues values;
  for (const auto& layer : model.layers) {
    for (const ParameterSpec& spec : layer->parameters()) {
      auto& own = values[spec.name];
      own.resize(static_cast<std::size_t>(spec.shape.numel()));
      folder.read(spec.name, own);
    }
  }
  return values;
}

/// The tensors of a folder's file, all fp32.
inline InitialValues stored_tensors(const std::string& folder,
                                    const std::string& name = "model.safetensors") {
  const InputFile file(folder + "/" + name);
  InitialValues tensors;
  for (const SafetensorsEntry& entry : read_safetensors_header(file).tensors) {
    auto& values = tensors[entry.name];
    values.resize(static_cast<std::size_t>(entry.shape.numel()));
    file.read(entry.begin, std::as_writable_bytes(std::span(values)));
  }
  return tensors;
}

/// Logits and gradients of the golden's first batch.
struct Computed {
  std::vector<float> logits;
  std::vector<float> losses;  ///< of each place
  InitialValues gradients;    ///< of what is trained, by our names
};

/// The same of one batch: inputs of `shape`, (B, L) or (2, B, L), and targets (B, L), of which
/// `items` count.
inline Computed compute_batch(const Model& model, const InitialValues& initial,
                              std::span<const std::int32_t> inputs, const Shape& shape,
                              std::span<const std::int32_t> targets, std::int64_t items,
                              DType dtype, bool selective) {
  const auto device = make_cpu_device();
  Memory memory(*device);
  const auto stream = device->create_stream({.name = "compute"});
  const auto tensor_of = [&](std::span<const std::int32_t> values, const Shape& of,
                             const char* name) {
    Tensor tensor = Tensor::empty(memory, of, DType::kInt32, MemoryCategory::kData, name);
    std::copy_n(values.begin(), of.numel(), tensor.as<std::int32_t>());
    return tensor;
  };
  const int last = shape.rank() - 1;
  Batch batch{.inputs = tensor_of(inputs, shape, "inputs"),
              .targets = tensor_of(targets, Shape{shape[last - 1], shape[last]}, "targets")};
  batch.items = items;
  Tensor scale = Tensor::empty(memory, Shape{1}, DType::kFloat32, MemoryCategory::kData, "scale");
  *scale.as<float>() = 1.0F / static_cast<float>(batch.items);
  WholeModel whole(model, memory, dtype, DType::kFloat32);
  for (const auto& [name, values] : initial) copy_to(whole.value(name), values);
  Computed computed;
  run_on(*stream, [&] {
    computed.logits = to_floats(
        gpt_logits(model, whole.parameters(), memory, *stream, batch.inputs, LogitPositions::kAll));
    computed.losses = to_floats(whole.forward_backward(
        memory, *stream, batch,
        {.tape = {.selective = selective, .loss_scale = scale, .threads = 1}}));
  });
  for (const auto& [name, values] : initial) {
    if (whole.gradient(name)) computed.gradients[name] = to_floats(whole.gradient(name));
  }
  return computed;
}

inline Computed compute(const Golden& golden, const Model& model, const InitialValues& initial,
                        DType dtype, bool selective) {
  const Shape all = golden.shape("tokens");
  return compute_batch(model, initial, golden.ints("tokens"), Shape{all[1], all[2]},
                       golden.ints("targets"), all[1] * (all[2] - 1), dtype, selective);
}

}  // namespace tessera::test
