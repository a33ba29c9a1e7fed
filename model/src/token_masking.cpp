#include "tessera/model/token_masking.h"

#include <algorithm>

#include "hidden_tokens.h"
#include "tessera/core/error.h"
#include "tessera/kernels/philox.h"

namespace tessera {

bool TokenMasking::may_hide(std::int32_t token) const {
  return !std::ranges::binary_search(special, token);
}

TokenMasking masking_of(const Tokenizer& tokenizer, std::string_view mask_token,
                        double probability) {
  const auto mask = tokenizer.id_of(mask_token);
  require(mask.has_value(), ErrorCode::kConfig, "the tokenizer has no token '", mask_token,
          "' to hide others behind; give the tokenizer of a model that tells masked tokens");
  TokenMasking masking{.mask_token = *mask,
                       .vocab_size = tokenizer.vocab_size(),
                       .probability = probability,
                       .special = tokenizer.special_tokens()};
  const std::vector<std::int32_t> bare = tokenizer.encode("a"), whole = tokenizer.encode("a", true);
  const auto found = std::ranges::search(whole, bare);
  if (!bare.empty() && !found.empty()) {
    masking.before.assign(whole.begin(), found.begin());
    masking.after.assign(found.end(), whole.end());
  }
  return masking;
}

namespace data {
namespace {

constexpr std::uint64_t share_of_words(double share) {
  return static_cast<std::uint64_t>(share * 0x1p32);
}

}  // namespace

RandomKey key_of_masks(std::uint64_t seed, std::int64_t sample) {
  return {.seed = seed, .stream = stream_of("masks", static_cast<std::uint64_t>(sample))};
}

std::int64_t hide_tokens(const TokenMasking& masking, RandomKey key,
                         std::span<const std::size_t> places, std::span<std::int32_t> inputs,
                         std::span<std::int32_t> targets) {
  constexpr std::uint64_t kMasked = share_of_words(0.8), kMaskedOrRandom = share_of_words(0.9);
  std::int64_t hidden = 0;
  // A place has a block of four random words: whether it is a target, what it becomes, and which
  // random token.
  const auto words_of = [&](std::size_t place) {
    return philox4x32(philox_counter(key, place), philox_key(key));
  };
  const auto hide = [&](std::size_t place) {
    const PhiloxCounter words = words_of(place);
    targets[place] = inputs[place];
    if (words[1] < kMasked) {
      inputs[place] = masking.mask_token;
    } else if (words[1] < kMaskedOrRandom) {
      const auto tokens = static_cast<std::uint64_t>(masking.vocab_size);
      inputs[place] = static_cast<std::int32_t>(tokens * words[2] >> 32);
    }
    ++hidden;
  };
  const std::uint64_t drawn = share_of_words(masking.probability);
  for (const std::size_t place : places) {
    if (words_of(place)[0] < drawn) hide(place);
  }
  if (hidden > 0 || places.empty()) return hidden;
  const std::uint64_t word = words_of(inputs.size())[0];
  hide(places[static_cast<std::size_t>(places.size() * word >> 32)]);
  return hidden;
}

}  // namespace data
}  // namespace tessera
