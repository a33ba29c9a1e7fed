#include "config/prompter.h"

#include <poll.h>
#include <signal.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <ostream>

#include "tessera/core/error.h"
#include "tessera/core/text.h"

namespace tessera::cli {
namespace {

constexpr std::array kDeadly{SIGTERM, SIGHUP, SIGINT, SIGQUIT};

/// The terminal that a KeyMode has changed. A signal handler can reach nothing but a global.
struct ChangedTerminal {
  int file = -1;
  termios before{};
} changed;

extern "C" void restore_and_die(int signal) {
  tcsetattr(changed.file, TCSANOW, &changed.before);
  raise(signal);  // finds the default, as soon as this handler has returned
}

/// While it lives, keys arrive one by one and are not shown, and Ctrl-C is a key as well. The
/// terminal is as it was before when it ends, and when a signal kills the program.
class KeyMode {
 public:
  explicit KeyMode(int terminal) : terminal_(terminal) {
    require(tcgetattr(terminal_, &before_) == 0, ErrorCode::kIo, "cannot read the terminal's mode");
    changed = {terminal_, before_};
    catch_signals();
    termios keys = before_;
    keys.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO | ISIG);
    keys.c_cc[VMIN] = 1;
    keys.c_cc[VTIME] = 0;
    require(tcsetattr(terminal_, TCSADRAIN, &keys) == 0, ErrorCode::kIo,
            "cannot change the terminal's mode");
  }
  ~KeyMode() {
    tcsetattr(terminal_, TCSADRAIN, &before_);
    for (std::size_t i = 0; i < kDeadly.size(); ++i) sigaction(kDeadly[i], &actions_[i], nullptr);
  }
  KeyMode(const KeyMode&) = delete;
  KeyMode& operator=(const KeyMode&) = delete;

 private:
  void catch_signals() {
    struct sigaction action {};
    action.sa_handler = restore_and_die;
    action.sa_flags = SA_RESETHAND | SA_RESTART;
    sigemptyset(&action.sa_mask);
    sigaddset(&action.sa_mask, SIGTTOU);  // a program in the background may restore, too
    for (std::size_t i = 0; i < kDeadly.size(); ++i) {
      sigaction(kDeadly[i], nullptr, &actions_[i]);
      if (actions_[i].sa_handler != SIG_IGN) sigaction(kDeadly[i], &action, nullptr);
    }
  }

  int terminal_;
  termios before_{};
  std::array<struct sigaction, kDeadly.size()> actions_{};  // as they were
};

constexpr int kEndOfInput = -1;

int read_byte(int input) {
  for (;;) {
    unsigned char byte = 0;
    const ssize_t count = read(input, &byte, 1);
    if (count < 0 && errno == EINTR) continue;
    return count == 1 ? byte : kEndOfInput;
  }
}

enum class Key : std::uint8_t { kUp, kDown, kEnter, kDigit, kBack, kInterrupt, kEnd, kOther };

struct Press {
  Key key = Key::kOther;
  std::size_t digit = 0;
};

/// Reads the rest of an escape sequence: "[A" or "OA". The key itself goes back.
Press read_escape(int input) {
  constexpr int kPatienceMs = 50;  // a terminal sends a sequence at once
  pollfd waiting{.fd = input, .events = POLLIN, .revents = 0};
  if (poll(&waiting, 1, kPatienceMs) <= 0) return {Key::kBack};
  const int first = read_byte(input);
  if (first != '[' && first != 'O') return {};
  int last = read_byte(input);
  while ((last >= '0' && last <= '9') || last == ';') last = read_byte(input);
  if (last == 'A') return {Key::kUp};
  if (last == 'B') return {Key::kDown};
  return {};
}

constexpr int kCtrlC = 3;
constexpr int kCtrlD = 4;
constexpr int kCtrlU = 21;
constexpr int kEscape = 27;

Press read_press(int input) {
  const int byte = read_byte(input);
  if (byte >= '0' && byte <= '9') return {Key::kDigit, static_cast<std::size_t>(byte - '0')};
  switch (byte) {
    case kEndOfInput:
    case kCtrlD:
      return {Key::kEnd};
    case kCtrlC:
      return {Key::kInterrupt};
    case kEscape:
      return read_escape(input);
    case 'k':
      return {Key::kUp};
    case 'j':
      return {Key::kDown};
    case '\r':
    case '\n':
      return {Key::kEnter};
    default:
      return {};
  }
}

/// Whether a byte goes on with a character of UTF-8 that has begun.
bool goes_on(char byte) { return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80U; }

void erase_last_character(std::string& text) {
  while (!text.empty() && goes_on(text.back())) text.pop_back();
  if (!text.empty()) text.pop_back();
}

/// The end of `text` that fits into so many columns.
std::string end_of(std::string text, int columns) {
  while (columns_of(text) > columns || (!text.empty() && goes_on(text.front()))) text.erase(0, 1);
  return text;
}

}  // namespace

void MenuPrompter::say(const std::string& text) {
  LinePrompter::say(wrapped(text, terminal_.columns));
}

std::string MenuPrompter::type(const std::string& question) {
  constexpr int kRoom = 16;  // for an answer behind the question
  constexpr int kBackspace = 8;
  constexpr int kDelete = 127;
  const std::string prompt = wrapped(question, std::max(terminal_.columns - kRoom, kRoom));
  const int column =
      columns_of(prompt.substr(prompt.rfind('\n') + 1)) % std::max(terminal_.columns, 1);
  const KeyMode keys(input());
  out() << prompt << std::flush;
  std::string answer;
  for (;;) {
    const int byte = read_byte(input());
    if (byte == '\n' || byte == '\r') break;
    if (byte == kCtrlC) throw Interrupted{};
    if (byte == kEndOfInput || (byte == kCtrlD && answer.empty())) {
      out() << "\n";
      ended(question);
    }
    if (byte == kEscape) {
      if (read_escape(input()).key == Key::kBack) {  // arrow keys and the like go nowhere
        out() << "\n" << std::flush;
        throw WentBack{};
      }
    } else if (byte == kBackspace || byte == kDelete) {
      erase_last_character(answer);
    } else if (byte == kCtrlU) {
      answer.clear();
    } else if (byte >= ' ') {
      answer += static_cast<char>(byte);
    }
    out() << "\033[" << column + 1 << "G\033[K"
          << end_of(answer, std::max(terminal_.columns - column - 1, 1)) << std::flush;
  }
  out() << "\n" << std::flush;
  return trimmed(answer);
}

void MenuPrompter::draw(const std::vector<std::string>& choices, std::size_t chosen) {
  const auto width = static_cast<std::size_t>(terminal_.columns > 8 ? terminal_.columns - 1 : 8);
  for (std::size_t i = 0; i < choices.size(); ++i) {
    // A line that wrapped would be two for the terminal and one for us.
    const std::string line =
        ((i == chosen ? "> " : "  ") + std::to_string(i) + ". " + choices[i]).substr(0, width);
    out() << "\r\033[K" << (i == chosen ? paint(terminal_, Colour::kGreen, line) : line) << "\n";
  }
  out() << std::flush;
}

std::size_t MenuPrompter::choose(const std::string& question,
                                 const std::vector<std::string>& choices, std::size_t fallback) {
  const std::string back = "\033[" + std::to_string(choices.size()) + "A";
  say(question);
  const KeyMode keys(input());
  std::size_t chosen = fallback;
  draw(choices, chosen);
  for (;;) {
    const Press press = read_press(input());
    switch (press.key) {
      case Key::kUp:
        chosen = (chosen + choices.size() - 1) % choices.size();
        break;
      case Key::kDown:
        chosen = (chosen + 1) % choices.size();
        break;
      case Key::kDigit:
        if (press.digit < choices.size()) chosen = press.digit;
        break;
      case Key::kEnter:
        // The menu makes way for its answer.
        out() << back << "\r\033[J"
              << "  " << paint(terminal_, Colour::kGreen, choices[chosen]) << "\n"
              << std::flush;
        return chosen;
      case Key::kBack:
        out() << back << "\r\033[J" << std::flush;
        throw WentBack{};
      case Key::kInterrupt:
        throw Interrupted{};
      case Key::kEnd:
        ended(question);
      case Key::kOther:
        break;
    }
    out() << back;
    draw(choices, chosen);
  }
}

}  // namespace tessera::cli
