#pragma once

#include <string>

#include "tessera/lab/comparison.h"

namespace tessera::cli {

/// Says why results of `earlier` are no part of the comparison that is `planned` now, in words that
/// go on after the path of its file: another version, machine or matrix. "": they are.
std::string difference(const Comparison& earlier, const Comparison& planned);

/// The `planned` comparison with the results of `earlier`; failed cells are to run again. Whether a
/// cell is impossible is planned anew, since it depends on the memory that is free.
Comparison gone_on(const Comparison& earlier, Comparison planned);

}  // namespace tessera::cli
