#include "tessera/trainer/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "tessera/core/error.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail_to_open(std::string_view path, std::string_view flag, int error) {
  fail(ErrorCode::kIo, path, ": cannot be written (", std::strerror(error), "); give ", flag,
       " a path that is writable");
}

/// Whether a run that was killed has left half a line.
bool ends_in_newline(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  file.seekg(-1, std::ios::end);
  return file.get() == '\n';
}

}  // namespace

OutputFile::OutputFile(std::string path, std::string_view flag, Existing existing)
    : path_(std::move(path)), flag_(flag) {
  const auto folder = fs::path(path_).parent_path();
  std::error_code ignored;  // if there is no folder in the end, the file cannot be opened
  if (!folder.empty()) fs::create_directories(folder, ignored);
  constexpr mode_t kForAll = 0666;  // less what the umask takes
  descriptor_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOCTTY, kForAll);
  if (descriptor_ < 0) fail_to_open(path_, flag, errno);
  struct stat status {};
  is_regular_ = fstat(descriptor_, &status) == 0 && S_ISREG(status.st_mode);
  if (!is_regular_ || existing == Existing::kReplace) return;
  written_ = status.st_size;
  lseek(descriptor_, written_, SEEK_SET);
  cuts_line_ = written_ > 0 && !ends_in_newline(path_);
}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

void OutputFile::write(std::string_view bytes) {
  if (std::exchange(cuts_line_, false)) write("\n");
  int error = 0;
  if (!std::exchange(is_cut_, true) && is_regular_ && ftruncate(descriptor_, written_) != 0) {
    error = errno;
  }
  for (std::string_view left = bytes; error == 0 && !left.empty();) {
    const ssize_t count = ::write(descriptor_, left.data(), left.size());
    if (count >= 0) {
      left.remove_prefix(static_cast<std::size_t>(count));
    } else if (errno != EINTR) {
      error = errno;
    }
  }
  if (error == 0) {
    written_ += static_cast<std::int64_t>(bytes.size());
    return;
  }
  // Bytes that cannot be taken back stay: the error of the write is the one to tell.
  if (is_regular_ && ftruncate(descriptor_, written_) == 0) {
    lseek(descriptor_, written_, SEEK_SET);
  }
  fail(ErrorCode::kIo, path_, ": writing failed (", std::strerror(error), "); make room, or give ",
       flag_, " a path elsewhere");
}

void OutputFile::sync() {
  require(fsync(descriptor_) == 0 || !is_regular_, ErrorCode::kIo, path_, ": writing failed (",
          std::strerror(errno), ")");
}

void OutputFile::write_over(std::string_view end, std::string_view bytes) {
  const auto size = static_cast<std::int64_t>(end.size());
  require(is_regular_ && is_cut_ && size <= written_, ErrorCode::kInvalidArgument, path_,
          ": there is nothing to write over");
  written_ -= size;
  lseek(descriptor_, written_, SEEK_SET);
  try {
    write(bytes);
  } catch (...) {
    write(end);  // where it was
    throw;
  }
}

bool holds_something(const std::string& path) {
  std::error_code none;
  return fs::is_regular_file(path, none) && fs::file_size(path, none) > 0;
}

void check_writable(const std::string& path, std::string_view flag, Writing writing) {
  std::error_code error;
  const fs::path file = fs::weakly_canonical(fs::absolute(path), error);
  if (error) fail_to_open(path, flag, error.value());
  if (fs::is_directory(file, error)) fail_to_open(path, flag, EISDIR);
  const bool replaces = writing == Writing::kByReplacing && fs::is_regular_file(file, error);
  fs::path nearest = replaces ? file.parent_path() : file;  // that exists
  while (!fs::exists(nearest, error) && nearest.has_relative_path()) {
    nearest = nearest.parent_path();
  }
  if (nearest != file && !fs::is_directory(nearest, error)) fail_to_open(path, flag, ENOTDIR);
  const int needed = nearest == file ? W_OK : W_OK | X_OK;
  if (access(nearest.c_str(), needed) != 0) fail_to_open(path, flag, errno);
}

void replace_file(const std::string& path, std::string_view flag, const std::string& text) {
  const std::string fresh = path + ".new";
  {
    OutputFile file(fresh, flag);
    file.write(text);
    file.sync();
  }
  std::error_code error;
  fs::rename(fresh, path, error);
  require(!error, ErrorCode::kIo, path, ": cannot be replaced (", error.message(), "); give ", flag,
          " a path that is writable");
}

}  // namespace tessera
