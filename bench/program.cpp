#include "program.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <type_traits>

#include "tessera/core/error.h"

namespace tessera::bench {
namespace {

CLI::Validator above_zero() {
  return CLI::Validator(
      [](const std::string& text) {
        return std::strtod(text.c_str(), nullptr) > 0.0 ? "" : "must be above 0, got " + text;
      },
      "POSITIVE");
}

void restrict(CLI::Option& option, const Takes& takes) {
  if (takes.size) option.transform(CLI::AsSizeValue(false).description("SIZE"));
  if (takes.at_most > 0) {
    option.check(CLI::Range(1, takes.at_most));
  } else if (takes.positive) {
    option.check(above_zero());
  }
  if (!takes.words.empty()) option.check(CLI::IsMember(takes.words));
  if (!takes.type.empty()) option.type_name(takes.type);
}

}  // namespace

struct Program::State {
  CLI::App app;
};

Program::Program(const std::string& name, const std::string& description)
    : state_(std::make_unique<State>()) {
  state_->app.name(name);
  state_->app.description(description);
  state_->app.option_defaults()->always_capture_default();
}

Program::~Program() = default;

void Program::option(const std::string& flags, Variable variable, const std::string& help,
                     const Takes& takes) {
  std::visit(
      [&](auto* value) {
        using Value = std::remove_pointer_t<decltype(value)>;
        if constexpr (std::is_same_v<Value, bool>) {
          state_->app.add_flag(flags, *value, help);
        } else {
          CLI::Option* const option = state_->app.add_option(flags, *value, help);
          if constexpr (std::is_same_v<Value, std::vector<std::int64_t>>) option->delimiter(',');
          restrict(*option, takes);
        }
      },
      variable);
}

void Program::footer(const std::string& text) { state_->app.footer(text); }

int Program::run(int argc, char** argv, const std::function<void()>& work) {
  const std::string name = state_->app.get_name();
  try {
    state_->app.parse(argc, argv);
  } catch (const CLI::ParseError& stop) {
    return state_->app.exit(stop) == 0 ? 0 : 2;  // --help is a stop, too
  }
  try {
    work();
    return 0;
  } catch (const Error& error) {
    std::fprintf(stderr, "%s: %s\n", name.c_str(), error.what());
    return error.code() == ErrorCode::kConfig ? 2 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", name.c_str(), error.what());
    return 1;
  }
}

}  // namespace tessera::bench
