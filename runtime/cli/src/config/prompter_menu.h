#pragma once

#include "config/prompter.h"
#include "output/terminal.h"

namespace tessera::cli {

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
