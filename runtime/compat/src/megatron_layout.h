#pragma once

#include <string>

namespace tessera::compat {

/// The layers of each stage, as --pipeline-split has them, of Megatron-LM's
/// --pipeline-model-parallel-layout: "Ett|(tt|)*2,tL" is "3,2,2,2". Throws Error{kConfig} where a
/// stage or a letter has no counterpart here.
std::string split_of_layout(const std::string& layout);

}  // namespace tessera::compat
