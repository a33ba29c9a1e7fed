#pragma once

#include <cstdio>
#include <iosfwd>
#include <string>
#include <string_view>

namespace tessera::cli {

/// Reports and help are as wide as a usual terminal.
inline constexpr int kColumns = 80;

/// The abilities of a stream.
struct Terminal {
  bool interactive = false;  ///< a person watches: lines can be rewritten
  bool colours = false;      ///< interactive, and NO_COLOR is not set
  int columns = kColumns;
};

Terminal inspect(std::FILE* stream);

enum class Colour { kGreen, kRed, kDim, kBold };

/// `text` in a colour, or as it is.
std::string paint(const Terminal& terminal, Colour colour, const std::string& text);

/// `text` with line breaks between its words where a line would be longer than `columns`; lines
/// that go on begin with `indent` blanks. Words stay whole, however long.
std::string wrapped(const std::string& text, int columns, int indent = 0);
/// `text` with the flags of the options that it names (with_flags), wrapped for a person who
/// watches; in one piece for a file, where lines are searched.
std::string for_reader(const Terminal& terminal, const std::string& text, int indent = 0);
/// Prints a line for a reader, `stream` being stdout or stderr; see for_reader().
void print_line(std::FILE* stream, const std::string& text, int indent = 0);
/// Prints "note: ..." on stderr, for a reader.
void print_note(const std::string& text);
/// Prints `text` wrapped at kColumns.
void print_paragraph(std::ostream& out, const std::string& text, int indent = 0);
/// Terminal columns that UTF-8 text takes, if all its characters are narrow.
int columns_of(std::string_view text);

/// 1234567 as "1,234,567".
std::string with_commas(long long number);
/// "1 file", "2,000 files"; `several` where the plural is not made with an s.
std::string counted(long long number, const std::string& one, const std::string& several = "");
/// "12.3 k", "4.56 M", "102 G": three digits and a prefix of 1000.
std::string with_prefix(double number);
/// `digits` after the point.
std::string fixed(double number, int digits);
/// A time of a step in ms, without the unit: "12.3", and below 10 ms "1.234".
std::string in_ms(double seconds);
/// "12.3 %".
std::string in_percent(double share);
/// "0:42", "1:02:03".
std::string as_clock(double seconds);

}  // namespace tessera::cli
