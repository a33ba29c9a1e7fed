#pragma once

#include <string>
#include <string_view>

namespace tessera::data {

/// A BertNormalizer, which changes valid UTF-8 character by character: as the package `tokenizers`
/// has it, whose categories of characters are those of an older Unicode.
struct BertText {
  bool cleans = true;          ///< control characters go, and white space becomes spaces
  bool splits_chinese = true;  ///< spaces around each Chinese character
  bool strips_accents = true;  ///< characters are decomposed, and marks go
  bool lowercase = true;

  std::string normal(std::string_view text) const;
};

/// Whether a BertPreTokenizer makes a word of the character.
bool is_bert_punctuation(char32_t code);

}  // namespace tessera::data
