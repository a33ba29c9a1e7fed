#include "tessera/kernels/dynamic_map.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace tessera {
namespace {

constexpr int kDecades = 7;

/// A bound between `parts` equal parts of [0.1, 1], as torch.linspace has it: from the nearer end,
/// rounded once.
float bound(int i, int parts) {
  const float step = (1.0F - 0.1F) / static_cast<float>(parts);
  return i < (parts + 1) / 2 ? std::fma(step, static_cast<float>(i), 0.1F)
                             : std::fma(-step, static_cast<float>(parts - i), 1.0F);
}

std::array<float, 256> make_map(bool is_signed) {
  constexpr std::array<float, kDecades> kScales{1e-6F, 1e-5F, 1e-4F, 1e-3F, 1e-2F, 1e-1F, 1.0F};
  std::array<float, 256> map{};  // the 0 is one of those that stay
  std::size_t size = 0;
  for (std::size_t decade = 0; decade < kScales.size(); ++decade) {
    const int parts = 1 << (decade + (is_signed ? 0 : 1));
    for (int i = 0; i < parts; ++i) {
      const float middle = (bound(i, parts) + bound(i + 1, parts)) / 2.0F * kScales[decade];
      map[size++] = middle;
      if (is_signed) map[size++] = -middle;
    }
  }
  map[size++] = 1.0F;
  std::ranges::sort(map);
  return map;
}

}  // namespace

const std::array<float, 256>& dynamic_map(bool is_signed) {
  static const std::array<float, 256> with_signs = make_map(true);
  static const std::array<float, 256> without = make_map(false);
  return is_signed ? with_signs : without;
}

}  // namespace tessera
