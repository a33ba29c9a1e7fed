#include "aliases.h"

#include <CLI/CLI.hpp>

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
  // Of a flag that is not shown CLI11 could not say by name that its value is missing.
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

std::vector<std::string> shown_flags(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    if (!option->get_group().empty()) names.push_back(option->get_name());
  }
  return names;
}

}  // namespace tessera::cli
