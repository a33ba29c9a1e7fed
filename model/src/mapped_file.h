#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace tessera::data {

/// The remedy of EMFILE and ENFILE.
inline constexpr const char* kRaiseOpenFiles = "; raise the limit of open files, ulimit -n";

enum class Access { kSequential, kRandom };

/// A regular file's bytes, read-only: mapped, or copied if it is small (a folder of text may hold
/// more files than a process may have mappings). Moves; unmaps when it dies.
class MappedFile {
 public:
  /// Throws Error{kNotFound} or Error{kIo} naming the path and the system's reason.
  explicit MappedFile(std::string path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile();

  const std::string& path() const { return path_; }
  std::span<const std::byte> bytes() const { return bytes_; }

  /// Copies bytes [begin, begin + out.size()). Throws Error{kIo} if the file has been cut short: to
  /// touch its lost pages would end the process, and bytes() is only for who knows they are there.
  void copy(std::size_t begin, std::span<std::byte> out) const;

  /// Tells the kernel how the bytes will be read from now on.
  void advise(Access access) const;

 private:
  void check_not_truncated() const;
  void read_all(int descriptor, std::size_t size);

  std::string path_;
  std::span<const std::byte> bytes_;
  std::vector<std::byte> copy_;  ///< of a small file
  bool mapped_ = false;
  unsigned long long device_ = 0, inode_ = 0;
};

}  // namespace tessera::data
