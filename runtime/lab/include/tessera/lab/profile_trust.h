#pragma once

#include <string>
#include <string_view>

namespace tessera {

/// How far a step time that a profile predicts is to be trusted, to follow the word "as": how such
/// predictions compare with steps that were measured (tests/lab, runtime/lab/README.md). `profile`
/// is its name.
std::string trust_in(std::string_view profile);

}  // namespace tessera
