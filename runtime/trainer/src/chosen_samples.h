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

/// The numbers that a source has for each place: 2 of tokens with where documents begin, (2, N, L),
/// else 1.
inline std::int64_t planes_of(const BatchSource& source) {
  const Shape shape = source.input_shape(1);
  return shape.rank() == 0 ? 1 : shape[0];
}

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
    if (planes_of(source_) != 1) {
      std::int64_t counted = source_.fill(first, n, inputs, targets);
      const TensorView beyond = rest(targets);
      std::int32_t* const classes = beyond.as<std::int32_t>();
      counted -= std::count_if(classes, classes + beyond.numel(), [](auto c) { return c >= 0; });
      std::fill_n(classes, beyond.numel(), -1);
      return counted;
    }
    std::memset(rest(inputs).data, 0, static_cast<std::size_t>(rest(inputs).bytes()));
    const TensorView ignored = rest(targets);
    std::fill_n(ignored.as<std::int32_t>(), ignored.numel(), -1);
    if (here == 0) return 0;
    return source_.fill(first, here, inputs.narrow(0, 0, here), targets.narrow(0, 0, here));
  }

 private:
  std::int64_t samples_;
};

/// Inputs that a caller has given, and perhaps targets: those of Session::forward. Of samples with
/// tokens and where documents begin, (2, 1, L), each has both, one behind the other. The source
/// says their shapes and dtypes. Beyond the last sample that is repeated, without its targets.
class GivenSamples : public ChosenSamples {
 public:
  explicit GivenSamples(const BatchSource& source) : ChosenSamples(source) {}
  /// `inputs`: whole samples, one after the other, in host memory; at least one. `targets`: theirs,
  /// or none. While no pass runs.
  void give(const TensorView& inputs, const TensorView& targets) {
    inputs_ = inputs.flat();
    targets_ = targets ? targets.flat() : TensorView();
  }
  std::int64_t sample_numel() const { return source_.input_shape(1).numel(); }
  std::int64_t samples() const { return inputs_.numel() / sample_numel(); }
  std::int64_t fill(std::int64_t first, std::int64_t n, TensorView inputs,
                    TensorView targets) const override {
    const std::int64_t planes = planes_of(source_);
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t sample = std::min(first + i, samples() - 1);
      for (std::int64_t p = 0; p < planes; ++p) {
        copy_sample(inputs_, sample * planes + p, inputs, p * n + i, planes * n);
      }
    }
    const bool are_classes = targets.dtype == DType::kInt32;
    if (are_classes) {
      std::fill_n(targets.as<std::int32_t>(), targets.numel(), -1);
    } else {
      std::memset(targets.data, 0, static_cast<std::size_t>(targets.bytes()));
    }
    if (!targets_) return 0;
    const std::int64_t here = std::clamp<std::int64_t>(samples() - first, 0, n);
    for (std::int64_t i = 0; i < here; ++i) copy_sample(targets_, first + i, targets, i, n);
    if (!are_classes) return 0;
    const std::int32_t* const classes = targets.as<std::int32_t>();
    return std::count_if(classes, classes + targets.numel(), [](auto c) { return c >= 0; });
  }

 private:
  static void copy_sample(const TensorView& from, std::int64_t sample, const TensorView& to,
                          std::int64_t place, std::int64_t places) {
    const std::int64_t numel = to.numel() / places;
    const TensorView source = from.narrow(0, sample * numel, numel);
    std::memcpy(to.flat().narrow(0, place * numel, numel).data, source.data,
                static_cast<std::size_t>(source.bytes()));
  }

  TensorView inputs_{}, targets_{};
};

}  // namespace tessera
