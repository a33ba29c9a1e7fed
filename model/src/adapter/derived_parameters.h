#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "adapter/adapter_modules.h"
#include "tessera/model/gpt.h"

namespace tessera::adapter {

/// LoRA's kinds take these from the base's weights: DoRA's magnitudes and PiSSA's factors of new
/// adapters, and the weights without these factors, to which PiSSA's adapters belong. A module's
/// are computed when they are first asked for, and kept. Thread-safe.
class DerivedParameters {
 public:
  /// Elements of a parameter of the base from `first` on, as it is without adapters.
  using ReadBase =
      std::function<void(std::string_view parameter, std::int64_t first, std::span<float> values)>;

  /// `config` has the adapters. `fresh`: they are new, so that their own parameters are derived.
  DerivedParameters(const GptConfig& config, bool fresh, ReadBase base);
  ~DerivedParameters();
  DerivedParameters(const DerivedParameters&) = delete;
  DerivedParameters& operator=(const DerivedParameters&) = delete;

  /// The shapes of the parameters of adapters that are derived, by their names.
  const std::map<std::string, Shape, std::less<>>& shapes() const { return shapes_; }
  /// Elements of one of them, from `first` on.
  void read(std::string_view parameter, std::int64_t first, std::span<float> values) const;
  /// Takes from elements of the base's `matrix`, from `first` on, what PiSSA's factors have.
  void subtract(std::string_view matrix, std::int64_t first, std::span<float> values) const;

 private:
  struct Source;

  const Source& computed(Source& source) const;

  ReadBase base_;
  bool pissa_ = false;
  std::map<std::string, Shape, std::less<>> shapes_;
  std::vector<std::unique_ptr<Source>> sources_;
  std::map<std::string, Source*, std::less<>> by_parameter_;
  std::map<std::string, std::vector<Source*>, std::less<>> by_matrix_;
};

/// The Euclidean norm of each row of weights (rows, columns), in fp64.
std::vector<float> row_norms(std::span<const float> weights, std::size_t columns);

}  // namespace tessera::adapter
