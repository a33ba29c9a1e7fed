#include <algorithm>
#include <iostream>
#include <memory>
#include <tuple>
#include <vector>

#include "command_line.h"
#include "commands.h"
#include "gpt_settings.h"
#include "json_output.h"
#include "tessera/core/error.h"
#include "tessera/trainer/trainer_settings.h"

namespace tessera::cli {
namespace {

constexpr const char* kNotJudged = "not judged";

std::string in_words(const ConfigTranslation& translation) {
  std::string text =
      translation.path + ": settings of " + std::string(to_string(translation.dialect));
  if (!translation.recognised_by.empty()) text += ", told by '" + translation.recognised_by + "'";
  return text;
}

std::string show(const nlohmann::ordered_json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

/// "strategy = full_shard, replicas = 2", or what stands for it.
std::string meaning(const ConfigEntry& entry) {
  std::string text;
  if (!entry.outcome) return concat(kNotJudged, ": it depends on a key that is refused");
  for (const auto& [name, value] : entry.settings.items()) {
    text += (text.empty() ? "" : ", ") + name + " = " + show(value);
  }
  if (text.empty() && entry.outcome == KeyOutcome::kNoEffect) text = "no effect";
  if (entry.outcome == KeyOutcome::kRefused) text = "refused";
  if (entry.note.empty()) return text;
  return text.empty() ? entry.note : text + ": " + entry.note;
}

std::string outcome_of(const ConfigEntry& entry) {
  return entry.outcome ? std::string(to_string(*entry.outcome)) : kNotJudged;
}

/// In the order of the file; what is not in it last.
std::vector<ConfigEntry> sorted(const ConfigTranslation& translation) {
  std::vector<ConfigEntry> entries = translation.entries;
  const auto place = [&](const ConfigEntry& entry) {
    return std::tuple(entry.file.rfind(translation.path, 0) != 0, entry.file, entry.line == 0,
                      entry.line);
  };
  std::ranges::stable_sort(entries, {}, place);
  return entries;
}

void print_entries(std::ostream& out, const ConfigTranslation& translation) {
  for (const ConfigEntry& entry : sorted(translation)) {
    const bool absent = entry.outcome == KeyOutcome::kDerived ||
                        (entry.outcome == KeyOutcome::kRefused && entry.value.is_null());
    const bool section = entry.value.is_structured();
    out << "  " << entry.where() << "  " << entry.key
        << (absent    ? " (absent)"
            : section ? ""
                      : ": " + show(entry.value))
        << "\n      -> " << meaning(entry) << "\n";
  }
}

void print_differences(std::ostream& out, const ConfigTranslation& translation) {
  if (translation.dialect == ConfigDialect::kTessera) return;
  out << "\ndifferences from " << to_string(translation.dialect) << "\n";
  bool any = false;
  for (const ConfigEntry& entry : sorted(translation)) {
    const std::string text = !entry.difference.empty() ? entry.difference
                             : entry.announce          ? entry.note
                                                       : "";
    if (text.empty()) continue;
    out << "  " << entry.where() << "  " << entry.key << ": " << text << "\n";
    any = true;
  }
  if (!any) out << "  none\n";
}

nlohmann::ordered_json to_json(const ConfigEntry& entry) {
  nlohmann::ordered_json json{{"key", entry.key},
                              {"file", entry.file},
                              {"line", entry.line},
                              {"value", entry.value},
                              {"outcome", outcome_of(entry)},
                              {"settings", entry.settings},
                              {"note", entry.note},
                              {"difference", entry.difference},
                              {"announced", entry.announce}};
  return json;
}

nlohmann::ordered_json to_json(const ConfigTranslation& translation) {
  auto entries = nlohmann::ordered_json::array();
  for (const ConfigEntry& entry : sorted(translation)) entries.push_back(to_json(entry));
  return {{"path", translation.path},
          {"dialect", to_string(translation.dialect)},
          {"recognised_by", translation.recognised_by},
          {"entries", entries}};
}

nlohmann::ordered_json to_json(const Config& config) {
  auto files = nlohmann::ordered_json::array();
  for (const ConfigTranslation& file : config.translations()) files.push_back(to_json(file));
  auto settings = nlohmann::ordered_json::object();
  for (const auto& [name, value] : config.values().items()) {
    settings[name] = {{"value", value}, {"source", config.source(name)}};
  }
  return {{"kind", "explain"}, {"files", files}, {"settings", settings}};
}

/// What is asked of `tessera explain`.
struct ExplainRequest {
  std::string path{};
  bool json = false;
};

void print_keys(std::ostream& out, const ConfigTranslation& translation) {
  out << in_words(translation) << "\n";
  print_entries(out, translation);
  print_differences(out, translation);
}

/// Its keys, of which no settings follow.
void print_refused(std::ostream& out, const ConfigTranslation& translation, bool json) {
  if (!json) return print_keys(out, translation);
  const nlohmann::ordered_json object{
      {"kind", "explain"},
      {"files", nlohmann::ordered_json::array({to_json(translation)})},
      {"settings", nullptr}};
  write_json(out, object);
}

int run_explain(Config config, const ExplainRequest& request) {
  require(!config.translations().empty(), ErrorCode::kConfig,
          "nothing to explain: give the path of a config file");
  choose_gpt(config);
  const TrainerOptions options = trainer_options(config);
  const std::string note = strategy_note(options);
  if (!note.empty()) std::cerr << "note: " << note << "\n";
  set_effective(config, options);
  if (request.json) {
    write_json(std::cout, to_json(config));
    return kExitGood;
  }
  for (const ConfigTranslation& translation : config.translations()) {
    print_keys(std::cout, translation);
  }
  print_settings(std::cout, config);
  return kExitGood;
}

}  // namespace

void print_settings(std::ostream& out, const Config& config) {
  out << "\neffective settings\n";
  std::size_t name_width = 0;
  std::size_t value_width = 0;
  for (const auto& [name, value] : config.values().items()) {
    name_width = std::max(name_width, name.size());
    value_width = std::max(value_width, show(value).size());
  }
  for (const auto& [name, value] : config.values().items()) {
    const std::string shown = show(value) == "\n" ? "\\n" : show(value);
    out << "  " << name << std::string(name_width - name.size() + 2, ' ') << shown
        << std::string(value_width - std::min(value_width, shown.size()) + 2, ' ')
        << config.source(name) << "\n";
  }
}

Command add_explain(CLI::App& program) {
  const auto command = std::make_shared<SettingsCommand>(
      program, "explain", "Tell what a config file means here, key by key",
      joined({model_settings(), trainer_settings(), train_only_settings()}), plan_only_settings());
  const auto request = std::make_shared<ExplainRequest>();
  command->command().add_option("FILE", request->path,
                                "a config file of Tessera, Accelerate or DeepSpeed");
  command->command().add_flag("--json", request->json, "print one JSON object");
  return {&command->command(), [command, request] {
            try {
              return run_explain(command->config(std::cerr, kForAnyMachine, request->path),
                                 *request);
            } catch (const ConfigRefused& refused) {
              print_refused(std::cout, refused.translation(), request->json);
              throw;
            }
          }};
}

}  // namespace tessera::cli
