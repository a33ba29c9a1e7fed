#include "tessera/model/tokenizer_folder.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "strict_json.h"
#include "tokenizer/special_tokens.h"

namespace tessera {
namespace fs = std::filesystem;

std::string find_tokenizer(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return path;
  const fs::path file = fs::path(path) / "tokenizer.json";
  return fs::exists(file, error) ? file.string() : "";
}

std::string special_token_of(const std::string& folder, const std::string& name) {
  for (const char* const file_name : data::kSpecialTokenFiles) {
    const fs::path file = fs::path(folder) / file_name;
    std::error_code error;
    if (!fs::is_regular_file(file, error)) continue;
    const auto tokens = data::special_tokens_in(
        data::read_strict_json(file.string(), data::kMostBytesOfTokenizerConfig));
    if (const auto found = tokens.find(name); found != tokens.end()) return found->second;
  }
  return "";
}

namespace data {

std::map<std::string, std::string> special_tokens_in(const nlohmann::json& config) {
  std::map<std::string, std::string> tokens;
  if (!config.is_object()) return tokens;
  for (const char* const name : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token",
                                 "cls_token", "mask_token"}) {
    if (!config.contains(name)) continue;
    const nlohmann::json& token = config.at(name);
    const bool is_object = token.is_object() && token.contains("content");
    const nlohmann::json& content = is_object ? token.at("content") : token;
    if (content.is_string()) tokens.emplace(name, content.get<std::string>());
  }
  return tokens;
}

}  // namespace data
}  // namespace tessera
