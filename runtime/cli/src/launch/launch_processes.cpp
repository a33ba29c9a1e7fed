#include "launch/launch_command.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <set>

#include "commands.h"
#include "output/terminal.h"
#include "run/interrupt.h"
#include "tessera/compat/launcher.h"
#include "tessera/core/error.h"
#include "tessera/core/host_name.h"

namespace tessera::cli {
namespace {

using Clock = std::chrono::steady_clock;

/// After a failure, how long the others may take to say what they know of it, and if they have not
/// met yet: they would look for each other until --timeout.
constexpr std::chrono::milliseconds kFirstGrace{2000};
constexpr std::chrono::milliseconds kGraceOfUnmet{500};
constexpr std::chrono::seconds kLastGrace{3};

std::string ranks_of(const ProcessOptions& options) {
  if (options.first_rank == options.last_rank) return concat("rank ", options.first_rank);
  return concat("ranks ", options.first_rank, "-", options.last_rank);
}

/// One output of a process: takes what comes through a pipe and prints whole lines, but no error
/// twice: what is wrong with a run, each of its processes says. `errors`: those of all so far.
class LinePrinter {
 public:
  LinePrinter(int pipe, std::FILE* to, const std::string& ranks, std::set<std::string>& errors)
      : pipe_(pipe),
        to_(to),
        errors_(&errors),
        terminal_(inspect(to)),
        prefix_(paint(terminal_, Colour::kDim, "[" + ranks + "]") + " ") {}
  int pipe() const { return pipe_; }

  /// False at the end of the output.
  bool forward() {
    std::array<char, 65536> buffer;
    const ssize_t n = read(pipe_, buffer.data(), buffer.size());
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (n > 0) text_.append(buffer.data(), static_cast<std::size_t>(n));
    for (std::size_t end = 0; (end = text_.find('\n')) != std::string::npos;) {
      print(text_.substr(0, end));
      text_.erase(0, end + 1);
    }
    std::fflush(to_);
    if (n > 0) return true;
    if (!text_.empty()) print(text_);
    std::fflush(to_);
    close(pipe_);
    pipe_ = -1;
    return false;
  }

 private:
  void print(const std::string& line) {
    if (line.starts_with("tessera: error: ") && !errors_->insert(line).second) return;
    // A progress bar of process 0 may stand on the line; it draws itself again.
    const std::string whole = (terminal_.interactive ? "\r\033[K" : "") + prefix_ + line + "\n";
    std::fwrite(whole.data(), 1, whole.size(), to_);
  }

  int pipe_;
  std::FILE* to_;
  std::set<std::string>* errors_;
  Terminal terminal_;
  std::string prefix_;
  std::string text_;
};

/// A running process.
struct Child {
  ProcessOptions options;
  pid_t pid = 0;
  bool running = false;
};

struct Failure {
  std::string what;
  int exit_code = 1;
};

class Launch {
 public:
  Launch(std::vector<ProcessOptions> processes, std::chrono::seconds grace) : grace_(grace) {
    for (ProcessOptions& options : processes) {
      children_.push_back({.options = std::move(options)});
    }
  }

  LaunchResult run() {
    for (Child& child : children_) {
      if (interrupt_.signal() != 0) break;  // to start many takes a while
      start(child);
    }
    for (const Child& child : children_) {
      if (child.options.listener >= 0) close(child.options.listener);
    }
    while (!printers_.empty() || any_running()) {
      forward_output();
      reap();
      pass_on_signal();
      pass_on_quit();
      escalate();
    }
    if (!failure_ && passed_on_ == 0 && std::ferror(stdout) != 0) {
      failure_ = {"standard output cannot be written", kExitRunTime};
    }
    if (failure_.has_value()) {
      say(paint(inspect(stderr), Colour::kRed, "error:") + " " + failure_->what);
      return {.exit_code = failure_->exit_code, .was_asked = passed_on_ != 0, .killed = killed_};
    }
    if (cut_short_) say("stopped, as asked");
    if (passed_on_ == 0) return {};
    return {.exit_code = ended_well_ ? kExitGood : kExitSignal + passed_on_, .was_asked = true};
  }

 private:
  static void say(const std::string& text) {
    const std::string line = "tessera: " + text + "\n";
    std::fwrite(line.data(), 1, line.size(), stderr);
  }

  bool any_running() const {
    return std::any_of(children_.begin(), children_.end(),
                       [](const Child& child) { return child.running; });
  }

  void start(Child& child) {
    const ProcessOptions& options = child.options;
    std::vector<std::string> arguments{"tessera"};
    arguments.insert(arguments.end(), options.arguments.begin(), options.arguments.end());
    Variables all = options.variables;
    if (options.listener >= 0) all[kListener] = std::to_string(options.listener);
    all[kMeeting] = std::to_string(meeting_);
    const int terminal = options.process == 0 ? terminal_for_bar() : -1;
    if (terminal >= 0) all[kBarTerminal] = std::to_string(terminal);
    for (char** v = environ; *v != nullptr; ++v) {
      const std::string text = *v;
      if (is_of_other_launcher(text)) continue;
      all.emplace(text.substr(0, text.find('=')), text.substr(text.find('=') + 1));
    }
    std::vector<std::string> assignments;
    for (const auto& [name, value] : all) assignments.push_back(name + "=" + value);
    const auto pointers = [](std::vector<std::string>& texts) {
      std::vector<char*> list;
      for (std::string& text : texts) list.push_back(text.data());
      list.push_back(nullptr);
      return list;
    };
    std::vector<char*> argv = pointers(arguments);
    std::vector<char*> variables = pointers(assignments);

    std::array<int, 2> out = make_pipe();
    std::array<int, 2> err = make_pipe();
    const pid_t parent = getpid();
    sigset_t all_signals;
    sigset_t before;
    sigfillset(&all_signals);
    sigprocmask(SIG_BLOCK, &all_signals, &before);
    child.pid = fork();
    if (child.pid == 0) {
      become_child(argv.data(), variables.data(), out[1], err[1],
                   {terminal, options.listener, meeting_}, parent);
    }
    sigprocmask(SIG_SETMASK, &before, nullptr);
    require(child.pid > 0, ErrorCode::kUnavailable, "cannot start process ", options.process, ": ",
            std::strerror(errno), "; start fewer --processes, or raise 'ulimit -u'");
    child.running = true;
    if (terminal >= 0) close(terminal);
    close(out[1]);
    printers_.emplace_back(out[0], stdout, ranks_of(options), errors_);
    close(err[1]);
    printers_.emplace_back(err[0], stderr, ranks_of(options), errors_);
  }

  /// The terminal under a number that no process uses for anything else; -1 if there is none.
  static int terminal_for_bar() {
    constexpr int kFirst = 10;
    return inspect(stderr).interactive ? fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, kFirst) : -1;
  }

  static std::array<int, 2> make_pipe() {
    std::array<int, 2> ends{};
    const int failed = pipe2(ends.data(), O_CLOEXEC);
    require(failed == 0, ErrorCode::kUnavailable, "cannot make a pipe: ", std::strerror(errno),
            "; start fewer --processes, or raise 'ulimit -n'");
    return ends;
  }

  void forward_output() {
    std::vector<pollfd> polled;
    for (const LinePrinter& printer : printers_) {
      polled.push_back({.fd = printer.pipe(), .events = POLLIN, .revents = 0});
    }
    poll(polled.data(), polled.size(), 50);
    for (std::size_t i = 0; i < polled.size(); ++i) {
      if (polled[i].revents != 0) printers_[i].forward();
    }
    std::erase_if(printers_, [](const LinePrinter& printer) { return printer.pipe() < 0; });
  }

  void reap() {
    std::vector<std::pair<const Child*, int>> ended;  // with their statuses
    int status = 0;
    for (pid_t pid = 0; (pid = waitpid(-1, &status, WNOHANG | WUNTRACED)) > 0;) {
      const auto child = std::find_if(children_.begin(), children_.end(),
                                      [&](const Child& c) { return c.pid == pid; });
      if (child == children_.end()) continue;
      if (WIFSTOPPED(status)) {
        say(concat(describe(*child), " was stopped by signal ", WSTOPSIG(status), " (",
                   strsignal(WSTOPSIG(status)), "); the run waits for it (kill -CONT ", pid, ")"));
        continue;
      }
      child->running = false;
      ended.emplace_back(&*child, status);
    }
    // The system gives them in the order of their start. Who was killed has not failed for want of
    // another one.
    std::stable_partition(ended.begin(), ended.end(),
                          [](const auto& end) { return WIFSIGNALED(end.second); });
    for (const auto& [child, how] : ended) note_end(*child, how);
  }

  std::string describe(const Child& child) const {
    return concat(ranks_of(child.options), " (process ", child.options.process, ", pid ", child.pid,
                  " on ", host_name(), ")");
  }

  /// Keeps the first failure: the others follow from it. After a signal that was passed on nothing
  /// is one: a process that had no handler yet dies of it, and its neighbours miss it.
  void note_end(const Child& child, int status) {
    ended_well_ = ended_well_ && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (WIFSIGNALED(status) && signals_ == 0) ++killed_;
    if (failure_.has_value()) return;
    eventfd_t count = 0;
    met_ = met_ || children_.size() == 1 || eventfd_read(meeting_, &count) == 0;
    if (WIFSIGNALED(status)) {
      const int signal = WTERMSIG(status);
      cut_short_ = cut_short_ || (passed_on_ != 0 && signal == passed_on_);
      const bool by_us = signals_ > 1 && (signal == SIGTERM || signal == SIGKILL);
      if (by_us || cut_short_) return;
      failure_ = {concat(describe(child), " was killed by signal ", signal, " (", strsignal(signal),
                         ")", met_ ? "" : " before the processes had met"),
                  kExitSignal + signal};
    } else if (WEXITSTATUS(status) != 0) {
      const int code = WEXITSTATUS(status);
      if (cut_short_ || (passed_on_ != 0 && code == kExitSignal + passed_on_)) return;
      // It has ended in good order on a signal that somebody has sent to it alone.
      const int signal = code - kExitSignal;
      const bool signalled = signal == SIGINT || signal == SIGTERM || signal == SIGUSR1;
      const std::string how =
          signalled ? concat(" was ended by signal ", signal, " (", strsignal(signal), ")")
                    : concat(" failed with exit code ", code, "; its message is above");
      failure_ = {describe(child) + how, code};
    } else {
      return;
    }
    const auto first =
        std::min<std::chrono::milliseconds>(met_ ? kFirstGrace : kGraceOfUnmet, grace_);
    if (!deadline_) deadline_ = Clock::now() + first;
  }

  void pass_on_signal() {
    const int signal = interrupt_.signal();
    if (signal == 0 || passed_on_ != 0) return;
    passed_on_ = signal;
    for (const Child& child : children_) {
      if (child.running) signal_one_of_all(child.pid, signal);
    }
    signals_ = std::max(signals_, 1);
    deadline_ = Clock::now() + grace_;
  }

  /// They say what they do, and go on.
  void pass_on_quit() {
    if (quits_passed_on_ == quits_.count()) return;
    quits_passed_on_ = quits_.count();
    for (const Child& child : children_) {
      if (child.running) kill(child.pid, SIGQUIT);
    }
  }

  /// After a failure SIGTERM: it ends whoever still looks for the others, and a run that trains
  /// takes it for Ctrl-C. `grace_` after either, SIGTERM again, which then kills; at last SIGKILL.
  /// A stopped process takes SIGTERM when it continues.
  void escalate() {
    if (!deadline_ || Clock::now() < *deadline_ || !any_running()) return;
    if (passed_on_ != 0 && signals_ < 2) {
      say(concat("not all processes ended within --grace ", grace_.count(), " s of SIG",
                 sigabbrev_np(passed_on_),
                 "; the others are killed, and a checkpoint that they had not "
                 "saved yet is lost; raise --grace"));
    }
    for (const Child& child : children_) {
      if (!child.running) continue;
      kill(-child.pid, signals_ < 2 ? SIGTERM : SIGKILL);
      kill(-child.pid, SIGCONT);
    }
    deadline_ = Clock::now() + (++signals_ < 2 ? grace_ : kLastGrace);
  }

  const InterruptGuard interrupt_;
  const QuitGuard quits_;
  int quits_passed_on_ = 0;
  const int meeting_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);  // see kMeeting
  const std::chrono::seconds grace_;
  std::vector<Child> children_;
  std::set<std::string> errors_;  // of the processes
  std::vector<LinePrinter> printers_;
  std::optional<Failure> failure_;
  std::optional<Clock::time_point> deadline_;  // when those that still run get the next signal
  int passed_on_ = 0;
  bool met_ = false;        // a process has met all others
  bool ended_well_ = true;  // all processes that have ended
  int killed_ = 0;          // see LaunchResult
  bool cut_short_ = false;  // a process has died of the signal that was passed on
  int signals_ = 0;         // that all have been sent
};

}  // namespace

void become_child(char** argv, char** variables, int out, int err,
                  std::initializer_list<int> inherited, pid_t parent) {
  // The parent's handlers would swallow what comes before exec.
  sigset_t all_signals;
  sigfillset(&all_signals);
  signal(SIGINT, SIG_DFL);
  signal(SIGTERM, SIG_DFL);
  signal(SIGUSR1, SIG_DFL);
  signal(SIGQUIT, SIG_IGN);  // until the process has an answer to it
  sigprocmask(SIG_UNBLOCK, &all_signals, nullptr);
  setpgid(0, 0);  // Ctrl-C reaches the parent alone, which passes it on
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);
  const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
  dup2(null, STDIN_FILENO);
  dup2(out, STDOUT_FILENO);
  dup2(err, STDERR_FILENO);
  for (const int file : inherited) {
    if (file >= 0) fcntl(file, F_SETFD, 0);
  }
  execve("/proc/self/exe", argv, variables);
  _exit(127);
}

LaunchResult run_processes(std::vector<ProcessOptions> processes, std::chrono::seconds grace) {
  return Launch(std::move(processes), grace).run();
}

}  // namespace tessera::cli
