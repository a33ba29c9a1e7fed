#pragma once

#include "questionnaire/prompter.h"
#include "terminal.h"

namespace tessera::cli {

/// Menus on a terminal: arrow keys or j and k move, a number goes to its choice, Enter takes it.
/// Lines are typed as always, with the terminal's own editing.
class MenuPrompter : public LinePrompter {
 public:
  MenuPrompter(int input, std::ostream& out, const Terminal& terminal)
      : LinePrompter(input, out), terminal_(terminal) {}
  std::size_t choose(const std::string& question, const std::vector<std::string>& choices,
                     std::size_t fallback) override;

 private:
  void draw(const std::vector<std::string>& choices, std::size_t chosen);

  Terminal terminal_;
};

}  // namespace tessera::cli
