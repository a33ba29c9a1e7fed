#include "document.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <limits>

#include "tessera/core/text.h"

namespace tessera::compat {
namespace {

constexpr double kExact = 9007199254740992.0;  // 2^53: doubles hold every integer below

}  // namespace

std::int64_t product(std::initializer_list<std::int64_t> sizes) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  std::int64_t result = 1;
  for (const std::int64_t size : sizes) result = result > kMost / size ? kMost : result * size;
  return result;
}

std::string upper(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return result;
}

std::optional<bool> as_flag(const Node& node) {
  constexpr std::array kTrue{"true", "yes", "on", "1", "t", "y"};
  constexpr std::array kFalse{"false", "no", "off", "0", "f", "n"};
  if (node.kind != Node::Kind::kScalar) return std::nullopt;
  const std::string text = lowercase(node.text);
  if (std::ranges::find(kTrue, text) != kTrue.end()) return true;
  if (std::ranges::find(kFalse, text) != kFalse.end()) return false;
  return std::nullopt;
}

std::optional<double> as_number(const Node& node) {
  if (node.kind != Node::Kind::kScalar || node.scalar.is_boolean()) return std::nullopt;
  if (has_leading_zero(node.text)) return std::nullopt;
  double number = 0;
  const char* begin = node.text.data();
  const char* end = begin + node.text.size();
  if (begin != end && *begin == '+') ++begin;
  const auto result = std::from_chars(begin, end, number);
  const bool whole = result.ec == std::errc() && result.ptr == end && std::isfinite(number);
  return whole ? std::optional(number) : std::nullopt;
}

std::optional<std::int64_t> as_integer(const Node& node) {
  const auto number = as_number(node);
  if (!number || *number != std::floor(*number) || std::abs(*number) > kExact) return std::nullopt;
  return static_cast<std::int64_t>(*number);
}

std::string number_remedy(const Node& node) {
  if (has_leading_zero(node.text)) return kLeadingZeroRemedy;
  const auto number = as_number(node);
  if (!number) return "; write it in digits";
  return std::abs(*number) > kExact ? "; it is too large" : "; write a whole number";
}

}  // namespace tessera::compat
