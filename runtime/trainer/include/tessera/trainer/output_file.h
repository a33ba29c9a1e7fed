#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>

namespace tessera {

/// A file that a run writes as it goes: what was written is in it when the call returns.
class OutputFile {
 public:
  /// Creates or empties the file, and makes its folder if need be. `flag` is what the user named
  /// it with ("--log"), for the error. Throws Error{kIo}.
  OutputFile(std::string path, std::string_view flag);

  /// Throws Error{kIo} if there is no room, or the file cannot be written any more; what was
  /// written of `bytes` is then taken back, so that a file of lines holds whole lines.
  void write(std::string_view bytes);

  const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::string flag_;
  std::ofstream file_;
  std::uintmax_t written_ = 0;  ///< bytes
};

/// How a file comes to be written.
enum class Writing : std::uint8_t {
  kInPlace,      ///< as an OutputFile
  kByReplacing,  ///< a new one in its folder takes its place, if it is a regular file
};

/// Whether the file could be written so, without making or changing anything: throws as an
/// OutputFile would.
void check_writable(const std::string& path, std::string_view flag,
                    Writing writing = Writing::kInPlace);

}  // namespace tessera
