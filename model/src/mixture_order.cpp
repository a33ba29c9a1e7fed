#include "mixture_order.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tessera/core/error.h"

namespace tessera::data {
namespace {

std::int64_t sum_of(const std::vector<std::int64_t>& weights) {
  return std::accumulate(weights.begin(), weights.end(), std::int64_t{0});
}

std::vector<std::int64_t> without_divisor(std::vector<std::int64_t> weights) {
  std::int64_t divisor = 0;
  for (const std::int64_t weight : weights) divisor = std::gcd(divisor, weight);
  for (std::int64_t& weight : weights) weight /= divisor;
  return weights;
}

}  // namespace

MixtureOrder::MixtureOrder(std::vector<std::int64_t> weights) : weights_(std::move(weights)) {
  const auto k = static_cast<std::int64_t>(weights_.size());
  const std::int64_t period = sum_of(weights_);
  require(k > 0 && weights_.size() <= kMostSources && period <= kMostWeight &&
              std::ranges::min(weights_) > 0,
          ErrorCode::kInvalidArgument, "an order of a mixture takes 1 to ", kMostSources,
          " positive weights that sum to at most ", kMostWeight);
  sources_.reserve(static_cast<std::size_t>(period));
  std::vector<std::int64_t> given(weights_.size());
  const std::int64_t scale = std::max<std::int64_t>(2 * k - 2, 1);
  for (std::int64_t n = 1; n <= period; ++n) {
    if ((n - 1) % kStride == 0) {
      for (const std::int64_t count : given) counts_.push_back(static_cast<std::int32_t>(count));
    }
    // Eligible: n w / period - given >= 1 / (2 k - 2). Late first: the smallest
    // (given + 1 - 1 / (2 k - 2)) / w.
    std::size_t next = weights_.size();
    for (std::size_t i = 0; i < weights_.size(); ++i) {
      if (k > 1 && (n * weights_[i] - given[i] * period) * scale < period) continue;
      const auto late = [&](std::size_t of) { return given[of] * scale + scale - 1; };
      if (next == weights_.size() || late(i) * weights_[next] < late(next) * weights_[i]) next = i;
    }
    require(next < weights_.size(), ErrorCode::kInternal, "no source of a mixture is next");
    ++given[next];
    sources_.push_back(static_cast<std::uint8_t>(next));
  }
  require(given == weights_, ErrorCode::kInternal, "the order of a mixture is not periodic");
}

std::int64_t MixtureOrder::count(std::size_t source, std::int64_t position) const {
  const std::int64_t within = position % period();
  const std::int64_t stride = within / kStride;
  std::int64_t count = position / period() * weights_[source];
  count += counts_[static_cast<std::size_t>(stride) * weights_.size() + source];
  const auto begin = sources_.begin() + stride * kStride, end = sources_.begin() + within;
  return count + std::count(begin, end, static_cast<std::uint8_t>(source));
}

MixtureOrder::Place MixtureOrder::at(std::int64_t position) const {
  const std::size_t source = sources_[static_cast<std::size_t>(position % period())];
  return {source, count(source, position)};
}

std::int64_t MixtureOrder::position_of(Place place) const {
  const std::int64_t periods = place.sample / weights_[place.source];
  std::int64_t left = place.sample % weights_[place.source];
  std::int64_t within = 0;
  while (sources_[static_cast<std::size_t>(within)] != place.source || left-- > 0) ++within;
  return periods * period() + within;
}

std::vector<std::int64_t> whole_weights(const std::vector<double>& weights) {
  constexpr const char* kRemedy = "; write weights such as 0.7 and 0.3, or 7 and 3";
  for (const double weight : weights) {
    require(weight > 0.0 && std::isfinite(weight), ErrorCode::kConfig, "the weight ", weight,
            " of data is not above 0", kRemedy);
  }
  for (double scale = 1.0; scale <= static_cast<double>(MixtureOrder::kMostWeight); scale *= 10.0) {
    std::vector<std::int64_t> whole;
    bool is_whole = true;
    for (const double weight : weights) {
      const double scaled = weight * scale;
      is_whole = is_whole && scaled < 1e15 &&
                 std::abs(scaled - std::round(scaled)) <= 1e-9 * std::max(1.0, scaled) &&
                 scaled >= 0.5;
      if (is_whole) whole.push_back(std::llround(scaled));
    }
    if (!is_whole) continue;
    whole = without_divisor(std::move(whole));
    if (sum_of(whole) <= MixtureOrder::kMostWeight) return whole;
  }
  fail(ErrorCode::kConfig,
       "the weights of data have too many digits: as whole numbers they sum to ", "more than ",
       MixtureOrder::kMostWeight, kRemedy);
}

std::vector<std::int64_t> weights_of_sizes(const std::vector<std::int64_t>& sizes) {
  const std::int64_t all = sum_of(sizes);
  if (all <= MixtureOrder::kMostWeight) return without_divisor(sizes);
  std::vector<std::int64_t> weights;
  constexpr double kScale = 100'000;
  for (const std::int64_t size : sizes) {
    const double share = static_cast<double>(size) / static_cast<double>(all);
    weights.push_back(std::max<std::int64_t>(std::llround(share * kScale), 1));
  }
  return without_divisor(std::move(weights));
}

}  // namespace tessera::data
