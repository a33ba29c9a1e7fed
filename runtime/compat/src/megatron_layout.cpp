#include "megatron_layout.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <system_error>

#include "tessera/core/error.h"
#include "tessera/core/text.h"

namespace tessera::compat {
namespace {

/// No model has as many layers, and a repetition of repetitions has no other end.
constexpr std::size_t kMostLayers = 1 << 16;

/// Reads a layout from left to right, and writes repetitions out.
class LayoutReader {
 public:
  explicit LayoutReader(const std::string& layout) : given_(layout) {
    std::ranges::copy_if(layout, std::back_inserter(text_), [](char c) { return c != ','; });
  }

  /// One letter per layer, and '|' between stages.
  std::string written_out() {
    std::string all;
    while (next_ < text_.size()) {
      std::string part = text_[next_] == '(' ? group() : std::string(1, text_[next_++]);
      const std::size_t count = repetitions();
      require(part.size() * count + all.size() <= kMostLayers, ErrorCode::kConfig, "'", given_,
              "' has more than ", kMostLayers, " layers");
      for (std::size_t i = 0; i < count; ++i) all += part;
    }
    return all;
  }

 private:
  /// Parentheses have letters, which may be repeated, too.
  std::string group() {
    const std::size_t end = text_.find(')', next_);
    require(end != text_.npos && end + 1 < text_.size() && text_[end + 1] == '*',
            ErrorCode::kConfig, "'", given_,
            "' has a parenthesis that no ')*N' ends, with a number of repetitions");
    const std::string inner = text_.substr(next_ + 1, end - next_ - 1);
    require(!inner.empty() && inner.find('(') == inner.npos, ErrorCode::kConfig, "'", given_,
            "' has a parenthesis around nothing, or around another one; write it out");
    next_ = end + 1;
    return LayoutReader(inner).written_out();
  }

  std::size_t repetitions() {
    if (next_ >= text_.size() || text_[next_] != '*') return 1;
    std::size_t count = 0;
    const char* const end = text_.data() + text_.size();
    const auto read = std::from_chars(text_.data() + next_ + 1, end, count);
    require(read.ec == std::errc() && count <= kMostLayers, ErrorCode::kConfig, "'", given_,
            "' has a '*' without a number of repetitions behind it, up to ", kMostLayers);
    next_ = static_cast<std::size_t>(read.ptr - text_.data());
    return count;
  }

  std::string given_;
  std::string text_;
  std::size_t next_ = 0;
};

void check_letters(const std::string& layout, const std::string& letters) {
  const auto refuse_if = [&](bool refused, const auto&... why) {
    require(!refused, ErrorCode::kConfig, "'", layout, "' ", why...);
  };
  const std::size_t other = letters.find_first_not_of("Et|L");
  if (other != letters.npos) {
    refuse_if(letters[other] == 'm',
              "has a layer of multi-token prediction (m), which models here have not");
    refuse_if(true, "has a '", letters[other],
              "'; its letters are E (the embedding), t (a block), L (the head), | between stages, "
              "and *N behind a letter or a group in parentheses");
  }
  refuse_if(std::ranges::count(letters, 'E') != 1 || !letters.starts_with('E'),
            "does not begin with the one embedding, E, which is a layer of the first stage");
  refuse_if(std::ranges::count(letters, 'L') != 1 || !letters.ends_with('L'),
            "does not end with the one head, L, which is a layer of the last stage");
}

}  // namespace

std::string split_of_layout(const std::string& layout) {
  const std::string letters = LayoutReader(layout).written_out();
  check_letters(layout, letters);
  std::vector<std::string> counts;
  for (const std::string& stage : split_text(letters, '|')) {
    require(!stage.empty(), ErrorCode::kConfig, "'", layout, "' leaves stage ", counts.size(),
            " without a layer; a stage has one at least");
    counts.push_back(std::to_string(stage.size()));
  }
  return joined(counts, ",");
}

}  // namespace tessera::compat
