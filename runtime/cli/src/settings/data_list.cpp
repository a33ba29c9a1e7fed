#include "settings/data_list.h"

#include <charconv>
#include <filesystem>

#include "tessera/core/error.h"
#include "tessera/core/text.h"

namespace tessera::cli {
namespace {

bool is_path(const std::string& text) {
  std::error_code ignored;
  return std::filesystem::exists(text, ignored);
}

WeightedPath parse_one(const std::string& text, const std::string& all) {
  require(!text.empty(), ErrorCode::kConfig, "'", all,
          "' has a comma with no data before or behind it; write such as "
          "'a.jsonl=0.7,b.jsonl=0.3'");
  const std::size_t sign = text.rfind('=');
  if (sign == std::string::npos || is_path(text)) return {text};
  double weight = 0.0;
  const char* const end = text.data() + text.size();
  const auto result = std::from_chars(text.data() + sign + 1, end, weight);
  require(result.ec == std::errc() && result.ptr == end && weight > 0.0 && sign > 0,
          ErrorCode::kConfig, "'", text.substr(sign + 1), "' behind '", text.substr(0, sign),
          "' is no weight of data; write a number above 0, such as in 'a.jsonl=0.7'");
  return {text.substr(0, sign), weight};
}

}  // namespace

std::vector<WeightedPath> parse_data(const std::string& text) {
  if (is_path(text)) return {{text}};
  std::vector<WeightedPath> all;
  for (const std::string& part : split_text(text, ',')) all.push_back(parse_one(part, text));
  return all;
}

}  // namespace tessera::cli
