#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "tessera/core/error.h"
#include "tessera/core/tensor.h"

namespace tessera::test {

/// Reference tensors by name, e.g. what tests/model/golden/make_gpt2_golden.py writes (see there
/// for the names): Golden golden(TESSERA_SOURCE_DIR "/tests/model/golden/gpt2").
class Golden {
 public:
  /// Reads `stem`.json and `stem`.bin.
  explicit Golden(const std::string& stem) {
    std::ifstream json(stem + ".json");
    require(json.good(), ErrorCode::kNotFound, "no golden file ", stem, ".json");
    index_ = nlohmann::json::parse(json);
    std::ifstream data(stem + ".bin", std::ios::binary);
    require(data.good(), ErrorCode::kNotFound, "no golden file ", stem, ".bin");
    data_.assign(std::istreambuf_iterator<char>(data), {});
  }

  /// The whole index: "config", "optimizer" and "tensors".
  const nlohmann::json& index() const { return index_; }
  bool contains(const std::string& name) const { return index_["tensors"].contains(name); }
  Shape shape(const std::string& name) const {
    return Shape(entry(name).at("shape").get<std::vector<std::int64_t>>());
  }
  std::vector<float> floats(const std::string& name) const { return read<float>(name, "fp32"); }
  std::vector<std::int32_t> ints(const std::string& name) const {
    return read<std::int32_t>(name, "int32");
  }
  /// How far PyTorch's own float32 is from the stored values, in the measure of relative_error.
  double fp32_error(const std::string& name) const {
    return entry(name).at("fp32_error").get<double>();
  }
  /// The same of its fp16.
  double fp16_error(const std::string& name) const {
    return entry(name).at("fp16_error").get<double>();
  }

 private:
  const nlohmann::json& entry(const std::string& name) const {
    require(contains(name), ErrorCode::kNotFound, "the golden file has no tensor '", name, "'");
    return index_["tensors"].at(name);
  }

  template <typename T>
  std::vector<T> read(const std::string& name, const std::string& dtype) const {
    require(entry(name).at("dtype").get<std::string>() == dtype, ErrorCode::kInvalidArgument,
            "golden tensor '", name, "' is not ", dtype);
    std::vector<T> values(static_cast<std::size_t>(shape(name).numel()));
    const auto begin = entry(name).at("offset").get<std::size_t>() * sizeof(T);
    require(begin + values.size() * sizeof(T) <= data_.size(), ErrorCode::kIo,
            "the golden file ends before tensor '", name, "'");
    std::memcpy(values.data(), data_.data() + begin, values.size() * sizeof(T));
    return values;
  }

  nlohmann::json index_;
  std::vector<char> data_;
};

/// max |actual - expected| / max |expected|; infinite if the sizes differ or anything is NaN.
inline double relative_error(std::span<const float> actual, std::span<const float> expected) {
  if (actual.size() != expected.size()) return INFINITY;
  double difference = 0.0;
  double largest = 0.0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double d = std::abs(static_cast<double>(actual[i]) - static_cast<double>(expected[i]));
    if (std::isnan(d)) return INFINITY;
    difference = std::max(difference, d);
    largest = std::max(largest, std::abs(static_cast<double>(expected[i])));
  }
  return difference == 0.0 ? 0.0 : difference / largest;
}

}  // namespace tessera::test
