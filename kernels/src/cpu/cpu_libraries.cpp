#include "tessera/kernels/cpu_libraries.h"

#include <dnnl.h>
#include <execinfo.h>
#include <hwy/targets.h>

#include <array>

#include "tessera/core/address_space.h"
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

void prepare_cpu_libraries() {
  if (!is_address_space_limited()) return;
  void* frame = nullptr;
  backtrace(&frame, 1);
  constexpr int kSize = 16;  // for one number it makes no code
  const std::array<float, kSize * kSize> zeros{};
  std::array<float, kSize * kSize> product{};
  dnnl_sgemm('N', 'N', kSize, kSize, kSize, 1.0F, zeros.data(), kSize, zeros.data(), kSize, 0.0F,
             product.data(), kSize);
}

}  // namespace tessera
