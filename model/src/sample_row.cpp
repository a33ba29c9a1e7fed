#include "sample_row.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "hidden_tokens.h"

namespace tessera::data {

std::int64_t write_sample(std::span<const ExampleView> examples, const SampleRow& row) {
  constexpr std::int32_t kIgnored = -100;
  std::ranges::fill(row.targets, kIgnored);
  std::int64_t counted = 0;
  std::vector<std::size_t> may_be_hidden;
  std::size_t begin = 0;
  for (const ExampleView& example : examples) {
    const std::size_t places = example.places();
    const std::span<std::int32_t> inputs = row.inputs.subspan(begin);
    std::copy_n(example.tokens.begin(), places, inputs.begin());
    std::ranges::fill(inputs.subspan(places), example.tokens.back());
    for (const auto& [first, second] : example.targets) {
      const auto from = static_cast<std::size_t>(first);
      const auto count = static_cast<std::size_t>(second - first);
      if (row.masking != nullptr) {
        may_be_hidden.resize(may_be_hidden.size() + count);
        std::iota(may_be_hidden.end() - (second - first), may_be_hidden.end(), begin + from);
        continue;
      }
      std::ranges::copy(example.tokens.subspan(from, count),
                        row.targets.subspan(begin + (row.label_first ? 0 : from - 1)).begin());
      counted += second - first;
    }
    if (!row.starts.empty()) {
      std::ranges::fill(row.starts.subspan(begin, places), static_cast<std::int32_t>(begin));
    }
    begin += places;
  }
  if (!row.starts.empty()) {
    std::ranges::fill(row.starts.subspan(begin), static_cast<std::int32_t>(begin));
  }
  if (row.masking == nullptr) return counted;
  return hide_tokens(*row.masking, row.masks, may_be_hidden, row.inputs, row.targets);
}

}  // namespace tessera::data
