#pragma once

#include <string>

#include "tessera/compat/config_file.h"

namespace tessera::cli {

/// Checks the GPUs that processes of this machine may use: a list as CUDA_VISIBLE_DEVICES takes it,
/// "all" or empty. `device`: of the run, "auto", "cpu" or "cuda". If no GPU will be used, says on
/// stderr that the list has no effect. Throws Error{kUnavailable} if the run asks for CUDA and none
/// can be used, and Error{kConfig} that names the GPUs there are if one of the list is not there.
void check_gpus(const Stated<std::string>& list, const std::string& device);

}  // namespace tessera::cli
