#pragma once

#include <cstdint>
#include <vector>

namespace tessera::data {

/// The order in which a mixture reads its sources: a pure function of the position, by whole
/// weights. Of the first n samples each source gives its share of n, less or more by less than 1;
/// with the sum of the weights the order begins anew. It is the solution of the chairman assignment
/// problem by Tijdeman (1980): among the sources whose share is far enough ahead of what they have
/// given, the next is the one that would be late first.
class MixtureOrder {
 public:
  static constexpr std::int64_t kMostWeight = 1'000'000;  ///< of all sources together
  static constexpr std::size_t kMostSources = 255;

  /// Throws Error{kInvalidArgument} unless weights are positive and within the limits above.
  explicit MixtureOrder(std::vector<std::int64_t> weights);

  const std::vector<std::int64_t>& weights() const { return weights_; }
  std::int64_t period() const { return static_cast<std::int64_t>(sources_.size()); }

  struct Place {
    std::size_t source;
    std::int64_t sample;  ///< of the source's own sequence
  };
  Place at(std::int64_t position) const;
  /// How many of the samples at positions [0, position) the source gives.
  std::int64_t count(std::size_t source, std::int64_t position) const;
  /// The position of the source's sample.
  std::int64_t position_of(Place place) const;

 private:
  static constexpr std::int64_t kStride = 256;

  std::vector<std::int64_t> weights_;
  std::vector<std::uint8_t> sources_;  ///< of each position of a period
  std::vector<std::int32_t> counts_;   ///< of each source before every kStride-th position
};

/// Whole weights in the ratio of the given ones, with no common divisor. Throws Error{kConfig} if
/// one is not positive or they have too many digits.
std::vector<std::int64_t> whole_weights(const std::vector<double>& weights);
/// Whole weights in the ratio of sizes: exactly if they sum to at most kMostWeight, else nearly.
std::vector<std::int64_t> weights_of_sizes(const std::vector<std::int64_t>& sizes);

}  // namespace tessera::data
