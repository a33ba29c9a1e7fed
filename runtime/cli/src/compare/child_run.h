#pragma once

#include <string>
#include <vector>

#include "run/interrupt.h"

namespace tessera::cli {

/// The outcome of a child.
struct ChildResult {
  bool trained = false;  ///< it has ended well
  std::string why{};     ///< it has failed; "": it was interrupted
};

/// Runs this program with `flags`; what it prints goes to the file `printed`. A signal that
/// `interrupt` has seen ends it, and it dies with this process. Throws Error{kUnavailable} if no
/// process can be started, and Error{kIo}.
ChildResult run_child(std::vector<std::string> flags, const std::string& printed,
                      const InterruptGuard& interrupt);

}  // namespace tessera::cli
