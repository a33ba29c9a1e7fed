#pragma once

#include <string>

#include "tessera/lab/comparison.h"

namespace tessera {

/// A page of HTML with every plot and its table, in one file that loads nothing else.
std::string to_html(const Comparison& comparison);

}  // namespace tessera
