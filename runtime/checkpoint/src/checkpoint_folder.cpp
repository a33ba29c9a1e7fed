#include "tessera/checkpoint/checkpoint_folder.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <tuple>
#include <utility>

#include "tessera/core/error.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step_";
constexpr std::string_view kUnfinished = ".tmp";
constexpr std::string_view kReplaced = ".old";
constexpr std::string_view kLatest = "latest";
constexpr std::string_view kBest = "best";

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

bool has_manifest(const std::string& path) { return fs::exists(in_folder(path, kManifestName)); }

/// The name that the file `latest` or `best` has; "" if there is none.
std::string name_in(const std::string& folder, std::string_view file) {
  std::ifstream names(in_folder(folder, file));
  std::string name;
  return names >> name && step_of(name, "") >= 0 ? name : "";
}

/// The checkpoint that `best` names, or the one that was there when a crash kept it from being
/// replaced; "" if there is none.
std::string best_in(const std::string& folder) {
  const std::string name = name_in(folder, kBest);
  if (name.empty()) return "";
  const std::string path = in_folder(folder, name);
  if (has_manifest(path)) return path;
  const std::string replaced = path + std::string(kReplaced);
  return has_manifest(replaced) ? replaced : "";
}

/// Without a slash at its end, the folder in place of its file `latest`, and the checkpoint in
/// place of the file `best`.
std::string folder_meant(const std::string& named) {
  const fs::path path = fs::path(named + "/").lexically_normal().parent_path();
  const bool is_best = path.filename() == kBest;
  if ((path.filename() != kLatest && !is_best) || !fs::is_regular_file(path)) return path.string();
  const std::string folder = path.has_parent_path() ? path.parent_path().string() : ".";
  if (!is_best) return folder;
  const std::string best = best_in(folder);
  return best.empty() ? path.string() : best;
}

/// Makes `latest` or `best` name a checkpoint that is durable.
void write_name(Storage& storage, const std::string& folder, std::string_view file,
                std::int64_t step) {
  const std::string path = in_folder(folder, file);
  write_file(storage, path + std::string(kUnfinished), name_of(step) + "\n");
  storage.rename(path + std::string(kUnfinished), path);
  storage.sync_folder(folder);
}

/// All folders that are named as checkpoints, whether they are or not, in the order of
/// find_whole_checkpoint(). One that was replaced comes after the one that replaced it.
std::vector<std::string> candidates_in(const std::string& folder) {
  struct Candidate {
    std::int64_t step;
    bool replaced;
    std::string path;
  };
  std::vector<Candidate> all;
  for (const std::string& name : names_in(folder)) {
    const std::int64_t step = step_of(name, ""), replaced = step_of(name, kReplaced);
    if (step < 0 && replaced < 0) continue;
    all.push_back({std::max(step, replaced), step < 0, in_folder(folder, name)});
  }
  const std::string latest = name_in(folder, kLatest);
  const std::int64_t newest = step_of(latest, "");
  std::ranges::sort(all, {}, [&](const Candidate& candidate) {
    const bool given_up = newest >= 0 && candidate.step > newest;
    return std::tuple(given_up, -candidate.step, candidate.replaced);
  });
  std::vector<std::string> paths;
  // The checkpoint that `latest` names was there.
  if (newest >= 0 && (all.empty() || all.front().step != newest)) {
    paths.push_back(in_folder(folder, latest));
  }
  for (Candidate& candidate : all) paths.push_back(std::move(candidate.path));
  return paths;
}

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
  write_files(storage, path, companions);
  return path;
}

std::string publish_checkpoint(Storage& storage, const std::string& folder,
                               const Manifest& manifest, bool keeps_best) {
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
  // `best` is in front of `latest`: whoever resumes from that finds the best that it knows of.
  if (keeps_best && manifest.best) {
    const std::string best = name_of(manifest.best->step);
    if (best != name_in(folder, kBest) && has_manifest(in_folder(folder, best))) {
      write_name(storage, folder, kBest, manifest.best->step);
    }
  }
  write_name(storage, folder, kLatest, manifest.step);
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
  std::int64_t surplus = keep > 0 ? static_cast<std::int64_t>(all.size()) - keep : 0;
  const std::string best = name_in(folder, kBest);
  for (const auto& [step, path] : all) {
    if (surplus <= 0) break;
    if (step == newest || name_of(step) == best) continue;
    --surplus;
    // The manifest goes first: what is left is no checkpoint.
    storage.remove(in_folder(path, kManifestName));
    storage.sync_folder(path);
    storage.remove(path);
  }
}

std::vector<FoundCheckpoint> list_checkpoints(const std::string& named) {
  const std::string folder = folder_meant(named);
  std::vector<FoundCheckpoint> found;
  for (const std::string& name : names_in(folder)) {
    const std::int64_t step = step_of(name, "");
    if (step >= 0 && has_manifest(in_folder(folder, name))) {
      found.push_back({step, in_folder(folder, name)});
    }
  }
  std::ranges::sort(found, {}, &FoundCheckpoint::step);
  return found;
}

std::string find_checkpoint(const std::string& named) {
  const std::string path = folder_meant(named);
  if (has_manifest(path)) return path;
  if (fs::is_regular_file(path)) return "";
  if (const std::string name = name_in(path, kLatest); !name.empty()) {
    const std::string newest = in_folder(path, name);
    if (has_manifest(newest)) return newest;
    if (has_manifest(newest + std::string(kReplaced))) return newest + std::string(kReplaced);
  }
  const std::vector<FoundCheckpoint> found = list_checkpoints(path);
  return found.empty() ? "" : found.back().path;
}

std::string find_best_checkpoint(const std::string& folder) {
  return best_in(folder_meant(folder));
}

std::string damage_of(const std::string& path) {
  if (!fs::exists(path)) return concat("'", path, "' is missing");
  if (!has_manifest(path)) return concat("'", path, "' has no ", kManifestName);
  try {
    for (const SavedFile& file : read_manifest(path).files) {
      const std::string name = in_folder(path, file.name);
      std::error_code error;
      const auto bytes = fs::file_size(name, error);
      if (error == std::errc::no_such_file_or_directory) return concat("'", name, "' is missing");
      if (error) return concat("'", name, "' cannot be read: ", error.message());
      if (std::cmp_equal(bytes, file.bytes)) continue;
      return concat("'", name, "' has ", bytes, " bytes, not the ", file.bytes,
                    " that the manifest says");
    }
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

WholeCheckpoint find_whole_checkpoint(const std::string& named,
                                      const std::vector<DamagedCheckpoint>& known) {
  const std::string path = folder_meant(named);
  if (has_manifest(path)) return {.path = path, .damages = {}};
  WholeCheckpoint found;
  if (fs::is_regular_file(path)) return found;
  for (const std::string& candidate : candidates_in(path)) {
    const auto read = std::ranges::find(known, candidate, &DamagedCheckpoint::path);
    std::string damage = read != known.end() ? read->damage : damage_of(candidate);
    if (damage.empty()) {
      found.path = candidate;
      return found;
    }
    found.damages.push_back(std::move(damage));
  }
  return found;
}

}  // namespace tessera
