#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tessera/autograd/layer.h"
#include "tessera/core/error.h"
#include "tessera/kernels/philox.h"

namespace tessera::test {

/// A tensor's elements as float; of fp32, bf16 and fp16 in host memory.
inline std::vector<float> to_floats(const TensorView& view) {
  std::vector<float> values(static_cast<std::size_t>(view.numel()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = view.dtype == DType::kFloat32    ? view.as<float>()[i]
                : view.dtype == DType::kBFloat16 ? static_cast<float>(view.as<bfloat16>()[i])
                                                 : static_cast<float>(view.as<float16>()[i]);
  }
  return values;
}

inline void copy_to(const TensorView& view, std::span<const float> values) {
  require(static_cast<std::size_t>(view.numel()) == values.size(), ErrorCode::kInvalidArgument,
          "copy_to: ", values.size(), " values for ", view.shape);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (view.dtype == DType::kFloat32) {
      view.as<float>()[i] = values[i];
    } else if (view.dtype == DType::kBFloat16) {
      view.as<bfloat16>()[i] = bfloat16(values[i]);
    } else {
      view.as<float16>()[i] = float16(values[i]);
    }
  }
}

/// Runs `task` where kernels belong, on the stream, and rethrows what it throws.
inline void run_on(Stream& stream, const std::function<void()>& task) {
  stream.submit({.name = "test"}, task);
  stream.synchronize();
}

/// All parameters of a model, whole and in one place, and their gradients: what the sharding engine
/// does in the simplest possible way. Those of a layer lie as they do in flat parameters.
class WholeModel {
 public:
  WholeModel(const Model& model, Memory& memory, DType compute, DType gradient) : model_(model) {
    for (const auto& layer : model.layers) {
      for (const bool trainable : {true, false}) {
        place(*layer, trainable, memory, compute, gradient);
      }
    }
    for (const auto& layer : model.layers) {
      std::vector<std::string> names;
      for (const ParameterSpec& spec : layer->parameters()) names.push_back(spec.name);
      const auto& tied = layer->tied_parameters();
      names.insert(names.end(), tied.begin(), tied.end());
      std::vector<Parameter> parameters;
      for (const std::string& name : names) {
        const Entry& entry = entries_.at(name);
        parameters.push_back({.value = entry.value,
                              .gradient = entry.gradient,
                              .trainable = static_cast<bool>(entry.gradient)});
      }
      parameters_.push_back(std::move(parameters));
      names_.push_back(std::move(names));
    }
  }

  std::vector<std::vector<Parameter>>& parameters() { return parameters_; }
  const TensorView& value(const std::string& name) const { return entries_.at(name).value; }
  const TensorView& gradient(const std::string& name) const { return entries_.at(name).gradient; }
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& [name, entry] : entries_) names.push_back(name);
    return names;
  }

  struct Options {
    TapeOptions tape;        ///< `random_key` is filled in
    std::uint64_t seed = 0;  ///< of dropout
    bool recompute = false;  ///< Recompute::kFull for every layer but the last
    bool split = false;  ///< the loss's backward apart, gradients of parameters after all others
  };

  /// One micro-batch forward and backward; adds to the gradients if `accumulate`. The losses.
  Tensor forward_backward(Memory& memory, Stream& stream, const Batch& batch,
                          const Options& options, bool accumulate = false) {
    for (auto& [name, entry] : entries_) entry.written = accumulate;
    const std::size_t layers = model_.layers.size();
    std::vector<std::unique_ptr<Tape>> tapes(layers);
    std::vector<Tensor> inputs(layers);
    inputs.front() = batch.inputs;
    Tensor losses;
    std::vector<Value> outputs(layers);
    std::vector<std::array<std::int64_t, kRandomKeyWords>> keys(layers);
    std::vector<std::int64_t> first_samples(layers);
    const auto forward = [&](std::size_t i, bool record) {
      auto& key = keys[i];
      TapeOptions tape_options = options.tape;
      store_random_key({options.seed, dropout_stream(i)}, key.data());
      first_samples[i] = batch.index * batch.inputs.shape()[0];
      tape_options.random_key = TensorView(key.data(), DType::kInt64, Shape{kRandomKeyWords});
      tape_options.first_sample = TensorView(&first_samples[i], DType::kInt64, Shape{1});
      tape_options.record = record;
      tape_options.loss_backward_apart = options.split;
      tapes[i] = std::make_unique<Tape>(memory, stream, batch, tape_options);
      const Value input = tapes[i]->input(inputs[i], i > 0);
      put_flags(i);
      if (options.split) hide_gradients(i);
      outputs[i] = model_.layers[i]->forward(*tapes[i], input, parameters_[i]);
      take_flags(i);
      show_gradients(i);
    };
    for (std::size_t i = 0; i < layers; ++i) {
      const bool keep = !options.recompute || i + 1 == layers;
      forward(i, keep);
      (i + 1 < layers ? inputs[i + 1] : losses) = std::exchange(outputs[i].tensor, Tensor());
      if (!options.recompute) inputs[i] = {};
    }
    Tensor gradient = Tensor::empty(memory, losses.shape(), losses.dtype(),
                                    MemoryCategory::kActivations, "gradient of the losses");
    kernels_for(memory.device())
        .fill({.dst = gradient, .value = 1.0F, .factor = options.tape.loss_scale}, stream);
    for (std::size_t i = layers; i-- > 0;) {
      if (outputs[i].id < 0) {
        forward(i, true);
        outputs[i].tensor = {};
      }
      put_flags(i);
      if (options.split && i + 1 < layers) {
        hide_gradients(i);
        gradient = tapes[i]->backward_input(outputs[i], std::move(gradient));
        show_gradients(i);
      } else {
        gradient = tapes[i]->backward(outputs[i], std::move(gradient));
        tapes[i].reset();
      }
      take_flags(i);
      inputs[i] = {};
    }
    for (std::size_t i = layers; i-- > 0;) {
      if (tapes[i] == nullptr) continue;
      put_flags(i);
      for (Parameter& parameter : parameters_[i]) parameter.value.data = nullptr;
      tapes[i]->backward_weights();
      for (std::size_t p = 0; p < names_[i].size(); ++p) {
        parameters_[i][p].value = entries_.at(names_[i][p]).value;
      }
      take_flags(i);
      tapes[i].reset();
    }
    return losses;
  }

 private:
  struct Entry {
    TensorView value;
    TensorView gradient;  ///< empty: it is not trained
    bool written = false;
  };

  /// The parameters of a layer that are trained, or those that are not, one behind the other.
  void place(const Layer& layer, bool trainable, Memory& memory, DType compute, DType gradient) {
    constexpr std::int64_t kAlignment = 64;  // elements
    std::int64_t numel = 0;
    std::vector<std::pair<const ParameterSpec*, std::int64_t>> offsets;
    for (const ParameterSpec& spec : layer.parameters()) {
      if (spec.trainable != trainable) continue;
      offsets.emplace_back(&spec, numel);
      numel += (spec.shape.numel() + kAlignment - 1) / kAlignment * kAlignment;
    }
    if (offsets.empty()) return;
    const Tensor values =
        Tensor::empty(memory, {numel}, compute, MemoryCategory::kParameters, layer.name());
    const Tensor gradients = trainable ? Tensor::empty(memory, {numel}, gradient,
                                                       MemoryCategory::kGradients, layer.name())
                                       : Tensor();
    for (const auto& [spec, offset] : offsets) {
      const auto view = [&](const TensorView& flat) {
        return flat.narrow(0, offset, spec->shape.numel()).reshape(spec->shape);
      };
      entries_[spec->name] = {.value = view(values),
                              .gradient = trainable ? view(gradients) : TensorView()};
    }
    flats_.insert(flats_.end(), {values, gradients});
  }

  // Tied parameters are one Entry behind several Parameters: the flag goes in and out.
  void put_flags(std::size_t layer) {
    for (std::size_t i = 0; i < names_[layer].size(); ++i) {
      parameters_[layer][i].gradient_written = entries_.at(names_[layer][i]).written;
    }
  }
  void take_flags(std::size_t layer) {
    for (std::size_t i = 0; i < names_[layer].size(); ++i) {
      entries_.at(names_[layer][i]).written = parameters_[layer][i].gradient_written;
    }
  }

  void hide_gradients(std::size_t layer) {
    for (Parameter& parameter : parameters_[layer]) parameter.gradient = {};
  }
  void show_gradients(std::size_t layer) {
    for (std::size_t i = 0; i < names_[layer].size(); ++i) {
      parameters_[layer][i].gradient = entries_.at(names_[layer][i]).gradient;
    }
  }

  const Model& model_;
  std::vector<Tensor> flats_;
  std::map<std::string, Entry> entries_;
  std::vector<std::vector<Parameter>> parameters_;
  std::vector<std::vector<std::string>> names_;
};

}  // namespace tessera::test
