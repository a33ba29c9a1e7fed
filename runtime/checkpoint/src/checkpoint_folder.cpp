#include "tessera/checkpoint/checkpoint_folder.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>

#include "tessera/core/error.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step_";
constexpr std::string_view kUnfinished = ".tmp";
constexpr std::string_view kReplaced = ".old";
constexpr std::string_view kLatest = "latest";

std::string name_of(std::int64_t step) { return concat(kPrefix, step); }
std::string in_folder(const std::string& folder, std::string_view name) {
  return concat(folder, "/", name);
}

/// The step of "step_12" + suffix; -1 if it is no such name.
std::int64_t step_of(std::string_view name, std::string_view suffix) {
  if (!name.starts_with(kPrefix) || !name.ends_with(suffix)) return -1;
  name.remove_prefix(kPrefix.size());
  name.remove_suffix(suffix.size());
  std::int64_t step = -1;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
  return error == std::errc() && end == name.data() + name.size() && step >= 0 ? step : -1;
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  require(!error || error == std::errc::no_such_file_or_directory, ErrorCode::kIo, "cannot read '",
          folder, "': ", error.message());
  std::ranges::sort(names);
  return names;
}

bool is_whole(const std::string& path) { return fs::exists(in_folder(path, kManifestName)); }

}  // namespace

std::string unfinished_path(const std::string& folder, std::int64_t step) {
  return in_folder(folder, name_of(step)) + std::string(kUnfinished);
}

void make_checkpoint_folder(Storage& storage, const std::string& folder) {
  std::vector<fs::path> made;
  for (fs::path above = fs::absolute(folder).lexically_normal(); !fs::exists(above);
       above = above.parent_path()) {
    made.push_back(above);
  }
  storage.make_folder(folder);
  for (const fs::path& one : made) storage.sync_folder(one.parent_path().string());
}

std::string begin_checkpoint(Storage& storage, const std::string& folder, std::int64_t step,
                             const std::vector<NamedText>& companions) {
  std::string path = unfinished_path(folder, step);
  make_checkpoint_folder(storage, folder);
  storage.remove(path);
  storage.make_folder(path);
  for (const NamedText& file : companions) {
    write_file(storage, in_folder(path, file.name), file.value);
  }
  return path;
}

std::string publish_checkpoint(Storage& storage, const std::string& folder,
                               const Manifest& manifest) {
  const std::string path = in_folder(folder, name_of(manifest.step));
  const std::string unfinished = path + std::string(kUnfinished);
  const std::string replaced = path + std::string(kReplaced);
  write_file(storage, in_folder(unfinished, kManifestName), to_text(manifest));
  storage.sync_folder(unfinished);
  if (fs::exists(path)) {
    storage.remove(replaced);
    storage.rename(path, replaced);
  }
  storage.rename(unfinished, path);
  storage.sync_folder(folder);
  const std::string latest = in_folder(folder, kLatest);
  write_file(storage, latest + std::string(kUnfinished), name_of(manifest.step) + "\n");
  storage.rename(latest + std::string(kUnfinished), latest);
  storage.sync_folder(folder);
  return path;
}

void prune_checkpoints(Storage& storage, const std::string& folder, std::int64_t newest,
                       std::int64_t keep) {
  for (const std::string& name : names_in(folder)) {
    const bool left_behind = step_of(name, kUnfinished) >= 0 || step_of(name, kReplaced) >= 0;
    if (left_behind) storage.remove(in_folder(folder, name));
  }
  std::vector<FoundCheckpoint> all = list_checkpoints(folder);
  std::ranges::stable_sort(all, {}, [&](const FoundCheckpoint& checkpoint) {
    return checkpoint.step > newest ? -1 : checkpoint.step;
  });
  const std::int64_t surplus = keep > 0 ? static_cast<std::int64_t>(all.size()) - keep : 0;
  for (std::int64_t i = 0; i < surplus; ++i) {
    // The manifest goes first: what is left is no checkpoint.
    const std::string& path = all[static_cast<std::size_t>(i)].path;
    storage.remove(in_folder(path, kManifestName));
    storage.sync_folder(path);
    storage.remove(path);
  }
}

std::vector<FoundCheckpoint> list_checkpoints(const std::string& folder) {
  std::vector<FoundCheckpoint> found;
  for (const std::string& name : names_in(folder)) {
    const std::int64_t step = step_of(name, "");
    if (step >= 0 && is_whole(in_folder(folder, name))) {
      found.push_back({step, in_folder(folder, name)});
    }
  }
  std::ranges::sort(found, {}, &FoundCheckpoint::step);
  return found;
}

std::string find_checkpoint(const std::string& named) {
  const std::string path = fs::path(named + "/").lexically_normal().parent_path().string();
  if (is_whole(path)) return path;
  std::ifstream latest(in_folder(path, kLatest));
  if (std::string name; latest >> name && step_of(name, "") >= 0) {
    const std::string newest = in_folder(path, name);
    if (is_whole(newest)) return newest;
    if (is_whole(newest + std::string(kReplaced))) return newest + std::string(kReplaced);
  }
  const std::vector<FoundCheckpoint> found = list_checkpoints(path);
  return found.empty() ? "" : found.back().path;
}

}  // namespace tessera
