#include "tessera/core/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "tessera/core/error.h"

namespace tessera {
namespace {

[[noreturn]] void fail_to_read(const char* doing, const std::string& path, int number) {
  const bool missing = number == ENOENT || number == ENOTDIR;
  fail(missing ? ErrorCode::kNotFound : ErrorCode::kIo, "cannot ", doing, " '", path,
       "': ", std::generic_category().message(number));
}

}  // namespace

bool is_git_lfs_pointer(std::string_view begin) {
  return begin.starts_with("version https://git-lfs.github.com/spec/");
}

InputFile::InputFile(std::string path) : path_(std::move(path)) {
  // Without O_NONBLOCK the opening of a named pipe would wait for a writer.
  descriptor_ = open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor_ < 0) fail_to_read("open", path_, errno);
  struct stat status {};
  const int number = fstat(descriptor_, &status) != 0 ? errno : 0;
  if (number == 0 && S_ISREG(status.st_mode)) {
    size_ = status.st_size;
    return;
  }
  close(descriptor_);
  if (number != 0) fail_to_read("inspect", path_, number);
  fail(ErrorCode::kIo, "'", path_, "' is not a regular file");
}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      size_(other.size_) {}

InputFile::~InputFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

void InputFile::read(std::int64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const ssize_t count = pread(descriptor_, out.data(), out.size(), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_to_read("read", path_, errno);
    require(count > 0, ErrorCode::kIo, "'", path_, "' ends at byte ", offset, ", ", out.size(),
            " bytes early: it was cut short; restore it and run again");
    out = out.subspan(static_cast<std::size_t>(count));
    offset += count;
  }
}

}  // namespace tessera
