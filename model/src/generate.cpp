#include "tessera/model/generate.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "tessera/core/error.h"
#include "tessera/kernels/philox.h"

namespace tessera {
namespace {

void check_options(const GenerateOptions& options) {
  require(options.tokens >= 0, ErrorCode::kConfig, "cannot generate ", options.tokens, " tokens");
  require(options.context_length > 0, ErrorCode::kConfig, "context length ", options.context_length,
          " is not positive");
  require(std::isfinite(options.temperature) && options.temperature >= 0.0F, ErrorCode::kConfig,
          "temperature ", options.temperature, " is not a number from 0 up");
  require(options.top_k >= 0, ErrorCode::kConfig, "top_k ", options.top_k,
          " is negative; 0 draws from all tokens");
  require(options.top_p > 0.0F && options.top_p <= 1.0F, ErrorCode::kConfig, "top_p ",
          options.top_p, " is not above 0 and at most 1; 1 draws from all tokens");
}

/// -inf marks a token as impossible; anything else that is not finite is no logit.
void check_logits(std::span<const float> logits) {
  require(!logits.empty(), ErrorCode::kInvalidArgument, "there are no logits to draw a token from");
  bool possible = false;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    require(!std::isnan(logits[i]) && logits[i] < std::numeric_limits<float>::infinity(),
            ErrorCode::kInvalidArgument, "the logit of token ", i, " is ", logits[i],
            "; the model has diverged, train it with a lower learning rate");
    possible = possible || std::isfinite(logits[i]);
  }
  require(possible, ErrorCode::kInvalidArgument, "every token's logit is -inf");
}

/// Orders tokens by their logits, the likeliest first.
auto likelier_by(std::span<const float> logits) {
  return [logits](std::int32_t a, std::int32_t b) {
    const float x = logits[static_cast<std::size_t>(a)];
    const float y = logits[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  };
}

/// Tokens with the `k` largest logits, in order of token.
std::vector<std::int32_t> likeliest(std::span<const float> logits, std::size_t k) {
  std::vector<std::int32_t> tokens(logits.size());
  std::iota(tokens.begin(), tokens.end(), 0);
  if (k >= tokens.size()) return tokens;
  const auto likelier = likelier_by(logits);
  std::nth_element(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(k), tokens.end(),
                   likelier);
  tokens.resize(k);
  std::sort(tokens.begin(), tokens.end());
  return tokens;
}

/// Leaves the fewest likeliest tokens that weigh at least `share` of all, in order of token.
template <typename Weight>
void keep_nucleus(std::vector<std::int32_t>& tokens, std::span<const float> logits,
                  const Weight& weight, float share) {
  std::ranges::sort(tokens, likelier_by(logits));
  std::vector<double> cumulative;
  double sum = 0.0;
  for (const std::int32_t token : tokens) cumulative.push_back(sum += weight(token));
  const auto last = std::ranges::lower_bound(cumulative, static_cast<double>(share) * sum);
  const auto count = static_cast<std::size_t>(last - cumulative.begin()) + 1;
  tokens.resize(std::min(count, tokens.size()));
  std::ranges::sort(tokens);
}

/// Uniform in [0, 1), a multiple of 2^-32.
double uniform(std::uint64_t seed, std::int64_t position) {
  const RandomKey key{seed, stream_of("generate")};
  return static_cast<double>(random_word(key, position)) * 0x1p-32;
}

}  // namespace

std::int32_t sample_token(const GenerateOptions& options, std::span<const float> logits,
                          std::int64_t position) {
  check_options(options);
  check_logits(logits);
  const auto largest = std::max_element(logits.begin(), logits.end());
  const auto argmax = static_cast<std::int32_t>(largest - logits.begin());
  if (options.temperature == 0.0F) return argmax;
  const std::size_t k =
      options.top_k == 0 ? logits.size() : static_cast<std::size_t>(options.top_k);
  std::vector<std::int32_t> tokens = likeliest(logits, k);
  // In double precision, and relative to the largest, so that a tiny temperature overflows nothing.
  const auto weight = [&](std::int32_t token) {
    const double below = static_cast<double>(logits[static_cast<std::size_t>(token)]) -
                         static_cast<double>(*largest);
    return std::exp(below / static_cast<double>(options.temperature));
  };
  if (options.top_p < 1.0F) keep_nucleus(tokens, logits, weight, options.top_p);
  std::vector<double> cumulative;
  double sum = 0.0;
  for (const std::int32_t token : tokens) {
    sum += weight(token);
    cumulative.push_back(sum);
  }
  const double drawn = uniform(options.seed, position) * sum;
  const auto chosen = std::upper_bound(cumulative.begin(), cumulative.end(), drawn);
  if (chosen == cumulative.end()) return argmax;  // drawn was rounded up to the sum
  return tokens[static_cast<std::size_t>(chosen - cumulative.begin())];
}

std::vector<std::int32_t> generate(const GenerateOptions& options,
                                   std::span<const std::int32_t> prompt,
                                   const NextLogits& next_logits,
                                   const std::function<bool(std::int32_t)>& on_token) {
  check_options(options);
  require(!prompt.empty(), ErrorCode::kConfig,
          "the prompt is empty; give at least one token to continue from");
  std::vector<std::int32_t> text(prompt.begin(), prompt.end());
  const auto context_length = static_cast<std::size_t>(options.context_length);
  for (std::int64_t position = 0; position < options.tokens; ++position) {
    const std::size_t seen = std::min(text.size(), context_length);
    const std::span<const float> logits = next_logits(std::span(text).last(seen));
    text.push_back(sample_token(options, logits, position));
    if (on_token && !on_token(text.back())) break;
  }
  return {text.begin() + static_cast<std::ptrdiff_t>(prompt.size()), text.end()};
}

}  // namespace tessera
