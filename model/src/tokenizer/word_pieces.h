#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tokenizer/tokenizer_file.h"

namespace tessera::data {

/// BERT's WordPiece: words between white space, punctuation by itself, each cut into the longest
/// tokens from left to right. Immutable; safe to use from any thread.
class WordPieces {
 public:
  explicit WordPieces(const TokenizerFile& file);

  std::string normal(std::string_view text) const { return rules_.text.normal(text); }
  /// Appends the tokens of a normalised text between added tokens.
  void encode(std::string_view normal, std::vector<std::int32_t>& tokens) const;
  /// The text of a token, with the space in front of it if it is not the first and begins a word,
  /// and without spaces that English does not have ("do not ." is "do not.").
  std::string decode(std::string_view token, bool first) const;

 private:
  void encode_word(std::string_view word, std::vector<std::int32_t>& tokens) const;

  WordPieceRules rules_;
  std::int32_t unknown_;
  std::unordered_map<std::string_view, std::int32_t> ids_;  ///< views of the file's tokens
};

}  // namespace tessera::data
