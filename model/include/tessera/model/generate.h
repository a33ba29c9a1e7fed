#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

struct GenerateOptions {
  std::int64_t tokens = 200;           ///< how many to generate
  std::int64_t context_length = 1024;  ///< the model sees at most so many of the last tokens
  float temperature = 0.8F;            ///< divides the logits; 0 takes the likeliest token
  int top_k = 0;                       ///< draws from the k likeliest only; 0: from all
  /// Draws from the fewest likeliest whose probabilities, after temperature and top_k, sum to at
  /// least this; in (0, 1].
  float top_p = 1.0F;
  std::uint64_t seed = 0;
};

/// Logits (V) of the token after `context`. The result must live until the next call.
using NextLogits = std::function<std::span<const float>(std::span<const std::int32_t> context)>;

/// Draws the token that follows `logits`, whose place in the generated text is `position`: a pure
/// function of its arguments. Among equal logits the lower token counts as likelier.
/// Throws Error{kInvalidArgument} if the logits are no distribution (NaN, +inf, empty).
std::int32_t sample_token(const GenerateOptions& options, std::span<const float> logits,
                          std::int64_t position);

/// Continues `prompt`, token by token; returns the new tokens only. `on_token` sees each as it
/// comes, and says whether to go on. Throws Error{kConfig} on options out of range and on an empty
/// prompt.
std::vector<std::int32_t> generate(const GenerateOptions& options,
                                   std::span<const std::int32_t> prompt,
                                   const NextLogits& next_logits,
                                   const std::function<bool(std::int32_t)>& on_token = {});

/// The bytes of a text as tokens.
std::vector<std::int32_t> to_byte_tokens(std::string_view text);

/// Byte tokens as UTF-8 that is safe to show: what a model makes up need not be valid, and must not
/// move a terminal's cursor. Bytes that are not UTF-8 become U+FFFD, control characters other than
/// newline and tab "\xNN", marks that reorder text "\u{NNNN}", tokens that are no bytes "<N>".
std::string printable(std::span<const std::int32_t> tokens);

}  // namespace tessera
