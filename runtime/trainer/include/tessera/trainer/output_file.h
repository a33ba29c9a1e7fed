#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tessera {

/// How an existing file is treated.
enum class Existing : std::uint8_t {
  kReplace,  ///< it goes with the first write
  kExtend,   ///< it stays, and more is written after it, on a line of its own
};

/// A file that a run writes as it goes: what was written is in it when the call returns.
class OutputFile {
 public:
  /// Opens the file, and makes it and its folder if need be. Its content stays until the first
  /// write: a run that cannot open all its files has destroyed none. `flag` is what the user named
  /// it with ("--log"), for the error. Throws Error{kIo}.
  OutputFile(std::string path, std::string_view flag, Existing existing = Existing::kReplace);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  /// The first call empties the file, or goes to its end. Throws Error{kIo} if there is no room, or
  /// the file cannot be written any more; what was written of `bytes` is then taken back, so that a
  /// file of lines holds whole lines.
  void write(std::string_view bytes);

  /// Writes in place of `end`, with which the last write ended, and which is there again if this
  /// fails. Only a regular file can be written so.
  void write_over(std::string_view end, std::string_view bytes);
  /// Makes it durable. Throws Error{kIo}.
  void sync();
  bool is_regular() const { return is_regular_; }

  const std::string& path() const { return path_; }
  /// Bytes that were written, and those before them that stay.
  std::int64_t size() const { return written_; }

 private:
  std::string path_;
  std::string flag_;
  int descriptor_ = -1;
  bool is_regular_ = false;
  bool is_cut_ = false;     ///< to what stays
  bool cuts_line_ = false;  ///< what stays ends within a line
  std::int64_t written_ = 0;
};

/// Whether the file is regular and not empty: a run that writes it loses what it holds, or adds to
/// it.
bool holds_something(const std::string& path);

/// How a file comes to be written.
enum class Writing : std::uint8_t {
  kInPlace,      ///< as an OutputFile
  kByReplacing,  ///< a new one in its folder takes its place, if it is a regular file
};

/// Whether the file could be written so, as far as permissions tell without making or changing
/// anything. Throws Error{kIo}.
void check_writable(const std::string& path, std::string_view flag,
                    Writing writing = Writing::kInPlace);

/// Writes a file at once or not at all: a process that is killed leaves what was there. `flag`: as
/// of OutputFile. Throws Error{kIo}.
void replace_file(const std::string& path, std::string_view flag, const std::string& text);

}  // namespace tessera
