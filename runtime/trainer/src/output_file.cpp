#include "tessera/trainer/output_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "tessera/core/error.h"

namespace tessera {
namespace {

[[noreturn]] void fail_to_open(std::string_view path, std::string_view flag, int error) {
  fail(ErrorCode::kIo, path, ": cannot be written (", std::strerror(error), "); give ", flag,
       " a path that is writable");
}

}  // namespace

OutputFile::OutputFile(std::string path, std::string_view flag)
    : path_(std::move(path)), flag_(flag) {
  const auto folder = std::filesystem::path(path_).parent_path();
  std::error_code ignored;  // if there is no folder in the end, the file cannot be opened
  if (!folder.empty()) std::filesystem::create_directories(folder, ignored);
  errno = 0;
  file_.open(path_, std::ios::binary | std::ios::trunc);
  if (!file_.is_open()) fail_to_open(path_, flag, errno);
}

void OutputFile::write(std::string_view bytes) {
  errno = 0;
  file_.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file_.flush();
  if (file_.good()) {
    written_ += bytes.size();
    return;
  }
  const int error = errno;
  file_.close();  // and forgets what it still has
  std::error_code ignored;
  if (std::filesystem::is_regular_file(path_, ignored)) {
    std::filesystem::resize_file(path_, written_, ignored);
  }
  fail(ErrorCode::kIo, path_, ": writing failed (", std::strerror(error), "); make room, or give ",
       flag_, " a path elsewhere");
}

void check_writable(const std::string& path, std::string_view flag, Writing writing) {
  std::error_code ignored;
  const std::filesystem::path file = std::filesystem::absolute(path);
  std::filesystem::path nearest = file;  // of what exists: the file itself, or a folder above it
  while (!exists(nearest, ignored) && nearest.has_relative_path()) nearest = nearest.parent_path();
  const bool is_folder = is_directory(nearest, ignored);
  if (nearest == file && is_folder) fail_to_open(path, flag, EISDIR);
  if (nearest != file && !is_folder) fail_to_open(path, flag, ENOTDIR);
  const bool in_place =
      !is_folder && (writing == Writing::kInPlace || !is_regular_file(nearest, ignored));
  if (!is_folder && !in_place) nearest = canonical(nearest, ignored).parent_path();
  if (access(nearest.c_str(), in_place ? W_OK : W_OK | X_OK) != 0) {
    fail_to_open(path, flag, errno);
  }
}

}  // namespace tessera
