#include "self_test/self_test.h"

#include <iostream>

#include "output/terminal.h"
#include "settings/option_names.h"

namespace tessera::cli {

namespace {
constexpr int kIndent = 6;  // behind "  ok  "
}

bool CheckList::check(const std::string& name, const std::function<std::string()>& test) {
  const Terminal terminal = inspect(stdout);
  bool good = true;
  std::string line;
  try {
    line = "  " + paint(terminal, Colour::kGreen, "ok") + "  " + name + ": " + test();
  } catch (const std::exception& error) {
    good = false;
    if (failures_++ == 0) first_failure_ = name + ": " + with_flags(error.what());
    line = "  " + paint(terminal, Colour::kRed, "FAILED") + "  " + name + ": " + error.what();
  }
  if (!silent_) std::cout << for_reader(terminal, line, kIndent) << "\n" << std::flush;
  return good;
}

void CheckList::skip(const std::string& name, const std::string& reason) const {
  if (silent_) return;
  print_line(stdout, "  --  " + name + ": " + reason, kIndent);
}

}  // namespace tessera::cli
