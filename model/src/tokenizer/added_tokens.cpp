#include "tokenizer/added_tokens.h"

#include <algorithm>

namespace tessera::data {

AddedTokens::AddedTokens(std::vector<std::pair<std::string, std::int32_t>> tokens)
    : tokens_(std::move(tokens)) {
  std::ranges::sort(tokens_);
  for (const auto& [content, id] : tokens_) begins_[static_cast<unsigned char>(content[0])] = true;
}

AddedTokens::Found AddedTokens::find(std::string_view text, std::size_t from) const {
  if (tokens_.empty()) return {std::string_view::npos, 0, 0};
  for (std::size_t begin = from; begin < text.size(); ++begin) {
    if (!begins_[static_cast<unsigned char>(text[begin])]) continue;
    // Of the sorted contents, those that begin as the text does are neighbours, the shortest first.
    Found longest{begin, 0, 0};
    auto first = tokens_.begin();
    auto last = tokens_.end();
    for (std::size_t k = 0; first != last && begin + k < text.size(); ++k) {
      const char byte = text[begin + k];
      const auto bytes = [k](const auto& token) {
        return static_cast<unsigned char>(token.first[k]);
      };
      first = std::ranges::lower_bound(first, last, static_cast<unsigned char>(byte), {}, bytes);
      last = std::ranges::upper_bound(first, last, static_cast<unsigned char>(byte), {}, bytes);
      if (first == last || first->first.size() > k + 1) continue;
      longest = {begin, k + 1, first->second};
      ++first;
    }
    if (longest.length > 0) return longest;
  }
  return {std::string_view::npos, 0, 0};
}

}  // namespace tessera::data
