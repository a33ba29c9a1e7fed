#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tessera/core/host_work.h"
#include "tessera/sharding/executor.h"

namespace tessera {

/// Computes parameters_sha256 of parameters that come one by one, on a thread of its own: beside
/// the gathering of those that follow.
class ParameterHash {
 public:
  /// Values that wait for their turn take no more memory than this, or than one parameter does:
  /// enough for a unit of large models, so that the next one is gathered meanwhile.
  static constexpr std::size_t kMostWaitingBytes = std::size_t{512} << 20U;
  /// `work`, unless null, counts HostTask::kHash.
  explicit ParameterHash(HostWork* work = nullptr,
                         std::size_t most_waiting_bytes = kMostWaitingBytes);
  /// Ends the hash, if nobody has finished it.
  ~ParameterHash();
  ParameterHash(const ParameterHash&) = delete;
  ParameterHash& operator=(const ParameterHash&) = delete;

  /// Waits while there are too many. Throws what the hash could not do.
  void add(std::vector<float> values);
  /// Hexadecimal, of all that were added. Ends the hash. Throws as add().
  std::string finish();
  /// The most that has waited at a time.
  std::size_t most_waiting_bytes() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// SHA-256, in hexadecimal, of the values of all parameters in the given order as little-endian
/// IEEE fp32. Names and shapes do not enter. Equal for equal training, however it was sharded.
std::string parameters_sha256(const std::vector<FullParameter>& parameters);

}  // namespace tessera
