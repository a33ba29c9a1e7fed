#include <filesystem>

#include "variables.h"

namespace tessera {

std::optional<std::string> default_accelerate_path(const Environment& environment) {
  namespace fs = std::filesystem;
  const std::string hugging_face = compat::text_of(environment, "HF_HOME");
  const std::string cache = compat::text_of(environment, "XDG_CACHE_HOME");
  const std::string home = compat::text_of(environment, "HOME");
  fs::path folder;
  if (!hugging_face.empty()) {
    folder = hugging_face;
  } else if (!cache.empty()) {
    folder = fs::path(cache) / "huggingface";
  } else if (!home.empty()) {
    folder = fs::path(home) / ".cache" / "huggingface";
  } else {
    return std::nullopt;
  }
  return (folder / "accelerate" / "default_config.yaml").string();
}

std::optional<std::string> default_accelerate_config(const Environment& environment) {
  const auto yaml = default_accelerate_path(environment);
  if (!yaml) return std::nullopt;
  const auto json = std::filesystem::path(*yaml).replace_extension(".json").string();
  for (const std::string& path : {*yaml, json}) {  // in Accelerate's order
    std::error_code error;
    if (std::filesystem::is_regular_file(path, error)) return path;
  }
  return std::nullopt;
}

}  // namespace tessera
