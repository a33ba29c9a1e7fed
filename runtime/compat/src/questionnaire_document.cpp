#include "tessera/compat/questionnaire.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <vector>

#include "document.h"
#include "tessera/core/text.h"

namespace tessera::questionnaire {
namespace {

using nlohmann::json;

/// Words that YAML 1.1, which Accelerate's reader speaks, takes for something else than text.
bool is_reserved(std::string text) {
  constexpr std::array kWords{"y", "n", "yes", "no", "on", "off", "true", "false", "null"};
  text = lowercase(text);
  return std::ranges::find(kWords, text) != kWords.end();
}

/// True if the text means itself without quotes in every version of YAML.
bool is_plain(const std::string& text) {
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  const auto inner = [&](char c) {
    return letter(c) || (c >= '0' && c <= '9') ||
           std::string_view("_./,-").find(c) != std::string_view::npos;
  };
  return !text.empty() && (letter(text.front()) || text.front() == '/') &&
         std::ranges::all_of(text, inner) && !is_reserved(text);
}

void emit(YAML::Emitter& out, const nlohmann::ordered_json& value) {
  if (value.is_object()) {
    out << YAML::BeginMap;
    for (const auto& [key, member] : value.items()) {
      out << YAML::Key << key << YAML::Value;
      emit(out, member);
    }
    out << YAML::EndMap;
  } else if (value.is_array()) {
    out << YAML::Flow << YAML::BeginSeq;
    for (const auto& item : value) emit(out, item);
    out << YAML::EndSeq;
  } else if (value.is_string()) {
    const std::string text = value;
    if (!is_plain(text)) out << YAML::SingleQuoted;
    out << text;
  } else {
    out << value.dump();  // 1.0 stays 1.0
  }
}

void add_sections(const Answers& answers, json& document) {
  if (answer_or(answers, kUseFsdp, false) == json(true)) {
    json& fsdp = document["fsdp_config"];
    fsdp.emplace("fsdp_offload_params", false);
    // Whoever loads efficiently has nothing on the other ranks, which must then be sent to them.
    if (fsdp["fsdp_version"] == json(1)) fsdp.emplace("fsdp_sync_module_states", true);
  }
  if (answer_or(answers, kUseDeepSpeed, false) == json(true)) {
    json& deepspeed = document["deepspeed_config"];
    if (!deepspeed.contains("deepspeed_config_file")) {
      deepspeed.emplace("offload_optimizer_device", "none");
      deepspeed.emplace("offload_param_device", "none");
    }
    deepspeed.emplace("zero3_init_flag", false);
    // The one launcher that needs no host file.
    if (document["num_machines"] != json(1)) {
      deepspeed["deepspeed_multinode_launcher"] = "standard";
    }
  }
}

}  // namespace

json answer_or(const Answers& answers, std::string_view key, json otherwise) {
  const auto found = answers.find(key);
  return found == answers.end() ? otherwise : found->second;
}

void fill_defaults(json& document) {
  const json defaults{{"compute_environment", "LOCAL_MACHINE"},
                      {"debug", false},
                      {"enable_cpu_affinity", false},
                      {"machine_rank", 0},
                      {"main_training_function", "main"},
                      {"num_machines", 1},
                      {"num_processes", 1},
                      {"use_cpu", false}};
  for (const auto& [key, value] : defaults.items()) document.emplace(key, value);
  const json deepspeed = document.value("deepspeed_config", json::object());
  // A DeepSpeed file says it; twice is an error of Accelerate.
  if (!deepspeed.is_object() || !deepspeed.contains("deepspeed_config_file")) {
    document.emplace("mixed_precision", "no");
  }
}

json config_document(const Answers& answers) {
  json document = json::object();
  const json machine = answer_or(answers, kMachineType, "NO");
  document["distributed_type"] = machine;
  if (answer_or(answers, kUseFsdp, false) == json(true)) document["distributed_type"] = "FSDP";
  if (answer_or(answers, kUseDeepSpeed, false) == json(true)) {
    document["distributed_type"] = "DEEPSPEED";
  }
  document["use_cpu"] = machine == json("MULTI_CPU");
  for (const auto& [key, value] : answers) {
    const std::size_t point = key.find('.');
    const std::string section = point == std::string::npos ? "" : key.substr(0, point);
    if (section == "ask") continue;
    if (section.empty()) {
      document[key] = value;
    } else {
      document[section][key.substr(point + 1)] = value;
    }
  }
  fill_defaults(document);
  add_sections(answers, document);
  return document;
}

std::string config_text(const nlohmann::ordered_json& document, const std::string& path) {
  if (path.ends_with(".json")) return document.dump(2) + "\n";
  YAML::Emitter out;
  emit(out, document);
  return std::string(out.c_str()) + "\n";
}

std::optional<std::string> text_with(const std::string& text, const json& more) {
  const std::string longer =
      text + (text.empty() || text.ends_with('\n') ? "" : "\n") + config_text(more, "");
  // Whether the keys have landed beside the others is for a reader of YAML to say.
  try {
    const std::vector<YAML::Node> before = YAML::LoadAll(text);
    const std::vector<YAML::Node> after = YAML::LoadAll(longer);
    const bool landed = before.size() == 1 && after.size() == 1 && after.front().IsMap() &&
                        after.front().size() == before.front().size() + more.size();
    return landed ? std::optional(longer) : std::nullopt;
  } catch (const YAML::Exception&) {
    return std::nullopt;
  }
}

}  // namespace tessera::questionnaire
