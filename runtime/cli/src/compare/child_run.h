#pragma once

#include <optional>
#include <string>
#include <vector>

#include "interrupt.h"
#include "tessera/lab/comparison.h"

namespace tessera::cli {

/// What has become of a child that trained.
struct ChildResult {
  std::optional<CellRun> run{};  ///< it has trained to the end
  std::string why{};             ///< it has failed; "": it was interrupted
};

/// Runs this program with `flags`, of which the log is read: `path` with ".jsonl" behind, and what
/// it prints with ".txt". A signal that `interrupt` has seen ends it. It dies with this process.
/// Throws Error{kUnavailable} if no process can be started, and Error{kIo}.
ChildResult run_child(std::vector<std::string> flags, const std::string& path,
                      std::int64_t untimed_steps, const InterruptGuard& interrupt);

}  // namespace tessera::cli
