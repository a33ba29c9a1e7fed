#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tessera/trainer/setting.h"

namespace tessera::cli {

/// A part of what `tessera env` reports, for people and for programs.
struct ReportPart {
  std::vector<std::pair<std::string, std::string>> rows{};  ///< names and sentences, in order
  /// Numbers as numbers, memory in bytes, null for what is not there.
  nlohmann::ordered_json fields = nlohmann::ordered_json::object();
};

inline nlohmann::ordered_json or_null(const std::string& text) {
  return text.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(text);
}

/// Where 0 stands for not known.
template <typename Number>
nlohmann::ordered_json known_or_null(Number number) {
  return number == 0 ? nlohmann::ordered_json() : nlohmann::ordered_json(number);
}

/// "a, b", or "none".
inline std::string listed(const std::vector<std::string>& items, const char* separator = ", ") {
  return items.empty() ? "none" : tessera::joined(items, separator);
}

}  // namespace tessera::cli
