#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "tessera/autograd/layer.h"
#include "tessera/core/error.h"

namespace tessera {

/// Some of another source's samples.
class ChosenSamples : public BatchSource {
 public:
  explicit ChosenSamples(const BatchSource& source) : source_(source) {}
  Shape input_shape(std::int64_t n) const override { return source_.input_shape(n); }
  DType input_dtype() const override { return source_.input_dtype(); }
  Shape target_shape(std::int64_t n) const override { return source_.target_shape(n); }
  DType target_dtype() const override { return source_.target_dtype(); }
  std::vector<NamedText> identity() const override { return source_.identity(); }

 protected:
  const BatchSource& source_;
};

/// Those from a later one on.
class LaterSamples : public ChosenSamples {
 public:
  explicit LaterSamples(const BatchSource& source) : ChosenSamples(source) {}
  /// Before any is read.
  void begin_at(std::int64_t offset) { offset_ = offset; }
  std::int64_t fill(std::int64_t first, std::int64_t n, TensorView inputs,
                    TensorView targets) const override {
    return source_.fill(first + offset_, n, inputs, targets);
  }

 private:
  std::int64_t offset_ = 0;
};

/// The first ones; those beyond do not count.
class FirstSamples : public ChosenSamples {
 public:
  FirstSamples(const BatchSource& source, std::int64_t samples)
      : ChosenSamples(source), samples_(samples) {}
  std::int64_t fill(std::int64_t first, std::int64_t n, TensorView inputs,
                    TensorView targets) const override {
    const std::int64_t here = std::clamp<std::int64_t>(samples_ - first, 0, n);
    if (here == n) return source_.fill(first, n, inputs, targets);
    require(targets.dtype == DType::kInt32, ErrorCode::kConfig, "the ", samples_,
            " samples of an evaluation must fill its batches, since targets of ",
            to_string(targets.dtype), " cannot be left out: use a multiple of micro-batch x ranks");
    const auto rest = [&](const TensorView& view) { return view.narrow(0, here, n - here); };
    std::memset(rest(inputs).data, 0, static_cast<std::size_t>(rest(inputs).bytes()));
    const TensorView ignored = rest(targets);
    std::fill_n(ignored.as<std::int32_t>(), ignored.numel(), -1);
    if (here == 0) return 0;
    return source_.fill(first, here, inputs.narrow(0, 0, here), targets.narrow(0, 0, here));
  }

 private:
  std::int64_t samples_;
};

/// Inputs that a caller has given, without targets: those of Session::forward. The source says
/// their shapes and dtypes. Beyond the last sample that is repeated.
class GivenSamples : public ChosenSamples {
 public:
  explicit GivenSamples(const BatchSource& source) : ChosenSamples(source) {}
  /// `inputs`: whole samples, one after the other, in host memory; at least one. While no pass
  /// runs.
  void give(const TensorView& inputs) { inputs_ = inputs.flat(); }
  std::int64_t sample_numel() const { return source_.input_shape(1).numel(); }
  std::int64_t samples() const { return inputs_.numel() / sample_numel(); }
  std::int64_t fill(std::int64_t first, std::int64_t n, TensorView inputs,
                    TensorView targets) const override {
    const std::int64_t numel = sample_numel();
    const TensorView to = inputs.flat();
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t sample = std::min(first + i, samples() - 1);
      const TensorView from = inputs_.narrow(0, sample * numel, numel);
      std::memcpy(to.narrow(0, i * numel, numel).data, from.data,
                  static_cast<std::size_t>(from.bytes()));
    }
    if (targets.dtype == DType::kInt32) {
      std::fill_n(targets.as<std::int32_t>(), targets.numel(), -1);
    } else {
      std::memset(targets.data, 0, static_cast<std::size_t>(targets.bytes()));
    }
    return 0;
  }

 private:
  TensorView inputs_{};
};

}  // namespace tessera
