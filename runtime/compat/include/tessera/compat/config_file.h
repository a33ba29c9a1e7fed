#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/compat/config_sources.h"

namespace tessera {

namespace compat {
struct Document;
}

/// A value and who says it, for messages: "--nodes", or "x.yaml:3: num_machines".
template <typename T>
struct Stated {
  T value{};
  std::string name{};
};

/// The settings of an Accelerate file for its launcher, besides num_processes, which is our
/// `ranks`.
struct LauncherKeys {
  std::optional<Stated<int>> machines{};
  std::optional<Stated<int>> machine_rank{};
  std::optional<Stated<std::string>> address{};
  std::optional<Stated<int>> port{};
  std::optional<Stated<std::string>> gpu_ids{};
  /// Some are wrong, and absent here; ConfigFile::translate names them, with all else that is.
  bool refused = false;
};

/// A file of any dialect, YAML or JSON, which is read once: what it says of the launch decides how
/// the rest of it is to be understood.
class ConfigFile {
 public:
  /// Throws Error{kConfig} that names the file and the line if it cannot be read.
  explicit ConfigFile(const std::string& path);
  /// Reads a text at hand, which `path` names in messages.
  ConfigFile(const std::string& path, const std::string& text);

  const std::string& path() const;
  /// Nothing of a file that is not Accelerate's. `table`: all settings. Throws Error{kConfig} if
  /// the keys tell no dialect, or several.
  LauncherKeys launcher_keys(const std::vector<Setting>& table) const;
  /// In our terms. Throws ConfigRefused, which names the file, the line, the key and the remedy.
  ConfigTranslation translate(const TranslationContext& context) const;

 private:
  std::shared_ptr<const compat::Document> document_;  // shared: what it points to is private
};

/// A file as it stands, without a word on whether a run can use it.
struct ConfigContents {
  ConfigDialect dialect = ConfigDialect::kTessera;
  nlohmann::ordered_json values = nlohmann::ordered_json::object();
};

/// Reads a file of any dialect, YAML or JSON. `table`: all settings, to tell the dialect.
/// Throws Error{kConfig} that names the file and the line if it is neither, or of two dialects.
ConfigContents read_config(const std::string& path, const std::vector<Setting>& table);

/// A file's text. Throws Error{kConfig} if it is none of settings: a folder, a device, too long.
std::string read_config_text(const std::string& path);

/// A file that is accepted, made of one that is refused by the fewest changes.
struct FixedConfig {
  std::string text{};
  std::vector<std::string> changes{};  ///< "fsdp_config.fsdp_offload_params: true -> false"
  bool comments_lost = false;
};

/// Changes every key that is refused as its entry says. The file itself stays as it is.
/// Throws Error{kConfig} if it cannot be read, or what is wrong with it cannot be changed in it.
FixedConfig fix_config(const std::string& path, const TranslationContext& context);

/// The entries of a list with commas between them, without blanks around them.
std::vector<std::string> gpu_ids_of(const std::string& list);

/// The problem with a list of GPUs, which is empty, "all" or what CUDA_VISIBLE_DEVICES takes:
/// different numbers, or names such as GPU-4d2a. Empty if nothing is.
std::string problem_of_gpu_ids(const std::string& list);

}  // namespace tessera
