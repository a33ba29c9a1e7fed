#include "tessera/model/companion_files.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "tessera/core/error.h"
#include "tessera/core/input_file.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr const char* kModelConfig = "config.json";
/// The files of a vocabulary: a tokenizer has some of them, and those of another do not fit to it.
constexpr std::array kVocabularyFiles{"tokenizer.json",    "vocab.json",      "merges.txt",
                                      "added_tokens.json", "tokenizer.model", "tekken.json"};
constexpr std::array kOtherTokenizerFiles{"tokenizer_config.json", "special_tokens_map.json",
                                          "chat_template.jinja", "chat_template.json"};
/// The folder of chat templates that are asked for by name, a file each.
constexpr const char* kMoreTemplates = "additional_chat_templates";
constexpr std::array kModelFiles{kModelConfig, "generation_config.json"};
constexpr std::array kDtypeKeys{"dtype", "torch_dtype"};  // of versions 5 and 4

std::string bytes_of_file(const fs::path& path) {
  const InputFile file(path.string());
  std::string bytes(static_cast<std::size_t>(file.size()), '\0');
  file.read(0, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

bool is_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

template <typename Names>
void add_files(CompanionFiles& files, const fs::path& folder, const Names& names) {
  for (const char* const name : names) {
    if (is_file(folder / name)) files.push_back({name, bytes_of_file(folder / name)});
  }
}

/// The files in folder/`within` whose names end so, in order.
void add_all(CompanionFiles& files, const fs::path& folder, const fs::path& within,
             std::string_view extension) {
  std::error_code error;
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(folder / within, error)) {
    if (entry.path().extension() == extension && is_file(entry.path())) {
      found.push_back(entry.path());
    }
  }
  std::ranges::sort(found);
  for (const fs::path& path : found) {
    files.push_back({(within / path.filename()).generic_string(), bytes_of_file(path)});
  }
}

void add_tokenizer(CompanionFiles& files, const fs::path& folder) {
  add_files(files, folder, kVocabularyFiles);
  add_files(files, folder, kOtherTokenizerFiles);
  add_all(files, folder, kMoreTemplates, ".jinja");
}

const char* name_of(DType dtype) {
  if (dtype == DType::kBFloat16) return "bfloat16";
  return dtype == DType::kFloat16 ? "float16" : "float32";
}

/// config.json, which may be of anybody; discarded if it is not what it should be.
ordered_json config_of(const CompanionFiles& files) {
  const std::string* const text = find_file(files, kModelConfig);
  ordered_json config =
      text == nullptr ? ordered_json() : ordered_json::parse(*text, nullptr, false);
  return config.is_object() ? config : ordered_json::object();
}

}  // namespace

CompanionFiles companion_files_of(const std::string& folder) {
  CompanionFiles files;
  add_files(files, folder, kModelFiles);
  add_tokenizer(files, folder);
  add_all(files, folder, "", ".py");  // code that config.json may name in `auto_map`
  return files;
}

CompanionFiles tokenizer_files_of(const std::string& file) {
  const fs::path path(file), folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  CompanionFiles files;
  add_tokenizer(files, folder);
  set_file(files, kVocabularyFiles.front(), bytes_of_file(path));
  return files;
}

CompanionFiles tokenizer_files_in(CompanionFiles files) {
  const auto has = [](const auto& names, const std::string& name) {
    return std::ranges::find(names, name) != names.end();
  };
  std::erase_if(files, [&](const NamedText& file) {
    return !has(kVocabularyFiles, file.name) && !has(kOtherTokenizerFiles, file.name) &&
           !file.name.starts_with(concat(kMoreTemplates, "/"));
  });
  return files;
}

void replace_tokenizer(CompanionFiles& files, const CompanionFiles& tokenizer) {
  std::erase_if(files, [](const NamedText& file) {
    return std::ranges::find(kVocabularyFiles, file.name) != kVocabularyFiles.end();
  });
  for (const NamedText& file : tokenizer) set_file(files, file.name, file.value);
}

const std::string* find_file(const CompanionFiles& files, std::string_view name) {
  const auto found = std::ranges::find(files, name, &NamedText::name);
  return found == files.end() ? nullptr : &found->value;
}

void set_file(CompanionFiles& files, const std::string& name, std::string bytes) {
  const auto found = std::ranges::find(files, name, &NamedText::name);
  if (found == files.end()) {
    files.push_back({name, std::move(bytes)});
  } else {
    found->value = std::move(bytes);
  }
}

std::optional<DType> named_dtype(const CompanionFiles& files) {
  const ordered_json config = config_of(files);
  for (const char* const key : kDtypeKeys) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      if (config.contains(key) && config.at(key) == name_of(dtype)) return dtype;
    }
  }
  return std::nullopt;
}

void name_dtype(CompanionFiles& files, DType dtype, NewKey key) {
  ordered_json config = config_of(files);
  const ordered_json before = config;
  if (config.empty()) return;
  bool is_named = false;
  for (const char* const name : kDtypeKeys) {
    if (!config.contains(name)) continue;
    config[name] = name_of(dtype);
    is_named = true;
  }
  if (!is_named && key == NewKey::kAdded) config[kDtypeKeys.front()] = name_of(dtype);
  if (config != before) set_file(files, kModelConfig, config.dump(2) + "\n");
}

}  // namespace tessera
