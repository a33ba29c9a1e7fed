#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

namespace tessera::test {

struct ProgramResult {
  int exit_code = -1;  ///< 128 + signal if one killed it
  std::string out;
  std::string err;
};

/// What is in a file; nothing if it is not there, or is gone before it is read, as one in /proc of
/// a thread that ends.
inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  try {
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  } catch (const std::ios_base::failure&) {
    return {};
  }
}

/// Waits until `holds()`, or for five minutes, since other tests may have the cores; returns
/// whether it holds.
inline bool await(const std::function<bool()>& holds) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(5);
  while (!holds()) {
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

/// A folder of its own for each test.
class ProgramTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::path(::testing::TempDir()) /
              (std::string("tessera_cli_") + info->test_suite_name() + "_" + info->name() + "_" +
               std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
    setenv("TERM", "xterm", 1);  // not what the person or script that tests has
    unsetenv("NO_COLOR");
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  /// A port that the tests that run at the same time do not use.
  static std::string port_of_test() { return std::to_string(20000 + getpid() % 10000); }

  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name), std::ios::binary) << text;
    return path(name);
  }

  /// A text to train on that can be learned.
  std::string write_text() const {
    std::string text;
    while (text.size() < 6000) text += "the quick brown fox jumps over the lazy dog. ";
    return write("data.txt", text);
  }

  /// What the programs read that are run from now on.
  void give_input(const std::string& text) { input_ = write("stdin", text); }

  /// Runs tessera to its end. `while_running` gets its process id.
  ProgramResult run(std::vector<std::string> arguments,
                    const std::function<void(pid_t)>& while_running = {}) const {
    arguments.insert(arguments.begin(), TESSERA_PROGRAM);
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    const std::string out = path("stdout");
    const std::string err = path("stderr");
    constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC;
    posix_spawn_file_actions_addchdir_np(&actions, folder_.c_str());  // for what it leaves behind
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, input_.c_str(), O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, out.c_str(), kFlags, 0600);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, err.c_str(), kFlags, 0600);
    pid_t pid = 0;
    const int failed = posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    if (failed != 0) {
      ADD_FAILURE() << "cannot run " << argv[0] << ": error " << failed;
      return {};
    }
    if (while_running) while_running(pid);
    int status = 0;
    waitpid(pid, &status, 0);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), read_file(out),
            read_file(err)};
  }

  /// Trains a very small model for a moment.
  ProgramResult train(const std::vector<std::string>& more,
                      const std::function<void(pid_t)>& while_running = {}) const {
    std::vector<std::string> arguments{"train", "--layers",      "2",  "--heads",
                                       "2",     "--width",       "16", "--context-length",
                                       "16",    "--micro-batch", "2"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(arguments, while_running);
  }

  std::vector<nlohmann::json> read_log(const std::string& name) const {
    std::ifstream file(path(name));
    std::vector<nlohmann::json> lines;
    for (std::string line; std::getline(file, line);) {
      lines.push_back(nlohmann::json::parse(line));
    }
    return lines;
  }

 private:
  std::filesystem::path folder_;
  std::string input_ = "/dev/null";
};

}  // namespace tessera::test
