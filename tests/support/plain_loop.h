#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "support/model_run.h"
#include "support/tiny_model.h"
#include "tessera/core/cpu_device.h"
#include "tessera/trainer/trainer.h"

namespace tessera::test {

/// A training loop over tiny_model() whose optimizer is written in double precision: each step on
/// the gradients that the whole model has at that loop's parameters.
class PlainLoop {
 public:
  struct Entry {
    std::vector<double> value, momentum;
    double decay = 1.0;  ///< ParameterSpec::weight_decay_scale
  };
  /// Updates element i of a parameter, given its gradient.
  using Update = std::function<void(Entry& entry, std::size_t i, double gradient)>;

  explicit PlainLoop(const std::vector<FullParameter>& initial)
      : whole_(model_, memory_, DType::kFloat32, DType::kFloat32) {
    for (const FullParameter& parameter : initial) {
      Entry& entry = entries_[parameter.name];
      entry.value.assign(parameter.values.begin(), parameter.values.end());
      entry.momentum.resize(entry.value.size());
    }
    for (const auto& layer : model_.layers) {
      for (const ParameterSpec& spec : layer->parameters()) {
        entries_.at(spec.name).decay = spec.weight_decay_scale;
      }
    }
  }

  /// The mean loss before the update.
  double step(std::int64_t number, const Update& update) {
    constexpr std::int64_t kSamples = 16;
    for (const auto& [name, entry] : entries_) {
      copy_to(whole_.value(name), std::vector<float>(entry.value.begin(), entry.value.end()));
    }
    Batch batch;
    batch.inputs = Tensor::empty(memory_, data_.input_shape(kSamples), DType::kFloat32,
                                 MemoryCategory::kData, "inputs");
    batch.targets = Tensor::empty(memory_, data_.target_shape(kSamples), DType::kInt32,
                                  MemoryCategory::kData, "targets");
    batch.items = data_.fill(number * kSamples, kSamples, batch.inputs, batch.targets);
    const Tensor scale =
        Tensor::empty(memory_, Shape{1}, DType::kFloat32, MemoryCategory::kData, "scale");
    *scale.as<float>() = 1.0F / static_cast<float>(kSamples);
    double loss = 0.0;
    run_on(*stream_, [&] {
      const Tensor losses = whole_.forward_backward(memory_, *stream_, batch,
                                                    {.tape = {.loss_scale = scale, .threads = 1}});
      for (const float value : to_floats(losses)) loss += value;
    });
    for (auto& [name, entry] : entries_) {
      const std::vector<float> gradient = to_floats(whole_.gradient(name));
      for (std::size_t i = 0; i < gradient.size(); ++i) update(entry, i, gradient[i]);
    }
    return loss / static_cast<double>(kSamples);
  }
  const std::vector<double>& value(const std::string& name) const {
    return entries_.at(name).value;
  }

 private:
  const Model model_ = tiny_model();
  const TinyData data_;
  const std::unique_ptr<Device> device_ = make_cpu_device();
  Memory memory_{*device_};
  const std::unique_ptr<Stream> stream_ = device_->create_stream({.name = "compute", .threads = 1});
  WholeModel whole_;
  std::map<std::string, Entry> entries_;
};

}  // namespace tessera::test
