#pragma once

#include <string>

namespace tessera {

/// Version of the oneDNN that is loaded, "2.6.3".
std::string onednn_version();
/// The instruction set that our kernels use on this machine, as Highway calls it: "AVX3".
std::string vector_target();
/// Where address space is limited (ulimit -v), has libraries do now what they do at their first
/// use: oneDNN examines the processor, and the C library loads what unwinds the stack of a thread
/// that ends. Without memory for it both end the program. For programs: at the start, before there
/// are other threads; it takes 30 ms.
void prepare_cpu_libraries();

}  // namespace tessera
