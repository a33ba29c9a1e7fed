#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/core/error.h"
#include "tessera/trainer/setting.h"

namespace tessera {

/// Whose keys a file has.
enum class ConfigDialect : std::uint8_t {
  kTessera,     ///< our settings
  kAccelerate,  ///< HuggingFace Accelerate's `accelerate config`
  kDeepSpeed,   ///< DeepSpeed's JSON
};
std::string_view to_string(ConfigDialect dialect);

/// How a key was dealt with.
enum class KeyOutcome : std::uint8_t {
  kHonoured,    ///< our settings say the same
  kTranslated,  ///< our settings come near it; the note tells the difference
  kNoEffect,    ///< nothing here depends on it; the note says why
  kDerived,     ///< not in the file: what its program takes if the key is absent
  kRefused,     ///< no run can have it; the note says why, and what to do
};
std::string_view to_string(KeyOutcome outcome);

/// One of the changes by which a file that is refused comes to be accepted: another value, another
/// name, or if there is neither, the key is left out.
struct ConfigChange {
  std::string key;  ///< as in ConfigEntry; with a value, it need not be there yet
  std::optional<nlohmann::ordered_json> value{};
  std::string name{};
};

/// A key of a file, its value and what it means here.
struct ConfigEntry {
  std::string key;   ///< "fsdp_config.fsdp_sharding_strategy"
  std::string file;  ///< the path as it was given, or "environment: " and a variable
  int line = 0;      ///< 0 if there is none: a variable, or a key that is absent
  nlohmann::ordered_json value{};
  std::optional<KeyOutcome> outcome{};  ///< none: not judged, because of a key that is refused
  nlohmann::ordered_json settings = nlohmann::ordered_json::object();  ///< ours, by name
  std::string note{};
  std::string difference{};  ///< what Accelerate or DeepSpeed does with it, if something else
  bool announce = false;     ///< a run prints the note and the difference
  std::vector<ConfigChange> changes{};  ///< kRefused: the nearest that is not; none: leave it out

  /// "configs/x.yaml:12", or "configs/x.yaml".
  std::string where() const;
};

/// The path of what an environment says.
inline constexpr const char* kEnvironmentPath = "environment";

/// A file or an environment in our terms.
struct ConfigTranslation {
  std::string path;  ///< as it was given, or kEnvironmentPath
  ConfigDialect dialect = ConfigDialect::kTessera;
  std::string recognised_by{};  ///< the key that told the dialect; empty if none had to
  std::string note{};           ///< on how the file was read
  std::vector<ConfigEntry> entries{};

  /// The lines that a run prints about it: translations, and the keys without effect.
  std::vector<std::string> announcements() const;
};

/// A file or an environment with keys that are refused: the text names all of them.
class ConfigRefused : public Error {
 public:
  /// `remedy`: behind the text, if there is another one than to change the keys.
  explicit ConfigRefused(ConfigTranslation translation, const std::string& remedy = "");
  /// How each of its keys was dealt with.
  const ConfigTranslation& translation() const { return *translation_; }

 private:
  std::shared_ptr<const ConfigTranslation> translation_;  // shared: exceptions are copied
};

inline constexpr const char* kOwnLauncher = "tessera launch";

/// The launcher that started the processes of a run, or will: it decides what a file says of
/// machines, and the number of ranks.
struct LaunchFacts {
  std::string launcher{};  ///< kOwnLauncher, "torchrun", ...; empty: one process has all ranks
  int machines = 0;        ///< 0: not known
  int ranks = 0;           ///< of all processes; 0: not known
};

/// The context of a translation.
struct TranslationContext {
  const std::vector<Setting>& table;  ///< all settings
  nlohmann::ordered_json overrides;   ///< those that the command line gives, by name
  LaunchFacts launch{};
};

/// A variable's value, or null: std::getenv, or a test's own.
using Environment = std::function<const char*(const char* name)>;

/// The names of all variables that this process has.
std::vector<std::string> environment_names();

/// The variables that Accelerate's launcher exports (ACCELERATE_MIXED_PRECISION,
/// FSDP_SHARDING_STRATEGY, ...), or nothing if it did not start us. `names`: of all variables;
/// those that begin as Accelerate's do and have no effect are told of. Throws Error{kConfig} that
/// names the variable and the key that a file would have.
std::optional<ConfigTranslation> translate_environment(const Environment& environment,
                                                       const std::vector<std::string>& names,
                                                       const TranslationContext& context);

/// The variables that Accelerate's launcher would export for its file, by name: what
/// translate_environment reads. Nothing for files of others. Sections that `distributed_type`
/// switches off are not exported.
std::map<std::string, std::string> exported_variables(const ConfigTranslation& file);

/// Where `accelerate config` puts its file: accelerate/default_config.yaml below $HF_HOME, else
/// $XDG_CACHE_HOME/huggingface, else ~/.cache/huggingface. Nothing if none of them is set.
std::optional<std::string> default_accelerate_path(const Environment& environment);

/// The file there, in YAML or else in JSON, if there is one.
std::optional<std::string> default_accelerate_config(const Environment& environment);

/// A name of a layer of our models in fsdp_transformer_layer_cls_to_wrap: that of transformers, for
/// its `models`, or one of here, for none.
struct BlockClass {
  const char* name;
  const char* models;
};
std::vector<BlockClass> block_classes();
std::vector<std::string> block_class_names();

}  // namespace tessera
