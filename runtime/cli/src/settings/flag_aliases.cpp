
#include <CLI/CLI.hpp>

#include "commands.h"
#include "output/terminal.h"
#include "settings/command_line.h"
#include "tessera/core/error.h"

namespace tessera::cli {
namespace {

void add_alias(CLI::App& command, const Alias& alias, CLI::Option* ours) {
  const auto forward = [alias, ours](const CLI::results_t& given) {
    require(given.size() < 2, ErrorCode::kConfig, alias.theirs, " is given ", given.size(),
            " times; give it once");
    const bool bare = given.empty() || given.front().empty();
    require(!bare || alias.may_be_bare, ErrorCode::kConfig, alias.theirs, " needs a value");
    std::string text = bare ? "true" : given.front();
    try {
      if (alias.value != nullptr) text = alias.value(text);
    } catch (const Error& error) {
      fail(error.code(), alias.theirs, ": ", error.what());
    }
    if (ours->count() > 0) {
      require(ours->results().back() == text, ErrorCode::kConfig, alias.theirs, " is ", alias.ours,
              " here, which another flag gives otherwise; give one of them");
      return true;
    }
    ours->add_result(text);
    ours->run_callback();
    return true;
  };
  CLI::Option* option = command.add_option(std::string(alias.theirs), forward);
  // CLI11 could not say by name that the value of a hidden flag is missing.
  option->expected(0, 1);
  option->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)->group("");
}

}  // namespace

void accept_aliases(CLI::App& command) {
  for (const Alias& alias : aliases()) {
    if (command.get_option_no_throw(std::string(alias.theirs)) != nullptr) continue;
    CLI::Option* ours = command.get_option_no_throw(std::string(alias.ours));
    if (ours != nullptr) add_alias(command, alias, ours);
  }
}

void hand_on_flags(const CLI::App& launch, std::vector<std::string>& words,
                   std::vector<std::string>& launched) {
  if (launched.empty() || (launched.front() != "train" && launched.front() != "test")) return;
  CLI::App command;
  const auto settings =
      launched.front() == "train" ? add_train_flags(command) : add_self_test_flags(command);
  std::vector<std::string> kept;
  std::vector<std::string> handed;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string name = words[i].substr(0, words[i].find('='));
    const bool is_launchs = !name.starts_with('-') || launch.get_option_no_throw(name) != nullptr;
    const CLI::Option* theirs = is_launchs ? nullptr : command.get_option_no_throw(name);
    (theirs == nullptr ? kept : handed).push_back(words[i]);
    const bool has_value = theirs != nullptr && name == words[i] && i + 1 < words.size() &&
                           (theirs->get_expected_min() > 0 || !words[i + 1].starts_with('-'));
    if (has_value) handed.push_back(words[++i]);
  }
  for (const std::string& note : take_flags_without_effect(kept)) print_note(note);
  launched.insert(launched.begin() + 1, handed.begin(), handed.end());
  words = std::move(kept);
}

std::vector<std::string> shown_flags(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    if (!option->get_group().empty()) names.push_back(option->get_name());
  }
  return names;
}

}  // namespace tessera::cli
