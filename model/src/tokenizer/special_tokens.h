#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace tessera::data {

/// Where a folder names its special tokens; the first that has one holds.
inline constexpr std::array kSpecialTokenFiles{"tokenizer_config.json", "special_tokens_map.json"};
inline constexpr std::int64_t kMostBytesOfTokenizerConfig = std::int64_t{16} << 20;

/// "bos_token", "eos_token", ... of such a file: each a text, or an object with its "content".
std::map<std::string, std::string> special_tokens_in(const nlohmann::json& config);

}  // namespace tessera::data
