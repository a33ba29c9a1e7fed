#include "tessera/kernels/cpu_libraries.h"

#include <dnnl.h>
#include <hwy/targets.h>

#include "tessera/core/error.h"

namespace tessera {

std::string onednn_version() {
  const dnnl_version_t* version = dnnl_version();
  return concat(version->major, ".", version->minor, ".", version->patch);
}

std::string vector_target() {
  // The lowest bit is the best target.
  const std::int64_t targets = hwy::SupportedTargets();
  return hwy::TargetName(targets & -targets);
}

}  // namespace tessera
