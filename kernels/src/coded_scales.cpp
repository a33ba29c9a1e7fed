#include "coded_scales.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>

#include "dynamic_codes.h"
#include "tessera/kernels/weight_format.h"

namespace tessera {
namespace {

constexpr std::size_t kLanes = 8;   ///< fp32 numbers of a vector of AVX2
constexpr std::size_t kChains = 4;  ///< of vectors that are added up side by side
constexpr std::size_t kStep = kLanes * kChains;
using Sums = std::array<float, kStep>;

void add(Sums& to, const float* from) {
  for (std::size_t i = 0; i < kStep; ++i) to[i] += from[i];
}

/// 32 sums of every 32nd number, each over four levels: a level is added to the next whenever it
/// has 2^power numbers of its own.
Sums cascade(std::span<const float> values) {
  constexpr std::size_t kLevels = 4;
  const std::size_t size = values.size() / kStep;
  const auto log2 = size > 1 ? static_cast<std::size_t>(std::bit_width(size - 1)) : std::size_t{0};
  const std::size_t power = std::max<std::size_t>(4, log2 / kLevels);
  const std::size_t step = std::size_t{1} << power;
  std::array<Sums, kLevels> levels{};
  std::size_t i = 0;
  while (i + step <= size) {
    for (const std::size_t end = i + step; i < end; ++i) add(levels[0], values.data() + i * kStep);
    for (std::size_t level = 1; level < kLevels; ++level) {
      add(levels[level], levels[level - 1].data());
      levels[level - 1] = {};
      if ((i & ((step - 1) << (level * power))) != 0) break;
    }
  }
  for (; i < size; ++i) add(levels[0], values.data() + i * kStep);
  for (std::size_t level = 1; level < kLevels; ++level) add(levels[0], levels[level].data());
  return levels[0];
}

/// The mean as torch.Tensor.mean adds it on a CPU with AVX2 or AVX-512 (ATen's cascade_sum).
float mean_of(std::span<const float> values) {
  const std::size_t vectors = values.size() / kLanes;
  Sums sums = cascade(values);
  for (std::size_t v = values.size() / kStep * kChains; v < vectors; ++v) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) sums[lane] += values[v * kLanes + lane];
  }
  for (std::size_t chain = 1; chain < kChains; ++chain) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) sums[lane] += sums[chain * kLanes + lane];
  }
  float sum = 0.0F;
  for (std::size_t i = vectors * kLanes; i < values.size(); ++i) sum += values[i];
  for (std::size_t lane = 0; lane < kLanes; ++lane) sum += sums[lane];
  return sum / static_cast<float>(values.size());
}

/// The nearest code of the dynamic map for each of 65,536 numbers that are equally far apart in
/// [-1, 1]: bitsandbytes' kernel for CPUs looks up the nearest of those. (That for GPUs does not,
/// and differs where a number is as near to two codes but for 1.5e-5.)
const std::array<std::uint8_t, 65536>& nearest_codes() {
  static const std::array<std::uint8_t, 65536> codes = [] {
    const DynamicCodes& of = dynamic_codes(true);
    std::array<std::uint8_t, 65536> made{};
    for (std::size_t i = 0; i < made.size(); ++i) {
      made[i] = of.code_of(static_cast<float>(i) / 32767.5F - 1.0F);
    }
    return made;
  }();
  return codes;
}

std::uint8_t code_of(float x) {
  const float place = (std::clamp(x, -1.0F, 1.0F) + 1.0F) * 32767.5F + 0.5F;
  return nearest_codes()[static_cast<std::size_t>(place)];
}

}  // namespace

CodedScales code_scales(std::span<const float> scales) {
  CodedScales coded;
  if (scales.empty()) return coded;
  coded.mean = mean_of(scales);
  constexpr auto kGroup = static_cast<std::size_t>(kScaleGroup);
  for (std::size_t begin = 0; begin < scales.size(); begin += kGroup) {
    const auto group = scales.subspan(begin, std::min(kGroup, scales.size() - begin));
    float largest = 0.0F;
    for (const float scale : group) largest = std::max(largest, std::fabs(scale - coded.mean));
    coded.groups.push_back(largest);
    for (const float scale : group) {
      // Code 0 of a group without a scale is bitsandbytes'; it stands for the mean, as any would.
      coded.codes.push_back(largest == 0.0F ? std::uint8_t{0}
                                            : code_of((scale - coded.mean) / largest));
    }
  }
  return coded;
}

}  // namespace tessera
