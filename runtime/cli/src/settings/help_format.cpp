#include "settings/help_format.h"

#include <sstream>

#include "output/terminal.h"

namespace tessera::cli {
namespace {

constexpr int kTextColumn = 28;

/// A name, and beside it or below it what it means.
std::string row(const std::string& name, const std::string& text) {
  const std::string margin(kTextColumn, ' ');
  std::string lines = "  " + name;
  if (text.empty()) return lines + "\n";
  std::istringstream paragraphs(text);
  bool beside = columns_of(lines) + 2 <= kTextColumn;
  if (beside) lines.resize(kTextColumn, ' ');
  for (std::string paragraph; std::getline(paragraphs, paragraph); beside = false) {
    const auto blanks = static_cast<int>(paragraph.find_first_not_of(' '));
    if (!beside) lines += "\n" + margin;
    // A line's rest stands deeper than its beginning, if that was not at the margin.
    const int deeper = blanks > 0 ? blanks + 2 : 0;
    std::istringstream parts(wrapped(paragraph, kColumns - kTextColumn, deeper));
    bool first = true;
    for (std::string part; std::getline(parts, part); first = false) {
      lines += (first ? "" : "\n" + margin) + part;
    }
  }
  return lines + "\n";
}

}  // namespace

std::string HelpFormat::make_option(const CLI::Option* option, bool is_positional) const {
  return row(make_option_name(option, is_positional) + make_option_opts(option),
             make_option_desc(option));
}

std::string HelpFormat::make_subcommand(const CLI::App* command) const {
  return row(command->get_name(), command->get_description());
}

std::string HelpFormat::make_description(const CLI::App* command) const {
  return wrapped(command->get_description(), kColumns) + "\n";
}

std::string HelpFormat::make_footer(const CLI::App* command) const {
  const std::string footer = command->get_footer();
  return footer.empty() ? "" : wrapped(footer, kColumns) + "\n";
}

}  // namespace tessera::cli
