#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/checkpoint/manifest.h"
#include "tessera/core/storage.h"

// The folder of a run's checkpoints: step_100, step_200, ..., each with a manifest, the file
// `latest`, which names the newest, and, if the run keeps it, the file `best`, which names that of
// the lowest evaluation loss. At any moment, a crash of the machine included, they name whole
// checkpoints once there are some: a checkpoint is made beside its place as step_N.tmp, and renamed
// when all of it is durable.

namespace tessera {

/// A checkpoint in a folder.
struct FoundCheckpoint {
  std::int64_t step = 0;
  std::string path;
};

/// Makes the folder of a run's checkpoints, and its name durable; it may be there.
void make_checkpoint_folder(Storage& storage, const std::string& folder);

/// Where the files of a checkpoint are written: step_N.tmp.
std::string unfinished_path(const std::string& folder, std::int64_t step);

/// Makes step_N.tmp for the files of a checkpoint, in place of one that was left there; returns its
/// path. `companions`: names and bytes of files of other programs that it is to have.
std::string begin_checkpoint(Storage& storage, const std::string& folder, std::int64_t step,
                             const std::vector<NamedText>& companions = {});

/// Ends what begin_checkpoint began, when all files are written and durable: manifest, rename,
/// `best` if it is kept (that of Manifest::best, as far as it is there), `latest`. One of the same
/// step that is there is replaced, and stays as step_N.old until prune_checkpoints(). Returns the
/// checkpoint's path.
std::string publish_checkpoint(Storage& storage, const std::string& folder,
                               const Manifest& manifest, bool keeps_best = false);

/// Removes what crashes, failures and replacement have left behind, and, unless `keep` is 0, the
/// oldest checkpoints until `keep` are left. Those of steps above `newest`, of a run that was given
/// up, count as oldest. Neither `newest` nor the one that `best` names is removed.
void prune_checkpoints(Storage& storage, const std::string& folder, std::int64_t newest,
                       std::int64_t keep);

// Below, the file `latest` stands for its folder, and the file `best` for the checkpoint that it
// names.

/// Checkpoints of the folder that have a manifest, by step. Nothing if there is no such folder.
std::vector<FoundCheckpoint> list_checkpoints(const std::string& folder);

/// The checkpoint that `path` means: a checkpoint itself, or the newest of a folder, as `latest`
/// says. "" if there is none.
std::string find_checkpoint(const std::string& path);

/// The checkpoint that the file `best` of a folder names; "" if there is none.
std::string find_best_checkpoint(const std::string& folder);

/// The damage of a checkpoint, as far as its manifest and the sizes of its files tell; "" if
/// it is whole. Contents of the files are not read: see verify_files().
std::string damage_of(const std::string& path);

struct WholeCheckpoint {
  std::string path;  ///< "" if none is whole
  /// The damage of each that was passed over.
  std::vector<std::string> damages;
};
/// A checkpoint and what is wrong with it.
struct DamagedCheckpoint {
  std::string path;
  std::string damage;
};
/// Does as find_checkpoint(), but of a folder takes the newest that is whole: that of `latest`,
/// else those of the steps before it, then those after it. A checkpoint itself is not looked at.
/// `known`: some whose damage shows only when they are read.
WholeCheckpoint find_whole_checkpoint(const std::string& path,
                                      const std::vector<DamagedCheckpoint>& known = {});

}  // namespace tessera
