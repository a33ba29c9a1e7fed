#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "cli/program.h"

namespace tessera::test {

/// Variables of the environment, gone again at the end of the scope.
class ScopedVariables {
 public:
  using Variable = std::pair<const char*, std::string>;
  explicit ScopedVariables(std::initializer_list<Variable> variables) {
    for (const auto& [name, value] : variables) set(name, value);
  }
  ~ScopedVariables() {
    for (const std::string& name : names_) unsetenv(name.c_str());
  }
  ScopedVariables(const ScopedVariables&) = delete;
  ScopedVariables& operator=(const ScopedVariables&) = delete;
  void set(const std::string& name, const std::string& value) {
    setenv(name.c_str(), value.c_str(), 1);
    names_.push_back(name);
  }

 private:
  std::vector<std::string> names_;
};

/// The processes that `parent` has started, in that order.
inline std::vector<pid_t> children_of(pid_t parent) {
  std::istringstream list(read_file("/proc/" + std::to_string(parent) + "/task/" +
                                    std::to_string(parent) + "/children"));
  return {std::istream_iterator<pid_t>(list), {}};
}

/// Runs of several processes.
class LaunchTest : public ProgramTest {
 protected:
  void SetUp() override {
    ProgramTest::SetUp();
    setenv("HF_HOME", path("hf").c_str(), 1);  // no file of the person who runs the test
  }
  void TearDown() override {
    unsetenv("HF_HOME");
    ProgramTest::TearDown();
  }

  /// The arguments of a very small training.
  static std::vector<std::string> small_training() {
    return {"train", "--layers",         "2",  "--heads",       "2", "--width",
            "16",    "--context-length", "16", "--micro-batch", "2"};
  }

  /// `launcher` before the arguments of a very small training.
  ProgramResult launch(std::vector<std::string> launcher, const std::vector<std::string>& more,
                       const std::function<void(pid_t)>& while_running = {}) const {
    launcher.insert(launcher.begin(), "launch");
    launcher.emplace_back("--");
    for (const std::string& word : small_training()) launcher.push_back(word);
    launcher.insert(launcher.end(), more.begin(), more.end());
    return run(launcher, while_running);
  }

  /// The shell's line that runs the program at `program`.
  static std::string in_shell(const std::vector<std::string>& arguments,
                              const std::string& program = TESSERA_PROGRAM) {
    std::string line = "'" + program + "'";
    for (const std::string& argument : arguments) line += " '" + argument + "'";
    return line;
  }

  /// The numbers of a log, without times and without what says how the run was started.
  std::vector<nlohmann::json> numbers(const std::string& name) const {
    std::vector<nlohmann::json> lines = read_log(name);
    EXPECT_GE(lines.size(), 3U) << name;
    if (!lines.empty()) lines.erase(lines.begin());
    for (nlohmann::json& line : lines) {
      for (const char* key : {"seconds", "tokens_per_second", "positions_per_second", "mfu",
                              "matmul_flops_per_second", "exposed_seconds",
                              "exposed_seconds_per_step", "communication_seconds_per_step"}) {
        line.erase(key);
      }
    }
    return lines;
  }

  static std::string error_of(const ProgramResult& result) {
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_EQ(result.err.rfind("tessera: error: ", 0), 0U) << result.err;
    return result.err;
  }
};

}  // namespace tessera::test
