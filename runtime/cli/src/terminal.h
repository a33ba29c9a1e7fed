#pragma once

#include <cstdio>
#include <string>

namespace tessera::cli {

/// What a stream can show.
struct Terminal {
  bool interactive = false;  ///< a person watches: lines can be rewritten
  bool colours = false;      ///< interactive, and NO_COLOR is not set
  int columns = 80;
};

Terminal inspect(std::FILE* stream);

enum class Colour { kGreen, kRed, kDim, kBold };

/// `text` in a colour, or as it is.
std::string paint(const Terminal& terminal, Colour colour, const std::string& text);

/// 1234567 as "1,234,567".
std::string with_commas(long long number);
/// "1 file", "2,000 files"; `several` where the plural is not made with an s.
std::string counted(long long number, const std::string& one, const std::string& several = "");
/// "12.3 k", "4.56 M", "102 G": three digits and a prefix of 1000.
std::string with_prefix(double number);
/// `digits` after the point.
std::string fixed(double number, int digits);
/// "0:42", "1:02:03".
std::string as_clock(double seconds);

}  // namespace tessera::cli
