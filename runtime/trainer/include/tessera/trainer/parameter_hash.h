#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tessera/sharding/executor.h"

namespace tessera {

/// Computes parameters_sha256 of parameters that come one by one.
class ParameterHash {
 public:
  ParameterHash();
  ~ParameterHash();
  void add(std::span<const float> values);
  /// Hexadecimal. Ends the hash.
  std::string finish();

 private:
  class Context;
  std::unique_ptr<Context> context_;
};

/// SHA-256, in hexadecimal, of the values of all parameters in the given order as little-endian
/// IEEE fp32. Names and shapes do not enter. Equal for equal training, however it was sharded.
std::string parameters_sha256(const std::vector<FullParameter>& parameters);

}  // namespace tessera
