#pragma once

#include <algorithm>
#include <array>
#include <string_view>

#include "tessera/lab/comparison.h"

// A timeline tells these apart by colours.
namespace tessera {

struct SpanKind {
  std::string_view name;   ///< with which an action's begins
  std::string_view css;    ///< of the report's style
  std::string_view words;  ///< of the legend
  bool is_block = false;   ///< passes and updates: what the lanes of work do
};

/// The first that fits holds, and the last one for all others. A loss that is forward and backward
/// in one is part of the backward.
inline constexpr std::array<SpanKind, 11> kSpanKinds{
    {{"forward", "c0", "forward", true},
     {"backward-weight", "c7", "backward of weights", true},
     {"backward", "c2", "backward", true},
     {"loss", "c2", "backward", true},
     {"all-gather", "c1", "all-gather"},
     {"reduce-scatter", "c3", "reduce-scatter"},
     {"all-reduce", "c5", "all-reduce"},
     {"optimizer-step", "c4", "optimizer-step", true},
     {"send", "message", "messages between stages"},
     {"receive", "message", "messages between stages"},
     {"", "c6", "other"}}};

inline const SpanKind& kind_of(const LaneSpan& span) {
  return *std::ranges::find_if(
      kSpanKinds, [&](const SpanKind& kind) { return span.name.starts_with(kind.name); });
}

}  // namespace tessera
