#include "tessera/core/offload_path.h"

#include <linux/magic.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include "tessera/core/error.h"
#include "tessera/core/format_bytes.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

/// Decodes names as /proc writes them: a space is \040.
std::string without_escapes(const std::string& text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 3 < text.size()) {
      result += static_cast<char>(std::stoi(text.substr(i + 1, 3), nullptr, 8));
      i += 3;
    } else {
      result += text[i];
    }
  }
  return result;
}

bool is_below(const std::string& path, const std::string& mount) {
  return mount == "/" || path == mount || path.starts_with(mount + "/");
}

/// Fills in what is mounted where `path`, which has no links, lies: the longest of the mount points
/// it is below, and there the last.
void find_mount(const std::string& path, OffloadPath& found) {
  std::ifstream mounts("/proc/self/mountinfo");
  // "36 35 98:0 / /mnt/nvme rw,noatime shared:1 - ext4 /dev/nvme0n1 rw"
  for (std::string line; std::getline(mounts, line);) {
    std::istringstream words(line);
    std::string word, point, type, source;
    words >> word >> word >> word >> word >> point;
    while (words >> word && word != "-") continue;
    words >> type >> source;
    point = without_escapes(point);
    if (!is_below(path, point) || point.size() < found.mount.size()) continue;
    found.mount = point;
    found.file_system = type;
    found.source = without_escapes(source);
  }
}

bool is_in_memory(std::int64_t type) {
  return type == TMPFS_MAGIC || type == RAMFS_MAGIC || type == HUGETLBFS_MAGIC;
}

/// The folder without links.
std::string find_folder(const std::string& folder) {
  std::error_code error;
  const fs::path path = fs::canonical(folder, error);
  const bool missing = error == std::errc::no_such_file_or_directory;
  require(!error, missing ? ErrorCode::kNotFound : ErrorCode::kConfig,
          "cannot find the folder of the disk tier, '", folder, "': ", error.message(),
          "; make it on the disk that is to hold the state");
  require(fs::is_directory(path, error), ErrorCode::kConfig, "'", folder,
          "' is not a folder; the disk tier needs one, on a disk");
  return path.string();
}

}  // namespace

OffloadPath check_offload_path(const std::string& folder, std::int64_t bytes, DiskCalls& calls) {
  const std::string path = find_folder(folder);
  const int refusal = access(path.c_str(), W_OK | X_OK) == 0 ? 0 : errno;
  require(refusal == 0, ErrorCode::kConfig, "cannot make files in '", folder,
          "': ", std::strerror(refusal),
          "; choose a folder that this user may write for the disk tier");
  FolderSpace space;
  const int error = calls.space(path, space);
  require(error == 0, ErrorCode::kIo, "cannot ask for the space of '", folder,
          "': ", std::strerror(-error), "; choose another folder for the disk tier");
  OffloadPath result{.free_bytes = space.free_bytes};
  find_mount(path, result);
  require(!is_in_memory(space.type), ErrorCode::kConfig, "'", folder, "' is in memory (",
          result.file_system, " at '", result.mount,
          "'), so what is offloaded there saves none; choose a folder on a disk");
  require(bytes <= space.free_bytes, ErrorCode::kOutOfMemory, "the disk tier needs ",
          format_bytes(bytes), " (", bytes, " bytes) in '", folder, "', and ", result.source, " (",
          result.file_system, " at '", result.mount, "') has ", format_bytes(space.free_bytes),
          " (", space.free_bytes,
          " bytes) free; make room, choose a folder on another disk, or offload less");
  return result;
}

}  // namespace tessera
