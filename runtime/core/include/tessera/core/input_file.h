#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace tessera {

/// Whether a text that a file begins with is what Git has in place of the file unless Git LFS was
/// there to fetch it.
bool is_git_lfs_pointer(std::string_view begin);
inline constexpr const char* kFetchByLfs =
    "it is a pointer of Git LFS in place of the file; fetch the file itself: git lfs pull";

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
