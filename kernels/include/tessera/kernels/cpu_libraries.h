#pragma once

#include <string>

namespace tessera {

/// Version of the oneDNN that is loaded, "2.6.3".
std::string onednn_version();
/// The instruction set that our kernels use on this machine, as Highway calls it: "AVX3".
std::string vector_target();

}  // namespace tessera
