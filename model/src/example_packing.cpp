#include "example_packing.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>
#include <utility>

#include "tessera/model/sample_order.h"

namespace tessera::data {
namespace {

std::size_t sum_of(const std::vector<std::size_t>& examples, std::span<const std::size_t> places) {
  std::size_t sum = 0;
  for (const std::size_t e : examples) sum += places[e];
  return sum;
}

}  // namespace

Packed pack(std::span<const std::size_t> places, std::size_t length) {
  Packed samples;
  std::vector<std::size_t> order(places.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::greater(), [&](std::size_t e) { return places[e]; });
  std::set<std::pair<std::size_t, std::size_t>> room;  // of each sample, and its number
  for (const std::size_t e : order) {
    auto best = room.lower_bound({places[e], 0});
    if (best == room.end()) {
      best = room.emplace(length, samples.size()).first;
      samples.emplace_back();
    }
    const auto [left, sample] = *best;
    samples[sample].push_back(e);
    room.erase(best);
    room.emplace(left - places[e], sample);
  }
  return samples;
}

Packed pack_into(std::span<const std::size_t> places, std::size_t length, std::size_t samples) {
  Packed packed = pack(places, length);
  if (packed.size() > samples) {
    std::ranges::stable_sort(packed, std::greater(),
                             [&](const auto& examples) { return sum_of(examples, places); });
  }
  packed.resize(samples);
  for (auto& sample : packed) {
    if (!sample.empty()) continue;
    auto& fullest =
        *std::ranges::max_element(packed, {}, [](const auto& examples) { return examples.size(); });
    if (fullest.size() < 2) break;
    sample.push_back(fullest.back());
    fullest.pop_back();
  }
  return packed;
}

std::int64_t examples_for(std::span<const std::size_t> places, std::size_t length,
                          std::size_t samples) {
  constexpr std::int64_t kMost = 8192;
  constexpr std::int64_t kTrials = 16;
  const SampleOrder numbers(std::int64_t{1} << 40, 0);
  const auto fit = [&](std::int64_t count) {
    std::vector<std::size_t> drawn;
    for (std::int64_t trial = 0; trial < kTrials; ++trial) {
      drawn.clear();
      for (std::int64_t i = 0; i < count; ++i) {
        drawn.push_back(places[static_cast<std::size_t>(numbers.index(trial, i)) % places.size()]);
      }
      if (pack(drawn, length).size() > samples) return false;
    }
    return true;
  };
  auto fits = static_cast<std::int64_t>(samples);
  std::int64_t too_many = std::max(kMost, fits) + 1;
  while (fits + 1 < too_many) {
    const std::int64_t between = fits + (too_many - fits) / 2;
    (fit(between) ? fits : too_many) = between;
  }
  return fits;
}

}  // namespace tessera::data
