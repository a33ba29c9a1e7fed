#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tessera/model/tokenizer.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/byte_pairs.h"
#include "tokenizer/nfc.h"
#include "tokenizer/tokenizer_file.h"
#include "tokenizer/white_space.h"
#include "tokenizer/word_pattern.h"
#include "tokenizer/word_pieces.h"

// A tokenizer.json made ready for encoding and decoding.
namespace tessera {

namespace data {

inline AddedTokens added_tokens(const TokenizerFile& file, bool normalized) {
  std::vector<AddedToken> tokens;
  for (const AddedToken& token : file.added) {
    if (token.normalized != normalized) continue;
    tokens.push_back(token);
    if (!normalized) continue;
    if (file.nfc) tokens.back().content = to_nfc(token.content);
    if (file.word_pieces) tokens.back().content = file.word_pieces->text.normal(token.content);
    if (file.normalizer_marks) {
      tokens.back().content = with_space_marks(token.content, file.prefix, true);
    }
  }
  return AddedTokens(std::move(tokens));
}

}  // namespace data

struct Tokenizer::Tables {
  explicit Tables(data::TokenizerFile parsed)
      : file(std::move(parsed)),
        pairs(file),
        word_pieces(file),
        raw(data::added_tokens(file, false)),
        normalized(data::added_tokens(file, true)) {
    for (const data::WordSplit& split : file.splits) {
      patterns.emplace_back(split.pattern, split.removes_rest);
    }
    special.resize(file.tokens.size());
    for (const data::AddedToken& token : file.added) {
      if (token.special) special[static_cast<std::size_t>(token.id)] = true;
      if (token.content.find_first_of(" \n") != std::string::npos) can_cut = false;
      const bool brings_spaces =
          file.word_pieces && token.normalized &&
          file.word_pieces->text.normal(token.content).find(' ') != std::string::npos;
      if (brings_spaces) can_cut = false;
      if (token.strips_left || token.strips_right) takes_space = true;
    }
    takes_space = takes_space || file.pieces || file.word_pieces;
    if (file.pieces) {
      spell_pieces();
    } else if (!file.word_pieces) {
      find_cuts();
    }
    for (std::size_t id = 0; id < file.tokens.size(); ++id) {
      if (file.word_pieces) {
        bytes.push_back(file.tokens[id]);
      } else if (!file.pieces) {
        bytes.push_back(data::bytes_of_spelling(file.tokens[id]).value_or(file.tokens[id]));
      }
      if (!file.tokens[id].empty()) ids.emplace(file.tokens[id], static_cast<std::int32_t>(id));
    }
    for (const data::AddedToken& token : file.added) {
      if (!file.word_pieces || !token.normalized) continue;
      bytes[static_cast<std::size_t>(token.id)] = file.word_pieces->text.normal(token.content);
    }
  }

  /// Marks become spaces, and byte tokens bytes. A token with a mark behind another character could
  /// reach over any space.
  void spell_pieces() {
    for (std::size_t id = 0; id < file.tokens.size(); ++id) {
      const std::string& token = file.tokens[id];
      const int byte = id < file.model_tokens ? data::byte_of_piece(token) : -1;
      is_byte.push_back(byte >= 0);
      bytes.push_back(byte >= 0 ? std::string(1, static_cast<char>(byte))
                                : data::replaced(token, data::kSpaceMark, " "));
      const std::size_t solid = bytes.back().find_first_not_of(' ');
      const bool reaches_over =
          solid != std::string::npos && bytes.back().find(' ', solid) != std::string::npos;
      if (byte < 0 && id < file.model_tokens && reaches_over) can_cut = false;
    }
  }

  /// A pattern behind the first one that ends words splits words alone.
  void find_cuts() {
    for (const data::WordSplit& split : file.splits) {
      if (split.adds_space) takes_space = true;
      const data::WordCuts cuts = data::cuts_of(split.pattern);
      if (cuts == data::WordCuts::kOfOthers) continue;
      if (cuts == data::WordCuts::kNone) can_cut = false;
      if (cuts == data::WordCuts::kSpaces) takes_space = true;
      return;
    }
    can_cut = false;
  }

  data::TokenizerFile file;
  std::vector<data::WordPattern> patterns;  ///< of file.splits
  data::BytePairs pairs;
  data::WordPieces word_pieces;
  data::AddedTokens raw, normalized;  ///< sought before and after normalisation
  std::vector<bool> special;          ///< by id
  std::vector<std::string> bytes;     ///< by id
  std::vector<bool> is_byte;          ///< by id, of pieces: a byte token
  std::unordered_map<std::string_view, std::int32_t> ids;
  /// No added token has a space or a newline in it, no piece reaches over one, and words end there.
  bool can_cut = true;
  bool takes_space = false;  ///< cut before spaces alone, and not behind an added token
};

}  // namespace tessera
