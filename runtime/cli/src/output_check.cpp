#include "output_check.h"

#include <sys/stat.h>

#include <filesystem>
#include <map>
#include <optional>
#include <tuple>

#include "tessera/core/error.h"
#include "tessera/trainer/trainer_settings.h"

namespace tessera::cli {
namespace {

/// What two paths share if they lead to one file: the file's device and inode; of a file that does
/// not exist yet, those of the nearest folder above that does, and the way from there.
using FileIdentity = std::tuple<dev_t, ino_t, std::string>;

/// Nothing for pipes, terminals and /dev/null, which may be shared.
std::optional<FileIdentity> identify(const std::string& text) {
  std::error_code failed;
  const std::filesystem::path whole = std::filesystem::absolute(text);
  std::filesystem::path path = std::filesystem::weakly_canonical(whole, failed);
  if (failed) path = whole.lexically_normal();
  constexpr int kMaxLinks = 40;  // of Linux
  for (int i = 0; i < kMaxLinks && !std::filesystem::exists(path, failed) &&
                  std::filesystem::is_symlink(path, failed);
       ++i) {  // to nothing yet, but the file will be made there
    path = path.parent_path() / std::filesystem::read_symlink(path, failed);
  }
  std::filesystem::path missing;
  struct stat status {};
  while (stat(path.c_str(), &status) != 0) {
    if (!path.has_relative_path()) return std::nullopt;
    missing = missing.empty() ? path.filename() : path.filename() / missing;
    path = path.parent_path();
  }
  if (!S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode)) return std::nullopt;
  return FileIdentity{status.st_dev, status.st_ino, missing.string()};
}

}  // namespace

void check_outputs(const Config& config, const std::vector<std::string>& data_files) {
  std::map<FileIdentity, std::string> read;
  for (const std::string& path : data_files) {
    if (const auto file = identify(path)) read.emplace(*file, "the data");
  }
  for (const ConfigTranslation& translation : config.translations()) {
    if (const auto file = identify(translation.path)) read.emplace(*file, "the settings");
  }
  std::map<FileIdentity, std::string> written;
  for (const Setting& setting : output_settings()) {
    if (config.is_null(setting.name)) continue;
    const auto path = config.get<std::string>(setting.name);
    const std::string flag = flag_name(setting.name);
    const auto file = identify(path);
    if (!file) continue;
    const auto input = read.find(*file);
    require(input == read.end(), ErrorCode::kConfig, flag, " would write over ", path,
            ", from which ", input == read.end() ? "" : input->second, " are read; give ", flag,
            " another path");
    const auto [other, is_new] = written.emplace(*file, flag);
    require(is_new, ErrorCode::kConfig, flag, " and ", other->second, " would both write to ", path,
            "; give each a path of its own");
  }
}

}  // namespace tessera::cli
