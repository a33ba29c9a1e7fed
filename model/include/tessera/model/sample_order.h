#pragma once

#include <cstdint>

namespace tessera {

/// The order in which samples are read: for every epoch another permutation of [0, samples).
///
/// A pure function of (seed, epoch, position) that stores no table, so any rank can ask for any
/// position at any time, and a run resumes from a position alone.
class SampleOrder {
 public:
  /// Throws Error{kInvalidArgument} unless 0 < samples <= 2^62.
  SampleOrder(std::int64_t samples, std::uint64_t seed);

  std::int64_t samples() const { return samples_; }
  std::uint64_t seed() const { return seed_; }
  /// The sample that is read at `position` of `epoch`, in [0, samples).
  /// Throws Error{kInvalidArgument} unless 0 <= position < samples and epoch >= 0.
  std::int64_t index(std::int64_t epoch, std::int64_t position) const;

 private:
  std::int64_t samples_;
  std::uint64_t seed_;
  int half_bits_;  ///< of the Feistel network's two halves
};

}  // namespace tessera
