#pragma once

#include <string>

namespace tessera::cli {

/// The speed of a run per second: losses that count, and positions that are computed.
struct SpeedRates {
  double tokens = 0.0;
  double positions = 0.0;
  /// Or prompts, of which nothing is learnt.
  bool has_padding() const { return positions > tokens * (1.0 + 1e-6); }
};

/// "45.1 k tokens/s", or, where not every position has a target, "45.1 k positions/s, 16.7 k
/// targets/s".
std::string describe_speed(const SpeedRates& rates);

}  // namespace tessera::cli
