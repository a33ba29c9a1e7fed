#include "tokenizer/white_space.h"

#include "tokenizer/utf8.h"

namespace tessera::data {

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string result;
  for (std::size_t at = text.find(from); at != std::string_view::npos; at = text.find(from)) {
    result.append(text.substr(0, at)).append(to);
    text.remove_prefix(at + from.size());
  }
  return result.append(text);
}

std::string with_space_marks(std::string_view section, SpacePrefix prefix, bool first) {
  const std::string marked = replaced(section, " ", kSpaceMark);
  const bool sections = prefix == SpacePrefix::kSections || prefix == SpacePrefix::kEverySection;
  const bool wanted = sections || (prefix == SpacePrefix::kFirst && first);
  const bool is_there = marked.starts_with(kSpaceMark);
  if (!wanted || (is_there && prefix != SpacePrefix::kEverySection)) return marked;
  return std::string(kSpaceMark) + marked;
}

std::size_t leading_space(std::string_view text) {
  std::size_t bytes = 0;
  while (bytes < text.size()) {
    const std::string_view rest = text.substr(bytes);
    const std::size_t step = first_character(rest).bytes;
    if (!is_white_space(code_point(rest.substr(0, step)))) break;
    bytes += step;
  }
  return bytes;
}
std::size_t trailing_space(std::string_view text) {
  std::size_t bytes = 0;
  while (bytes < text.size()) {
    const std::string_view last = last_character(text.substr(0, text.size() - bytes));
    if (!is_white_space(code_point(last))) break;
    bytes += last.size();
  }
  return bytes;
}

}  // namespace tessera::data
