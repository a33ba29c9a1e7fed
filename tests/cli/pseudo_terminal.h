#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <string>
#include <system_error>
#include <vector>

namespace tessera::test {

/// A program that believes to run in a terminal, and the person before it.
class PseudoTerminal {
 public:
  explicit PseudoTerminal(std::vector<std::string> arguments, unsigned short columns = 80) {
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    winsize size{.ws_row = 24, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
    pid_ = forkpty(&terminal_, nullptr, nullptr, &size);
    if (pid_ == 0) {
      execv(argv[0], argv.data());
      _exit(127);
    }
    // Without a child there is nobody to wait for, and a signal to -1 goes to everybody.
    if (pid_ < 0) throw std::system_error(errno, std::generic_category(), "forkpty");
  }
  ~PseudoTerminal() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    if (terminal_ >= 0) close(terminal_);
  }
  PseudoTerminal(const PseudoTerminal&) = delete;
  PseudoTerminal& operator=(const PseudoTerminal&) = delete;

  /// Waits until `text` is shown behind what was waited for before; false after two minutes.
  bool shows(const std::string& text) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(2);
    for (;;) {
      const std::size_t found = shown_.find(text, seen_);
      if (found != std::string::npos) {
        seen_ = found + text.size();
        return true;
      }
      if (!receive() && closed_) return false;
      if (std::chrono::steady_clock::now() > deadline) return false;
    }
  }

  void type(const std::string& keys) {
    EXPECT_EQ(write(terminal_, keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
  }

  pid_t pid() const { return pid_; }
  void send(int signal) { EXPECT_EQ(kill(pid_, signal), 0); }

  /// True if lines are edited and shown as they are typed, as it is in a shell.
  bool is_as_before() const {
    termios mode{};
    EXPECT_EQ(tcgetattr(terminal_, &mode), 0);
    constexpr tcflag_t kUsual = ICANON | ECHO | ISIG;
    return (mode.c_lflag & kUsual) == kUsual;
  }

  /// Waits for the end: the exit code, or 128 + the signal that killed it.
  int exit_code() {
    while (receive() || !closed_) {
    }
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  const std::string& shown() const { return shown_; }

 private:
  /// True if something came within a second.
  bool receive() {
    constexpr int kPatienceMs = 1000;
    pollfd waiting{.fd = terminal_, .events = POLLIN, .revents = 0};
    if (poll(&waiting, 1, kPatienceMs) <= 0) return false;
    std::array<char, 4096> bytes{};
    const ssize_t count = read(terminal_, bytes.data(), bytes.size());
    if (count <= 0) {  // the other side was closed
      closed_ = true;
      return false;
    }
    shown_.append(bytes.data(), static_cast<std::size_t>(count));
    return true;
  }

  pid_t pid_ = -1;
  int terminal_ = -1;
  bool closed_ = false;
  std::string shown_;
  std::size_t seen_ = 0;
};

}  // namespace tessera::test
