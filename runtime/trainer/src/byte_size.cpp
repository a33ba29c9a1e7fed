#include "tessera/trainer/byte_size.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "tessera/core/error.h"
#include "tessera/core/text.h"

namespace tessera {
namespace {

constexpr std::string_view kPrefixes = "kmgtp";

/// Bytes of a unit such as "", "b", "k", "kib" or "kb" (lower case); 0 if there is no such unit.
double unit_bytes(std::string_view unit) {
  if (unit.empty() || unit == "b") return 1.0;
  const std::size_t power = kPrefixes.find(unit.front());
  if (power == std::string_view::npos) return 0.0;
  const std::string_view rest = unit.substr(1);
  const auto exponent = static_cast<double>(power + 1);
  if (rest.empty() || rest == "ib") return std::pow(1024.0, exponent);
  if (rest == "b") return std::pow(1000.0, exponent);
  return 0.0;
}

}  // namespace

std::int64_t parse_bytes(std::string_view text) {
  double value = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  std::string unit = lowercase(text.substr(static_cast<std::size_t>(end - text.data())));
  std::erase(unit, ' ');
  const double scale = unit_bytes(unit);
  const double bytes = value * scale;
  require(error == std::errc() && scale > 0.0 && bytes >= 0.0 && bytes < 9.2e18, ErrorCode::kConfig,
          "'", text, "' is not a number of bytes; write it like 1500000, 512MiB or 4GiB");
  return static_cast<std::int64_t>(bytes);
}

}  // namespace tessera
