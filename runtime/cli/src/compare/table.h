#pragma once

#include <iosfwd>

#include "tessera/lab/comparison.h"

namespace tessera::cli {

/// A row for each cell that can run, in 80 columns, what its numbers are, and why cells are
/// missing.
void print_table(std::ostream& out, const Comparison& results);

}  // namespace tessera::cli
