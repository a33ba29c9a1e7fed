#include "output/terminal.h"
#include "settings/option_names.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <iostream>

namespace tessera::cli {

Terminal inspect(std::FILE* stream) {
  Terminal terminal;
  const int fd = fileno(stream);
  const char* kind = std::getenv("TERM");
  terminal.interactive = isatty(fd) == 1 && !(kind != nullptr && std::string(kind) == "dumb");
  const char* no_color = std::getenv("NO_COLOR");
  terminal.colours = terminal.interactive && (no_color == nullptr || *no_color == '\0');
  winsize size{};
  if (ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) terminal.columns = size.ws_col;
  return terminal;
}

std::string paint(const Terminal& terminal, Colour colour, const std::string& text) {
  if (!terminal.colours) return text;
  switch (colour) {
    case Colour::kGreen:
      return "\033[32m" + text + "\033[0m";
    case Colour::kRed:
      return "\033[31m" + text + "\033[0m";
    case Colour::kDim:
      return "\033[2m" + text + "\033[0m";
    case Colour::kBold:
      return "\033[1m" + text + "\033[0m";
  }
  return text;
}

int columns_of(std::string_view text) {
  const auto begins = [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; };
  return static_cast<int>(std::ranges::count_if(text, begins));
}

std::string wrapped(const std::string& text, int columns, int indent) {
  std::string lines;
  int column = 0;
  std::size_t begin = 0;
  while (begin < text.size()) {
    // A word with the blanks before it.
    const std::size_t word = std::min(text.find_first_not_of(" \n", begin), text.size());
    const std::size_t end = std::min(text.find_first_of(" \n", word), text.size());
    const std::string_view blanks(text.data() + begin, word - begin);
    const std::string_view letters(text.data() + word, end - word);
    begin = end;
    const std::size_t line_feed = blanks.rfind('\n');
    if (line_feed != std::string_view::npos) {  // as it was written
      lines.append(blanks).append(letters);
      column = static_cast<int>(blanks.size() - line_feed - 1) + columns_of(letters);
      continue;
    }
    const int wide = static_cast<int>(blanks.size()) + columns_of(letters);
    if (column > 0 && column + wide > columns && !letters.empty()) {
      lines += "\n" + std::string(static_cast<std::size_t>(indent), ' ');
      lines.append(letters);
      column = indent + columns_of(letters);
    } else {
      lines.append(blanks).append(letters);
      column += wide;
    }
  }
  return lines;
}

std::string for_reader(const Terminal& terminal, const std::string& text, int indent) {
  const std::string named = with_flags(text);
  return terminal.interactive ? wrapped(named, terminal.columns, indent) : named;
}

void print_line(std::FILE* stream, const std::string& text, int indent) {
  (stream == stdout ? std::cout : std::cerr) << for_reader(inspect(stream), text, indent) << "\n";
}

void print_note(const std::string& text) { print_line(stderr, "note: " + text, 2); }

void print_paragraph(std::ostream& out, const std::string& text, int indent) {
  out << wrapped(text, kColumns, indent) << "\n";
}

std::string with_commas(long long number) {
  const std::string plain = std::to_string(number);
  const std::size_t first = number < 0 ? 1 : 0;
  std::string text;
  for (std::size_t i = 0; i < plain.size(); ++i) {
    if (i > first && (plain.size() - i) % 3 == 0) text += ',';
    text += plain[i];
  }
  return text;
}

std::string counted(long long number, const std::string& one, const std::string& several) {
  const std::string noun = number == 1 ? one : several.empty() ? one + "s" : several;
  return with_commas(number) + " " + noun;
}

std::string fixed(double number, int digits) {
  if (std::isnan(number)) return "nan";  // without a sign
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.*f", digits, number);
  return text.data();
}

std::string in_ms(double seconds) { return fixed(seconds * 1e3, seconds < 0.01 ? 3 : 1); }
std::string in_percent(double share) { return fixed(share * 100.0, 1) + " %"; }

std::string with_prefix(double number) {
  static constexpr std::array<const char*, 6> kPrefixes{"", " k", " M", " G", " T", " P"};
  std::size_t prefix = 0;
  while (std::abs(number) >= 999.5 && prefix + 1 < kPrefixes.size()) {
    number /= 1000.0;
    ++prefix;
  }
  const double size = std::abs(number);
  return fixed(number, size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2) + kPrefixes[prefix];
}

std::string as_clock(double seconds) {
  const auto whole = static_cast<long long>(std::llround(seconds));
  const auto two = [](long long n) { return (n < 10 ? "0" : "") + std::to_string(n); };
  const std::string tail = ":" + two(whole % 60);
  if (whole < 3600) return std::to_string(whole / 60) + tail;
  return std::to_string(whole / 3600) + ":" + two(whole / 60 % 60) + tail;
}

}  // namespace tessera::cli
