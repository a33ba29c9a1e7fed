#include "embedding/given_config.h"

#include <algorithm>
#include <cctype>
#include <set>
#include <utility>

#include "commands.h"
#include "settings/gpt_settings.h"
#include "settings/option_names.h"
#include "tessera/cli/given_settings.h"
#include "tessera/core/error.h"
#include "tessera/core/nearest_name.h"
#include "tessera/trainer/trainer_settings.h"

namespace tessera::cli {
namespace {

/// Settings of `tessera train` for what it prints, and for what follows its last step.
constexpr std::string_view kOfTheProgram[]{
    "sample_tokens", "prompt",          "temperature", "top_k",   "top_p", "export",
    "export_dtype",  "state_dict_type", "grace",       "verbose", "quiet"};

bool is_of_the_program(std::string_view name) {
  return std::ranges::find(kOfTheProgram, name) != std::ranges::end(kOfTheProgram);
}

bool is_setting(std::string_view name) {
  static const auto all = joined({train_settings(), plan_settings(), simulate_settings()});
  return find_setting(all, name) != nullptr;
}

bool is_left_out(std::int32_t target) { return target == -1 || target == -100; }

}  // namespace

std::vector<Setting> settings_of(SettingsOf program) {
  std::vector<Setting> table;
  switch (program) {
    case SettingsOf::kSession:
      table = train_settings();
      std::erase_if(table, [](const Setting& setting) { return is_of_the_program(setting.name); });
      return table;
    case SettingsOf::kPlan:
      table = plan_settings();
      break;
    case SettingsOf::kSimulation:
      table = simulate_settings();
      break;
    case SettingsOf::kMemoryEstimate:
      return joined({model_settings(), trainer_settings()});
  }
  // How the answer is printed.
  constexpr std::string_view kOfThePrinted[]{"format", "after",        "actions", "sums",
                                             "sweep",  "show_profile", "check"};
  std::erase_if(table, [&](const Setting& setting) {
    return std::ranges::find(kOfThePrinted, setting.name) != std::ranges::end(kOfThePrinted);
  });
  return table;
}

Config config_of(SettingsOf program, const GivenSettings& given, const LaunchFacts& launch,
                 const std::vector<Setting>& others) {
  const std::vector<Setting> table = settings_of(program);
  std::vector<Setting> all = table;
  for (const Setting& other : others) {
    if (find_setting(table, other.name) == nullptr) all.push_back(other);
  }
  Config config(std::move(all));
  for (const auto& [name, text] : given.values) {
    if (find_setting(table, name) == nullptr) {
      require(
          !is_of_the_program(name), ErrorCode::kConfig, "'", name,
          "' is for what the program tessera prints or writes after its last step; leave it out");
      const std::string nearest = nearest_name(name, names_of(table));
      fail(ErrorCode::kConfig, "unknown setting '", name, "'",
           nearest.empty() ? "" : concat("; did you mean '", nearest, "'?"));
    }
    config.set_text(name, text);
  }
  config.set_launch(launch);
  if (!given.config_file.empty()) config.read_file(given.config_file);
  return config;
}

std::string with_keywords(std::string_view message) {
  const std::string text = with_flags(message);
  std::string result;
  for (std::size_t at = 0; at < text.size();) {
    const bool begins = text.compare(at, 2, "--") == 0 && (at == 0 || text[at - 1] != '-');
    std::size_t end = at + 2;
    while (begins && end < text.size() &&
           (std::isalnum(static_cast<unsigned char>(text[end])) != 0 || text[end] == '-' ||
            text[end] == '_')) {
      ++end;
    }
    const std::string name = begins ? setting_name(text.substr(at, end - at)) : "";
    if (begins && is_setting(name)) {
      result += name;
      at = end;
    } else {
      result += text[at++];
    }
  }
  return result;
}

void TokenSource::give(std::int64_t first, GivenTokens tokens) {
  require(tokens.inputs.size() == tokens.targets.size() &&
              tokens.inputs.size() % static_cast<std::size_t>(sequence_length()) == 0,
          ErrorCode::kConfig, "the data have ", tokens.inputs.size(), " inputs and ",
          tokens.targets.size(), " targets; a sample has ", sequence_length(), " of each");
  const auto check = [&](const std::vector<std::int32_t>& values, const char* what,
                         bool is_target) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::int32_t value = values[i];
      if ((value >= 0 && value < vocab_size_) || (is_target && is_left_out(value))) continue;
      fail(ErrorCode::kConfig, "sample ", first + static_cast<std::int64_t>(i) / sequence_length(),
           " of the data has the ", what, " ", value, " at position ",
           static_cast<std::int64_t>(i) % sequence_length(), ", and the model's vocabulary has ",
           vocab_size_, " tokens",
           is_target ? "; -100 stands for a target that does not count" : "");
    }
  };
  check(tokens.inputs, "input", false);
  check(tokens.targets, "target", true);
  first_ = first;
  tokens_ = std::move(tokens);
}

std::int64_t TokenSource::samples() const {
  return static_cast<std::int64_t>(tokens_.inputs.size()) / sequence_length();
}

std::int64_t TokenSource::fill(std::int64_t first, std::int64_t micro_batch, TensorView inputs,
                               TensorView targets) const {
  require(first >= first_ && first + micro_batch <= first_ + samples(), ErrorCode::kInvalidArgument,
          "samples [", first, ", ", first + micro_batch, ") are asked for, and [", first_, ", ",
          first_ + samples(), ") were given");
  const std::int64_t begin = (first - first_) * sequence_length();
  const std::int64_t numel = micro_batch * sequence_length();
  std::copy_n(tokens_.inputs.begin() + begin, numel, inputs.as<std::int32_t>());
  const std::int32_t* const given = tokens_.targets.data() + begin;
  std::copy_n(given, numel, targets.as<std::int32_t>());
  return numel - std::count_if(given, given + numel, is_left_out);
}

}  // namespace tessera::cli
