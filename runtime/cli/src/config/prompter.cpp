#include "config/prompter.h"

#include <unistd.h>

#include <cerrno>
#include <iostream>
#include <optional>

#include "output/terminal.h"
#include "tessera/core/error.h"
#include "tessera/core/text.h"
#include "tessera/trainer/setting.h"

namespace tessera::cli {
namespace {

/// Nobody types as much, and a file that is no list of answers must not fill the memory.
constexpr std::size_t kLongestAnswer = 4096;
/// Wrong answers from a pipe may go on forever (`yes | tessera config`).
constexpr int kMostWrongAnswers = 20;

/// Reads byte by byte: whatever follows the line is left for who reads next, in another way.
/// Nothing if the input ended before a line began.
std::optional<std::string> read_line(int input) {
  std::string line;
  for (;;) {
    require(line.size() <= kLongestAnswer, ErrorCode::kConfig, "an answer is longer than ",
            kLongestAnswer, " characters; nothing was written");
    char c = 0;
    const ssize_t count = read(input, &c, 1);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return line.empty() ? std::nullopt : std::optional(line);
    if (c == '\n') return line;
    line += c;
  }
}

/// A name counts before an index: the choices may be numbers.
std::optional<std::size_t> find_choice(const std::string& answer,
                                       const std::vector<std::string>& choices) {
  for (std::size_t i = 0; i < choices.size(); ++i) {
    if (lowercase(answer) == lowercase(choices[i])) return i;
  }
  for (std::size_t i = 0; i < choices.size(); ++i) {
    if (answer == std::to_string(i)) return i;
  }
  return std::nullopt;
}

/// Without its default.
std::string bare(const std::string& question) {
  std::string text = question.substr(0, question.find(" ["));
  text.erase(text.find_last_not_of(" :") + 1);
  return text;
}

}  // namespace

LinePrompter::LinePrompter(int input, std::ostream& out)
    : input_(input), out_(out), repeat_(isatty(input) == 0) {}

void LinePrompter::say(const std::string& text) { out_ << text << "\n"; }

std::size_t LinePrompter::choose(const std::string& question,
                                 const std::vector<std::string>& choices, std::size_t fallback) {
  say(question);
  for (std::size_t i = 0; i < choices.size(); ++i) {
    say("  " + std::to_string(i) + ". " + choices[i]);
  }
  for (;;) {
    const std::string answer =
        read_answer("Please enter a choice index or name [" + choices[fallback] + "]: ", question);
    if (answer.empty()) return fallback;
    if (const auto found = find_choice(answer, choices)) return *found;
    say("'" + answer + "' is not among the choices; enter one of " + tessera::joined(choices) +
        ", or an index from 0 to " + std::to_string(choices.size() - 1));
  }
}

std::string LinePrompter::type(const std::string& question) {
  return read_answer(question, question);
}

std::string LinePrompter::read_answer(const std::string& prompt, const std::string& question) {
  out_ << prompt << std::flush;
  const auto line = read_line(input_);
  if (!line) {
    out_ << "\n";
    ended(question);
  }
  if (repeat_) out_ << trimmed(*line) << "\n";
  times_asked_ = question == asked_ ? times_asked_ + 1 : 1;
  asked_ = question;
  if (repeat_ && times_asked_ > kMostWrongAnswers) give_up(question);
  return trimmed(*line);
}

void LinePrompter::ended(const std::string& question) {
  fail(ErrorCode::kConfig, "the answers ended at '", bare(question),
       "'; nothing was written; 'tessera config default' asks nothing");
}

void LinePrompter::give_up(const std::string& question) {
  fail(ErrorCode::kConfig, "none of ", kMostWrongAnswers, " answers was right for '",
       bare(question), "'; nothing was written; 'tessera config default' asks nothing");
}

std::unique_ptr<Prompter> make_prompter() {
  if (inspect(stdin).interactive && inspect(stdout).interactive) {
    return std::make_unique<MenuPrompter>(STDIN_FILENO, std::cout, inspect(stdout));
  }
  return std::make_unique<LinePrompter>(STDIN_FILENO, std::cout);
}

}  // namespace tessera::cli
