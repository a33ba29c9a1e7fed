#include "tokenizer/word_pieces.h"

#include <algorithm>
#include <array>
#include <utility>

#include "tessera/core/error.h"
#include "tokenizer/utf8.h"
#include "tokenizer/white_space.h"

namespace tessera::data {

WordPieces::WordPieces(const TokenizerFile& file)
    : rules_(file.word_pieces.value_or(WordPieceRules{})), unknown_(file.unknown) {
  if (!file.word_pieces) return;
  for (std::size_t id = 0; id < file.model_tokens; ++id) {
    if (!file.tokens[id].empty()) ids_.emplace(file.tokens[id], static_cast<std::int32_t>(id));
  }
}

void WordPieces::encode(std::string_view normal, std::vector<std::int32_t>& tokens) const {
  const std::string_view all = normal;
  std::size_t begin = 0;
  const auto end_word = [&](std::size_t end) {
    if (end > begin) encode_word(all.substr(begin, end - begin), tokens);
  };
  for (std::size_t at = 0; at < all.size();) {
    const std::size_t bytes = first_character(all.substr(at)).bytes;
    const char32_t code = code_point(all.substr(at, bytes));
    const bool is_space = is_white_space(code);
    if (is_space || is_bert_punctuation(code)) {
      end_word(at);
      if (!is_space) encode_word(all.substr(at, bytes), tokens);
      begin = at + bytes;
    }
    at += bytes;
  }
  end_word(all.size());
}

void WordPieces::encode_word(std::string_view word, std::vector<std::int32_t>& tokens) const {
  const auto begins_character = [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0U) != 0x80U;
  };
  const std::size_t before = tokens.size();
  bool known = std::cmp_less_equal(std::ranges::count_if(word, begins_character), rules_.most);
  std::string piece;
  for (std::size_t begin = 0; known && begin < word.size();) {
    std::size_t end = word.size();
    for (known = false; end > begin;) {
      piece = concat(begin == 0 ? "" : rules_.prefix, word.substr(begin, end - begin));
      const auto found = ids_.find(piece);
      known = found != ids_.end();
      if (known) {
        tokens.push_back(found->second);
        break;
      }
      do --end;
      while (end > begin && !begins_character(word[end]));
    }
    begin = end;
  }
  if (known) return;
  tokens.resize(before);
  tokens.push_back(unknown_);
}

std::string WordPieces::decode(std::string_view token, bool first) const {
  std::string text(token);
  if (!first) {
    const bool goes_on = token.starts_with(rules_.prefix) && !rules_.prefix.empty();
    text = goes_on ? std::string(token.substr(rules_.prefix.size())) : concat(" ", token);
  }
  if (!rules_.cleans_up) return text;
  constexpr auto kSpaces =
      std::to_array<std::pair<std::string_view, std::string_view>>({{" .", "."},
                                                                    {" ?", "?"},
                                                                    {" !", "!"},
                                                                    {" ,", ","},
                                                                    {" ' ", "'"},
                                                                    {" n't", "n't"},
                                                                    {" 'm", "'m"},
                                                                    {" do not", " don't"},
                                                                    {" 's", "'s"},
                                                                    {" 've", "'ve"},
                                                                    {" 're", "'re"}});
  for (const auto& [from, to] : kSpaces) text = replaced(text, from, to);
  return text;
}

}  // namespace tessera::data
