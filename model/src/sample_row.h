#pragma once

#include <cstdint>
#include <span>
#include <utility>

#include "tessera/kernels/kernel_table.h"
#include "tessera/model/token_masking.h"

namespace tessera::data {

/// An example's tokens, and which of them are targets, or may be hidden: [first, second).
struct ExampleView {
  std::span<const std::int32_t> tokens{};
  std::span<const std::pair<std::int32_t, std::int32_t>> targets{};

  /// An example takes a place less than it has tokens: the last is a target alone.
  std::size_t places() const { return tokens.size() - 1; }
};

/// Memory of one sample, L places each.
struct SampleRow {
  std::span<std::int32_t> inputs{};
  std::span<std::int32_t> targets{};
  std::span<std::int32_t> starts{};  ///< where each place's document begins; empty: not asked for
  bool label_first = false;          ///< an example's one target is told at its first place
  const TokenMasking* masking = nullptr;  ///< hides tokens, which are told at their own places
  RandomKey masks{};                      ///< by which they are drawn
};

/// Writes examples, one behind the other, to a row that has room for them: behind the end inputs
/// repeat the last token, and targets are -100, as those of prompts. Returns how many targets
/// count.
std::int64_t write_sample(std::span<const ExampleView> examples, const SampleRow& row);

}  // namespace tessera::data
