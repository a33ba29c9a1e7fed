#pragma once

#include <cstddef>
#include <iosfwd>
#include <memory>
#include <string>
#include <vector>

#include "output/terminal.h"
#include "tessera/compat/questionnaire.h"

namespace tessera::cli {

using questionnaire::Interrupted;
using questionnaire::Prompter;
using questionnaire::WentBack;

/// Menus that arrow keys move through if standard input and output are terminals; else every answer
/// is a line, so that a script can give them.
std::unique_ptr<Prompter> make_prompter();

/// Answers are lines of the file `input`; the questions go to `out`. What is typed elsewhere than
/// at a terminal is repeated there, so that the output reads like a session.
class LinePrompter : public Prompter {
 public:
  LinePrompter(int input, std::ostream& out);
  void say(const std::string& text) override;
  std::size_t choose(const std::string& question, const std::vector<std::string>& choices,
                     std::size_t fallback) override;
  std::string type(const std::string& question) override;

 protected:
  int input() const { return input_; }
  std::ostream& out() { return out_; }
  /// Throws the Error of answers that ended at `question`.
  [[noreturn]] static void ended(const std::string& question);

 private:
  /// The answer to `question`, of which `prompt` is the last line.
  std::string read_answer(const std::string& prompt, const std::string& question);
  [[noreturn]] static void give_up(const std::string& question);

  int input_;
  std::ostream& out_;
  bool repeat_;
  std::string asked_;  ///< the last question
  int times_asked_ = 0;
};

/// A person at a terminal. Through menus arrow keys or j and k move, a number goes to its choice,
/// Enter takes it, Esc goes back. Lines are edited at their end. Texts are broken between words.
class MenuPrompter : public LinePrompter {
 public:
  MenuPrompter(int input, std::ostream& out, const Terminal& terminal)
      : LinePrompter(input, out), terminal_(terminal) {}
  bool is_person() const override { return true; }
  void say(const std::string& text) override;
  std::size_t choose(const std::string& question, const std::vector<std::string>& choices,
                     std::size_t fallback) override;
  std::string type(const std::string& question) override;

 private:
  void draw(const std::vector<std::string>& choices, std::size_t chosen);

  Terminal terminal_;
};

}  // namespace tessera::cli
