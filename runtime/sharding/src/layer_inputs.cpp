#include "tessera/core/sim_device.h"
#include "tessera/kernels/kernel_table.h"
#include "tessera/sharding/planner.h"

namespace tessera {

std::vector<Shape> layer_input_shapes(const Model& model, const ModelLayout& layout,
                                      const BatchSource& source, std::int64_t samples,
                                      DType parameter_dtype) {
  SimDevice device;
  Memory memory(device);
  const auto stream = device.create_stream({.name = "shapes"});
  Batch batch;
  batch.inputs = Tensor::empty(memory, source.input_shape(samples), source.input_dtype(),
                               MemoryCategory::kData, "inputs");
  batch.targets = Tensor::empty(memory, source.target_shape(samples), source.target_dtype(),
                                MemoryCategory::kData, "targets");
  // The key is there as in training: without it, a pass may be over a part of the batch.
  const Tensor key = Tensor::empty(memory, Shape{kRandomKeyWords}, DType::kInt64,
                                   MemoryCategory::kData, "key of dropout");
  std::vector<Shape> shapes{Shape{0}};
  Tensor flowing = batch.inputs;
  if (is_compute_dtype(flowing.dtype())) {  // in the run's precision
    flowing = Tensor::empty(memory, flowing.shape(), parameter_dtype, MemoryCategory::kData, "in");
  }
  for (std::size_t l = 0; l + 1 < model.layers.size(); ++l) {
    std::vector<Parameter> parameters;
    for (const ParameterAddress& address : layout.layers[l].parameters) {
      const FlatParameter& flat = layout.flat_of(address);
      const ParameterSpec& spec = layout.tensor_of(address).spec;
      const DType dtype = flat.dtype.value_or(parameter_dtype);
      parameters.push_back({.value = TensorView(nullptr, dtype, spec.shape),
                            .gradient = {},
                            .trainable = flat.trainable,
                            .padded_rows = spec.row_multiple > 1 ? padded_rows(spec) : 0});
    }
    Tape tape(memory, *stream, batch, {.record = false, .training = true, .random_key = key});
    const Value input = tape.input(std::move(flowing), false);
    stream->submit({.name = "forward"},
                   [&] { flowing = model.layers[l]->forward(tape, input, parameters).tensor; });
    stream->synchronize();
    shapes.push_back(flowing.shape());
  }
  return shapes;
}

std::vector<std::int64_t> layer_input_numels(const Model& model, const ModelLayout& layout,
                                             const BatchSource& source, std::int64_t samples,
                                             DType parameter_dtype) {
  std::vector<std::int64_t> numels;
  for (const Shape& shape : layer_input_shapes(model, layout, source, samples, parameter_dtype)) {
    numels.push_back(shape.numel());
  }
  return numels;
}

std::vector<std::int64_t> stage_input_numels(const std::vector<std::int64_t>& layer_inputs,
                                             const std::vector<int>& first_layers) {
  std::vector<std::int64_t> numels;
  for (const int layer : first_layers) {
    numels.push_back(layer_inputs.at(static_cast<std::size_t>(layer)));
  }
  return numels;
}

}  // namespace tessera
