#include "settings/command_line.h"

#include <cstdlib>
#include <memory>
#include <sstream>

#include "output/terminal.h"
#include "settings/option_names.h"
#include "tessera/core/error.h"

namespace tessera::cli {
namespace {

constexpr int kTextColumn = 28;

/// A name, and beside it or below it what it means.
std::string row(const std::string& name, const std::string& text) {
  const std::string margin(kTextColumn, ' ');
  std::string lines = "  " + name;
  if (text.empty()) return lines + "\n";
  std::istringstream paragraphs(text);
  bool beside = columns_of(lines) + 2 <= kTextColumn;
  if (beside) lines.resize(kTextColumn, ' ');
  for (std::string paragraph; std::getline(paragraphs, paragraph); beside = false) {
    const auto blanks = static_cast<int>(paragraph.find_first_not_of(' '));
    if (!beside) lines += "\n" + margin;
    // A line's rest stands deeper than its beginning, if that was not at the margin.
    const int deeper = blanks > 0 ? blanks + 2 : 0;
    std::istringstream parts(wrapped(paragraph, kColumns - kTextColumn, deeper));
    bool first = true;
    for (std::string part; std::getline(parts, part); first = false) {
      lines += (first ? "" : "\n" + margin) + part;
    }
  }
  return lines + "\n";
}

std::string default_text(const Setting& setting) {
  if (setting.fallback.is_null() || setting.type == SettingType::kFlag) return "";
  return setting.fallback == "\n" ? "a newline" : plain_text(setting.fallback);
}

/// Whether a flag may be given several times; the values are then joined by commas.
bool is_list(const Setting& setting) { return setting.name == "data"; }

}  // namespace

std::string type_name(const Setting& setting) {
  if (!setting.choices.empty()) {
    const std::string choices = tessera::joined(setting.choices, "|");
    constexpr std::size_t kMost = 68;  // beside a name; a help text has those that are longer
    return choices.size() <= kMost ? choices : "NAME";
  }
  switch (setting.type) {
    case SettingType::kInteger:
      return "N";
    case SettingType::kNumber:
      return "X";
    case SettingType::kFlag:
      // The default stands here: CLI11 would take a default_str for the value of a bare flag.
      return "[true|false]" + (setting.fallback.is_null() ? "" : "=" + setting.fallback.dump());
    case SettingType::kBytes:
      return "BYTES";
    case SettingType::kText:
      return "TEXT";
  }
  return "TEXT";
}

std::string HelpFormat::make_option(const CLI::Option* option, bool is_positional) const {
  return row(make_option_name(option, is_positional) + make_option_opts(option),
             make_option_desc(option));
}

std::string HelpFormat::make_subcommand(const CLI::App* command) const {
  return row(command->get_name(), command->get_description());
}

std::string HelpFormat::make_description(const CLI::App* command) const {
  return wrapped(command->get_description(), kColumns) + "\n";
}

std::string HelpFormat::make_footer(const CLI::App* command) const {
  const std::string footer = command->get_footer();
  return footer.empty() ? "" : wrapped(footer, kColumns) + "\n";
}

SettingsCommand::SettingsCommand(CLI::App& app, std::vector<Setting> flags,
                                 std::vector<Setting> keys_only)
    : command_(&app), flags_(std::move(flags)), keys_only_(std::move(keys_only)) {
  command_->formatter(std::make_shared<HelpFormat>());
  command_->allow_extras();  // so that an unknown flag gets a suggestion, see reject_extras
  command_->footer(
      "Every flag but --help, --config and --no-default-config is also a key of the config file: "
      "--micro-batch 4 is {\"micro_batch\": 4}.\nFlags win over the file.");
  command_
      ->add_option("--config", config_path_,
                   "a file of settings in JSON or YAML: ours, Accelerate's or DeepSpeed's")
      ->type_name("FILE");
  command_->add_flag("--no-default-config", no_default_config_,
                     "without --config, do not read the file that 'accelerate config' has written");
  for (const Setting& setting : flags_) add_flag(setting);
  accept_aliases(*command_);
}

void SettingsCommand::add_flag(const Setting& setting) {
  const bool is_flag = setting.type == SettingType::kFlag;
  // The values stay texts here: Config parses and checks them as it does those of a file.
  const auto store = [this, name = setting.name, is_flag,
                      joins = is_list(setting)](const CLI::results_t& results) {
    require(results.size() < 2 || joins, ErrorCode::kConfig, flag_name(name), " is given ",
            results.size(), " times; give it once");
    const bool bare = results.empty() || (is_flag && results.front().empty());
    texts_[name] = bare ? "true" : tessera::joined(results, ",");
    return true;
  };
  CLI::Option* option =
      command_->add_option(flag_name(setting.name), store, with_flags(setting.help));
  option->expected(is_flag ? 0 : 1, 1)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  option->type_name(type_name(setting))->group(setting.group);
  const std::string fallback = default_text(setting);
  if (!fallback.empty()) option->default_str(fallback);
}

void SettingsCommand::reject_extras() const {
  std::vector<std::string> extras = command_->remaining();
  take_flags_without_effect(extras);
  if (extras.empty()) return;
  const std::string& word = extras.front();
  std::vector<std::string> names{"--help", "--config", "--no-default-config"};
  for (const Setting& setting : flags_) names.push_back(flag_name(setting.name));
  require(word.rfind('-', 0) == 0, ErrorCode::kConfig, "unexpected argument '", word,
          "'; every setting is a flag, see 'tessera ", command_->get_name(), " --help'");
  for (const Setting& setting : keys_only_) {
    require(word.substr(0, word.find('=')) != flag_name(setting.name), ErrorCode::kConfig, "'",
            flag_name(setting.name), "' is a flag of 'tessera train', and without effect in ",
            "'tessera ", command_->get_name(), "'; leave it out");
  }
  refuse_flag(word, names);
}

Config SettingsCommand::flags() const {
  reject_extras();
  require(command_->count("--config") == 0 || !config_path_.empty(), ErrorCode::kConfig,
          "--config is empty; give the path of a file");
  std::vector<Setting> table = flags_;
  table.insert(table.end(), keys_only_.begin(), keys_only_.end());
  Config config(std::move(table));
  for (const auto& [name, text] : texts_) config.set_text(name, text);
  return config;
}

// The default file of Accelerate is taken because `accelerate launch` takes it: who has set up a
// machine once should not have to say so again. What it says counts less than any flag, as in every
// file, and it is never taken in silence, which would make two machines differ without a trace.
Config SettingsCommand::config(const LaunchFacts& launch, const std::string& path) const {
  Config config = flags();
  std::vector<std::string> extras = command_->remaining();
  for (const std::string& note : take_flags_without_effect(extras)) print_note(note);
  for (const Alias& alias : aliases()) {
    const CLI::Option* const given = command_->get_option_no_throw(std::string(alias.theirs));
    if (alias.note == nullptr || given == nullptr || given->count() == 0) continue;
    const std::string note = alias.note(given->results().front());
    if (!note.empty()) print_note(note);
  }
  config.set_launch(launch);
  const Environment environment = [](const char* name) -> const char* { return std::getenv(name); };
  config.read_environment(environment, environment_names());
  std::string file = config_path_.empty() ? path : config_path_;
  const bool by_default = file.empty() && !no_default_config_;
  if (by_default) {
    file = default_accelerate_config(environment).value_or("");
    if (!file.empty()) {
      print_note("settings of " + file +
                 ", Accelerate's default file, are used; --no-default-config turns that off");
    }
  }
  if (!file.empty()) {
    read_maybe_default(by_default, "--no-default-config", [&] { config.read_file(file); });
  }
  return config;
}

void print_announcements(const Config& config) {
  for (const std::string& line : config.announcements()) print_note(line);
}

}  // namespace tessera::cli
