#include <algorithm>
#include <filesystem>

#include "accelerate.h"
#include "key_table.h"
#include "tessera/core/text.h"
#include "variables.h"

extern char** environ;  // POSIX leaves its declaration to the program

namespace tessera {
namespace {

using compat::AutoValues;
using compat::kDeepSpeedFile;
using compat::Node;
using compat::SectionSwitch;
using compat::text_of;
using compat::Told;
using compat::Variable;

constexpr const char* kPath = kEnvironmentPath;
constexpr const char* kUseMegatron = "ACCELERATE_USE_MEGATRON_LM";
constexpr const char* kMicroBatches = "MEGATRON_LM_NUM_MICRO_BATCHES";
constexpr const char* kAccumulation = "ACCELERATE_GRADIENT_ACCUMULATION_STEPS";
constexpr const char* kBackend = "ACCELERATE_DYNAMO_BACKEND";
constexpr const char* kDynamo = "dynamo_config";
constexpr const char* kUseDeepSpeed = "ACCELERATE_USE_DEEPSPEED";

Node scalar(const std::string& text) { return {.scalar = text, .text = text}; }

bool is_off(const std::string& text) {
  return text.empty() || compat::as_flag(scalar(text)) == false;
}

Node& child(Node& map, const std::string& key) {
  for (Node::Member& member : map.members) {
    if (member.key == key) return member.value;
  }
  map.members.push_back({.key = key, .value = {.kind = Node::Kind::kMap}});
  return map.members.back().value;
}

/// The values of the variables, sorted into those that a file could have and the rest.
class Exported {
 public:
  Exported(const Environment& environment, const std::vector<std::string>& names,
           ConfigTranslation& translation)
      : environment_(environment), translation_(translation) {
    for (const SectionSwitch& section : compat::section_switches()) {
      if (section.type != nullptr && is_on(section.variable)) {
        root_.members.push_back({.key = "distributed_type", .value = scalar(section.type)});
        break;
      }
    }
    for (const Variable& variable : compat::variables()) {
      const std::string text = text_of(environment_, variable.name.c_str());
      if (!text.empty()) take(variable, text);
    }
    for (const std::string& name : names) {
      if (compat::is_accelerates(name) && !is_known(name)) take_unknown(name);
    }
  }

  /// The file that the launcher may have read.
  const Node& as_file() const { return root_; }
  /// The values for "auto" in a file of DeepSpeed's.
  const AutoValues& autos() const { return autos_; }

 private:
  bool is_on(const char* name) const { return !is_off(text_of(environment_, name)); }

  void take(const Variable& variable, const std::string& text) {
    if (variable.is_switch && is_off(text)) return;
    if (variable.name == kAccumulation && is_on(kUseMegatron) &&
        !text_of(environment_, kMicroBatches).empty()) {
      ignore(variable.name, concat(kMicroBatches, " decides"), Told::kByRun);
    } else if (variable.name == kAccumulation && !is_on(kUseDeepSpeed)) {
      accumulate(text);
    } else if (fills_in(variable)) {
      fill_in(variable, text);
    } else if (variable.section == kDynamo && !is_on(kBackend)) {
      const bool asks = !is_off(text) && lowercase(text) != "default";
      if (asks) ignore(variable.name, concat(kBackend, " is NO"), Told::kByRun);
    } else if (!counts(variable)) {
      const char* off = switch_of(variable.section)->variable;
      ignore(variable.name, concat(off, " is not true"), compat::told_if(!is_off(text)));
    } else {
      Node& map = variable.section.empty() ? root_ : child(root_, variable.section);
      map.members.push_back({.key = variable.key, .value = scalar(text)});
    }
  }

  bool counts(const Variable& variable) const {
    const SectionSwitch* section = switch_of(variable.section);
    return section == nullptr || is_on(section->variable);
  }

  /// With a file of DeepSpeed's own, what others say is only what its "auto" stands for.
  bool fills_in(const Variable& variable) const {
    const bool file_decides =
        is_on(kUseDeepSpeed) && !text_of(environment_, kDeepSpeedFile).empty();
    const bool about_it = variable.section == "deepspeed_config" || variable.section.empty();
    return file_decides && about_it && variable.name != kDeepSpeedFile && !variable.is_switch;
  }

  void fill_in(const Variable& variable, const std::string& text) {
    const Node value = scalar(text);
    const std::string& key = variable.key;
    if (key == "zero_stage") autos_.stage = compat::as_integer(value);
    if (key == "gradient_accumulation_steps") autos_.accumulate = compat::as_integer(value);
    if (key == "gradient_clipping") autos_.clip_norm = compat::as_number(value);
    if (key == "mixed_precision") autos_.precision = lowercase(text);
    if (key == "offload_optimizer_device") autos_.offload_optimizer = text;
    if (key == "offload_optimizer_nvme_path") autos_.offload_path = text;
    if (key == "offload_param_device") autos_.offload_parameters = text;
    if (key == "offload_param_nvme_path") autos_.parameters_path = text;
    if (key == "zero3_save_16bit_model") autos_.whole_model = compat::as_flag(value);
    check_filled_in(variable, text);
    translation_.entries.push_back(
        {.key = variable.name,
         .file = kPath,
         .value = text,
         .outcome = KeyOutcome::kHonoured,
         .note = concat(kDeepSpeedFile, " decides; this is what its \"auto\" stands for")});
  }

  void check_filled_in(const Variable& variable, const std::string& text) const {
    constexpr std::int64_t kLastStage = 3;
    const std::string& key = variable.key;
    const bool is_auto = lowercase(text) == "auto";
    const auto check = [&](bool good, const char* what) {
      require(good, ErrorCode::kConfig, kPath, ": ", variable.name, ": '", text, "' is not ", what);
    };
    if (key == "zero_stage") {
      check(autos_.stage && *autos_.stage >= 0 && *autos_.stage <= kLastStage,
            "a stage; use 0, 1, 2 or 3");
    }
    if (key == "offload_optimizer_device" || key == "offload_param_device") {
      const std::string device = lowercase(text);
      check(device == "none" || device == "cpu" || device == "nvme",
            "a device to offload to; use none, cpu or nvme");
    }
    if (key == "gradient_accumulation_steps" && !is_auto) {
      check(autos_.accumulate && *autos_.accumulate >= 1,
            "a number of steps; it must be at least 1");
    }
    if (key == "gradient_clipping" && !is_auto) {
      check(autos_.clip_norm && *autos_.clip_norm >= 0, "a norm; it must be at least 0");
    }
  }

  static const SectionSwitch* switch_of(const std::string& section) {
    for (const SectionSwitch& known : compat::section_switches()) {
      if (section == known.section) return &known;
    }
    return nullptr;
  }

  /// Accelerate takes it with every type; only a file has it in DeepSpeed's section alone.
  void accumulate(const std::string& text) {
    const auto steps = compat::as_integer(scalar(text));
    require(steps && *steps >= 1, ErrorCode::kConfig, kPath, ": ", kAccumulation, ": '", text,
            "' is not a number of steps; it must be at least 1");
    translation_.entries.push_back({.key = kAccumulation,
                                    .file = kPath,
                                    .value = text,
                                    .outcome = KeyOutcome::kHonoured,
                                    .settings = {{"accumulate", *steps}}});
  }

  static bool is_known(const std::string& name) {
    const auto has_name = [&](const auto& known) { return known.name == name; };
    const auto is_switch = [&](const SectionSwitch& known) { return known.variable == name; };
    return std::ranges::any_of(compat::variables(), has_name) ||
           std::ranges::any_of(compat::section_switches(), is_switch);
  }

  void take_unknown(const std::string& name) {
    if (is_off(text_of(environment_, name.c_str()))) return;
    const auto& harmless = compat::variables_without_effect();
    if (std::ranges::find(harmless, name) != harmless.end()) {
      return ignore(name, "says nothing of how to train", Told::kByExplain);
    }
    const std::string nearest = nearest_variable(name);
    require(nearest.empty(), ErrorCode::kConfig, kPath, ": ", name,
            ": unknown variable; did you mean '", nearest, "'? Unset it, or spell it so");
    ignore(name, "is no variable that is known here", Told::kByRun);
  }

  /// The nearest of the variables that count and begin alike; the beginnings would make all of them
  /// near.
  std::string nearest_variable(const std::string& name) const {
    const auto rest = [](const std::string& whole) { return whole.substr(whole.find('_') + 1); };
    const std::string beginning = name.substr(0, name.size() - rest(name).size());
    std::vector<std::string> rests;
    for (const Variable& variable : compat::variables()) {
      if (variable.name.starts_with(beginning) && counts(variable)) {
        rests.push_back(rest(variable.name));
      }
    }
    const std::string nearest = compat::near_word(rest(name), rests);
    return nearest.empty() ? "" : beginning + nearest;
  }

  void ignore(const std::string& name, const std::string& note, Told told) {
    translation_.entries.push_back({.key = name,
                                    .file = kPath,
                                    .value = text_of(environment_, name.c_str()),
                                    .outcome = KeyOutcome::kNoEffect,
                                    .note = "has no effect: " + note,
                                    .announce = told == Told::kByRun});
  }

  const Environment& environment_;
  ConfigTranslation& translation_;
  Node root_{.kind = Node::Kind::kMap};
  AutoValues autos_;
};

/// Puts the variable's name where a file would have a path, so that messages name it.
void name_variables(ConfigTranslation& translation) {
  for (ConfigEntry& entry : translation.entries) {
    if (entry.file != kPath || entry.value.is_null()) continue;
    for (const Variable& variable : compat::variables()) {
      if (entry.key == variable.path()) entry.file = concat(kPath, ": ", variable.name);
    }
    for (const SectionSwitch& section : compat::section_switches()) {
      const bool type = entry.key == "distributed_type" && section.type != nullptr;
      if (type && entry.value == section.type) entry.file = concat(kPath, ": ", section.variable);
    }
    if (entry.key == kAccumulation) entry.file = concat(kPath, ": ", kAccumulation);
  }
}

}  // namespace

std::vector<std::string> environment_names() {
  std::vector<std::string> names;
  for (char** variable = environ; variable != nullptr && *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    names.emplace_back(text.substr(0, text.find('=')));
  }
  return names;
}

std::optional<ConfigTranslation> translate_environment(const Environment& environment,
                                                       const std::vector<std::string>& names,
                                                       const TranslationContext& context) {
  ConfigTranslation translation{.path = kPath, .dialect = ConfigDialect::kAccelerate};
  const Exported exported(environment, names, translation);
  if (!exported.as_file().members.empty()) {
    const compat::Document document{.path = kPath, .root = exported.as_file()};
    compat::translate_accelerate(document, compat::AccelerateSource::kEnvironment, exported.autos(),
                                 context, translation);
  }
  if (translation.entries.empty()) return std::nullopt;
  name_variables(translation);
  compat::check_complete(translation);
  return translation;
}

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
