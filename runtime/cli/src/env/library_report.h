#pragma once

#include "env/report_part.h"
#include "tessera/core/cuda_device.h"

namespace tessera::cli {

/// The libraries that this build was made with and has found, and the GPUs.
ReportPart library_report(const CudaStatus& cuda);

/// A GPU for programs.
nlohmann::ordered_json gpu_fields(const CudaGpu& gpu);

}  // namespace tessera::cli
