#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace tessera {

/// A regular file that is read at offsets, without a mapping: a file that is cut short meanwhile
/// gives an error and no SIGBUS. Thread-safe. Moves; closes when it dies.
class InputFile {
 public:
  /// Throws Error{kNotFound} or Error{kIo} naming the path and the system's reason.
  explicit InputFile(std::string path);
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&&) = delete;
  ~InputFile();

  const std::string& path() const { return path_; }
  std::int64_t size() const { return size_; }  ///< when it was opened

  /// Reads bytes [offset, offset + out.size()). Throws Error{kIo} if they are not all there.
  void read(std::int64_t offset, std::span<std::byte> out) const;

 private:
  std::string path_;
  int descriptor_ = -1;
  std::int64_t size_ = 0;
};

}  // namespace tessera
