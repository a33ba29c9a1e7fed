#include "tessera/trainer/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
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
  const std::string why = std::strerror(error);
  if (error == ENXIO) {
    fail(ErrorCode::kIo, path, ": cannot be written (", why,
         "): nobody reads this pipe; start its reader first, or give ", flag, " a file");
  }
  if (error == EMFILE || error == ENFILE) {
    fail(ErrorCode::kIo, path, ": cannot be written (", why,
         "); raise the limit of open files, ulimit -n");
  }
  fail(ErrorCode::kIo, path, ": cannot be written (", why, "); give ", flag,
       " a path that is writable");
}

/// Whether there is something at the path or its links' end. Fails where that cannot be known.
bool is_there(const fs::path& at, std::string_view path, std::string_view flag) {
  std::error_code error;
  const fs::file_status status = fs::status(at, error);
  if (status.type() == fs::file_type::none) fail_to_open(path, flag, error.value());
  return fs::exists(status);
}

/// Where a link leads that leads to nothing yet; any other path as it is.
fs::path without_dangling_links(fs::path at, std::string_view path, std::string_view flag) {
  std::error_code error;
  while (!is_there(at, path, flag) && fs::is_symlink(at, error)) {
    const fs::path target = fs::read_symlink(at, error);
    if (error) fail_to_open(path, flag, error.value());
    at = at.parent_path() / target;
  }
  return at;
}

/// Of what exists: the file itself, or the nearest folder above it, in which the folders between
/// can be made.
fs::path nearest_of(const fs::path& file, std::string_view path, std::string_view flag) {
  fs::path nearest = file;
  std::size_t longest_name = 0;
  while (!is_there(nearest, path, flag) && nearest.has_relative_path()) {
    std::error_code ignored;
    // No folder can be made in the place of a link.
    if (fs::is_symlink(nearest, ignored)) fail_to_open(path, flag, ENOENT);
    longest_name = std::max(longest_name, nearest.filename().native().size());
    nearest = nearest.parent_path();
  }
  const auto limit = pathconf(nearest.c_str(), _PC_NAME_MAX);
  if (limit > 0 && longest_name > static_cast<std::size_t>(limit)) {
    fail_to_open(path, flag, ENAMETOOLONG);
  }
  return nearest;
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
  // Without O_NONBLOCK the opening of a named pipe would wait for a reader.
  constexpr mode_t kForAll = 0666;  // less what the umask takes
  descriptor_ =
      open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, kForAll);
  if (descriptor_ < 0) fail_to_open(path_, flag, errno);
  fcntl(descriptor_, F_SETFL, fcntl(descriptor_, F_GETFL) & ~O_NONBLOCK);
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
  // What cannot be taken back stays: the error of the write is the one to tell.
  if (is_regular_ && ftruncate(descriptor_, written_) == 0) {
    lseek(descriptor_, written_, SEEK_SET);
  }
  fail(ErrorCode::kIo, path_, ": writing failed (", std::strerror(error), "); make room, or give ",
       flag_, " a path elsewhere");
}

bool holds_something(const std::string& path) {
  std::error_code none;
  return fs::is_regular_file(path, none) && fs::file_size(path, none) > 0;
}

void check_writable(const std::string& path, std::string_view flag, Writing writing) {
  const fs::path given = fs::absolute(path);
  const fs::path file = without_dangling_links(given, path, flag);
  fs::path nearest = nearest_of(file, path, flag);
  std::error_code ignored;
  const bool is_folder = fs::is_directory(nearest, ignored);
  if (nearest == file && is_folder) fail_to_open(path, flag, EISDIR);
  if (nearest != file && !is_folder) fail_to_open(path, flag, ENOTDIR);
  // The folders of the path are made, but not those of a link.
  const bool makes_folders = nearest != file && nearest != file.parent_path();
  if (file != given && makes_folders && writing == Writing::kInPlace) {
    fail_to_open(path, flag, ENOENT);
  }
  const bool in_place =
      !is_folder && (writing == Writing::kInPlace || !fs::is_regular_file(nearest, ignored));
  if (!is_folder && !in_place) nearest = fs::canonical(nearest, ignored).parent_path();
  if (access(nearest.c_str(), in_place ? W_OK : W_OK | X_OK) != 0) {
    fail_to_open(path, flag, errno);
  }
}

}  // namespace tessera
