#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "tessera/model/tokenizer.h"

namespace tessera {

/// How tokens are hidden from an encoder that learns to tell them, as transformers'
/// DataCollatorForLanguageModeling hides them: each token that is not special is a target with
/// `probability`; of the targets 80 % become the mask token, 10 % a random one of the vocabulary,
/// and 10 % stay.
///
/// Which ones is a function of DatasetOptions::seed, the sample's number in the endless sequence
/// and the token's place: other ones in each epoch, the same on any number of ranks. A sample of
/// which none is drawn has one target, as in BERT's own data, so that a step has a loss.
struct TokenMasking {
  std::int32_t mask_token = 0;
  std::int64_t vocab_size = 0;          ///< random tokens are below it
  double probability = 0.15;            ///< in (0, 1)
  std::vector<std::int32_t> special{};  ///< tokens that are never targets, in ascending order
  /// Tokens put around a sample of a stream: "[CLS]" and "[SEP]" of BERT.
  std::vector<std::int32_t> before{}, after{};

  bool may_hide(std::int32_t token) const;
};

/// For the tokens of `tokenizer`, whose mask token is spelled `mask_token`. Throws Error{kConfig}
/// if it has none of that spelling.
TokenMasking masking_of(const Tokenizer& tokenizer, std::string_view mask_token,
                        double probability = 0.15);

}  // namespace tessera
