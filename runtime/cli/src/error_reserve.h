#pragma once

namespace tessera::cli {

/// Keeps memory for the errors that tell of a lack of it: the first allocation that fails gives it
/// free, and fails. Call once, at the start of the program.
void keep_memory_for_errors();

}  // namespace tessera::cli
