#include "tokenizer/added_tokens.h"

#include <algorithm>

namespace tessera::data {

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  // The first of equal contents is found: of tokens that are normalised to the same, which the
  // package tells apart by chance.
  std::ranges::stable_sort(tokens_, {}, &AddedToken::content);
  for (const AddedToken& token : tokens_) {
    begins_[static_cast<unsigned char>(token.content[0])] = true;
  }
}

AddedTokens::Found AddedTokens::find(std::string_view text, std::size_t from) const {
  constexpr Found kNone{std::string_view::npos, 0, 0, false, false};
  if (tokens_.empty()) return kNone;
  for (std::size_t begin = from; begin < text.size(); ++begin) {
    if (!begins_[static_cast<unsigned char>(text[begin])]) continue;
    // The sorted contents that begin as the text does are neighbours, the shortest first.
    Found longest{begin, 0, 0, false, false};
    auto first = tokens_.begin();
    auto last = tokens_.end();
    for (std::size_t k = 0; first != last && begin + k < text.size(); ++k) {
      const char byte = text[begin + k];
      const auto bytes = [k](const AddedToken& token) {
        return static_cast<unsigned char>(token.content[k]);
      };
      first = std::ranges::lower_bound(first, last, static_cast<unsigned char>(byte), {}, bytes);
      last = std::ranges::upper_bound(first, last, static_cast<unsigned char>(byte), {}, bytes);
      if (first == last || first->content.size() > k + 1) continue;
      longest = {begin, k + 1, first->id, first->strips_left, first->strips_right};
      ++first;
    }
    if (longest.length > 0) return longest;
  }
  return kNone;
}

bool AddedTokens::end(std::string_view text) const {
  return std::ranges::any_of(
      tokens_, [&](const AddedToken& token) { return text.ends_with(token.content); });
}

}  // namespace tessera::data
