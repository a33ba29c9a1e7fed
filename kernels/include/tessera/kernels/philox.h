#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <string_view>

#include "tessera/kernels/kernel_table.h"

// Counter-based random numbers: Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel Random
// Numbers: As Easy as 1, 2, 3" (SC 2011). Element i of the stream named by a RandomKey is word i %
// 4 of the block with counter i / 4, so anybody can draw any element without its predecessors.
//
// The functions here are the definition. Vector and device kernels must give the same bits, which
// is why every rounding below is written out: products that feed a sum are std::fma.
namespace tessera {

using PhiloxCounter = std::array<std::uint32_t, 4>;
using PhiloxKey = std::array<std::uint32_t, 2>;

inline constexpr std::uint32_t kPhiloxMultiplier0 = 0xD2511F53U;
inline constexpr std::uint32_t kPhiloxMultiplier1 = 0xCD9E8D57U;
inline constexpr std::uint32_t kPhiloxWeyl0 = 0x9E3779B9U;  // golden ratio
inline constexpr std::uint32_t kPhiloxWeyl1 = 0xBB67AE85U;  // sqrt(3) - 1
inline constexpr int kPhiloxRounds = 10;

/// Four random words: the bijection of `counter` that `key` selects.
constexpr PhiloxCounter philox4x32(PhiloxCounter counter, PhiloxKey key) {
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const std::uint64_t product0 = std::uint64_t{kPhiloxMultiplier0} * counter[0];
    const std::uint64_t product1 = std::uint64_t{kPhiloxMultiplier1} * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<std::uint32_t>(product0)};
    key = {key[0] + kPhiloxWeyl0, key[1] + kPhiloxWeyl1};
  }
  return counter;
}

/// The seed is the key ...
constexpr PhiloxKey philox_key(RandomKey key) {
  return {static_cast<std::uint32_t>(key.seed), static_cast<std::uint32_t>(key.seed >> 32)};
}

/// ... and the stream is the upper half of the counter: 2^64 streams of 2^66 words.
constexpr PhiloxCounter philox_counter(RandomKey key, std::uint64_t block) {
  return {static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
          static_cast<std::uint32_t>(key.stream), static_cast<std::uint32_t>(key.stream >> 32)};
}

/// The random word of element `index` (>= 0).
constexpr std::uint32_t random_word(RandomKey key, std::int64_t index) {
  const auto i = static_cast<std::uint64_t>(index);
  return philox4x32(philox_counter(key, i / 4), philox_key(key))[i % 4];
}

/// Uniform in (0, 1], as small as 2^-32: fit for a logarithm.
inline float uniform_to_one(std::uint32_t word) {
  return std::fma(static_cast<float>(word >> 1), 0x1p-31F, 0x1p-32F);
}

/// The bound that a word must be below for an event of `probability` in [0, 1) to happen.
constexpr std::uint32_t probability_threshold(float probability) {
  return static_cast<std::uint32_t>(static_cast<double>(probability) * 0x1p32);
}

/// The bits of a bf16 next to `value`, above or below it at random, so that the expectation is
/// `value`: the lower half of its bits is the probability of the larger magnitude, in units of
/// 2^-16. NaN stays NaN and infinity stays; what is beyond the largest bf16 may become infinity.
constexpr std::uint16_t bf16_rounded_at_random(float value, std::uint32_t word) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return static_cast<std::uint16_t>((bits >> 16) | 0x40U);
  return static_cast<std::uint16_t>((bits + (word >> 16)) >> 16);
}

/// FNV-1a: a stable 64-bit hash, for RandomKey::stream.
constexpr std::uint64_t stream_of(std::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  return hash;
}

/// The stream of what draws anew in every step (stochastic rounding): FNV-1a of the name followed
/// by the eight bytes of `number`, lowest first.
constexpr std::uint64_t stream_of(std::string_view name, std::uint64_t number) {
  std::uint64_t hash = stream_of(name);
  for (int byte = 0; byte < 8; ++byte) {
    hash = (hash ^ ((number >> (8 * byte)) & 0xffU)) * 0x100000001b3U;
  }
  return hash;
}

/// The last step of splitmix64, to be chained: every bit of both arguments reaches every bit of the
/// result.
constexpr std::uint64_t mix_bits(std::uint64_t state, std::uint64_t word) {
  std::uint64_t z = state + word + 0x9e3779b97f4a7c15U;
  z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27U)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31U);
}

/// The stream of a layer's dropout. Its elements are those of all samples of a run, one sample
/// after another.
constexpr std::uint64_t dropout_stream(std::uint64_t layer) { return mix_bits(0, layer); }

/// The key of a layer's `call`-th mask, counted from 0, of the layer's key.
constexpr RandomKey key_of_call(RandomKey key, std::uint64_t call) {
  return {.seed = key.seed, .stream = mix_bits(key.stream, call)};
}

/// A key of (kRandomKeyWords) int64 in memory ...
constexpr RandomKey load_random_key(const std::int64_t* words) {
  return {.seed = static_cast<std::uint64_t>(words[0]),
          .stream = static_cast<std::uint64_t>(words[1])};
}

/// ... and its way there.
constexpr void store_random_key(RandomKey key, std::int64_t* words) {
  words[0] = static_cast<std::int64_t>(key.seed);
  words[1] = static_cast<std::int64_t>(key.stream);
}

/// Polynomials of log, sin and cos on the reduced ranges below (Moshier's Cephes, single
/// precision).
struct NormalPolynomials {
  static constexpr std::array<float, 9> kLog{
      7.0376836292e-2F,  -1.1514610310e-1F, 1.1676998740e-1F,  -1.2420140846e-1F, 1.4249322787e-1F,
      -1.6668057665e-1F, 2.0000714765e-1F,  -2.4999993993e-1F, 3.3333331174e-1F};
  static constexpr std::array<float, 3> kSin{-1.9515295891e-4F, 8.3321608736e-3F,
                                             -1.6666654611e-1F};
  static constexpr std::array<float, 3> kCos{2.443315711809948e-5F, -1.388731625493765e-3F,
                                             4.166664568298827e-2F};
  static constexpr float kLn2High = 0.693359375F;
  static constexpr float kLn2Low = -2.12194440e-4F;
  static constexpr float kRadians = 0x1.921fb6p-30F;       // 2 pi / 2^32, radians of one angle unit
  static constexpr std::uint32_t kSqrtHalf = 0x3f3504f3U;  // bits of sqrt(1/2)
};

/// ln x for positive normal x.
inline float log_for_normal(float x) {
  using P = NormalPolynomials;
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x) - P::kSqrtHalf;
  const auto exponent = static_cast<float>(static_cast<std::int32_t>(bits) >> 23);
  const float f = std::bit_cast<float>((bits & 0x7fffffU) + P::kSqrtHalf) - 1.0F;
  float p = P::kLog[0];
  for (std::size_t i = 1; i < P::kLog.size(); ++i) p = std::fma(p, f, P::kLog[i]);
  const float square = f * f;
  float y = std::fma(p, f * square, exponent * P::kLn2Low);
  y = std::fma(-0.5F, square, y);
  return std::fma(exponent, P::kLn2High, f + y);
}

/// The Box-Muller pair of two random words: two independent standard normals.
inline std::array<float, 2> normal_pair(std::uint32_t radius_word, std::uint32_t angle_word) {
  using P = NormalPolynomials;
  const float radius = std::sqrt(-2.0F * log_for_normal(uniform_to_one(radius_word)));
  // A full turn is 2^32 units: the nearest quarter turn and what is left are exact integers.
  const std::uint32_t quadrant = (angle_word + 0x20000000U) >> 30;
  const auto rest = static_cast<std::int32_t>(angle_word - (quadrant << 30));
  const float x = static_cast<float>(rest) * P::kRadians;  // in [-pi / 4, pi / 4]
  const float z = x * x;
  const float s = std::fma(z * x, std::fma(std::fma(P::kSin[0], z, P::kSin[1]), z, P::kSin[2]), x);
  const float q = std::fma(std::fma(P::kCos[0], z, P::kCos[1]), z, P::kCos[2]);
  const float c = std::fma(z * z, q, std::fma(-0.5F, z, 1.0F));
  const bool swap = (quadrant & 1U) != 0;
  const float cosine = (((quadrant + 1U) & 2U) != 0 ? -1.0F : 1.0F) * (swap ? s : c);
  const float sine = ((quadrant & 2U) != 0 ? -1.0F : 1.0F) * (swap ? c : s);
  return {radius * cosine, radius * sine};
}

/// The standard normal of element `index`: elements 4b, 4b+1 come from words 0 and 1 of block b,
/// elements 4b+2, 4b+3 from words 2 and 3.
inline float random_normal(RandomKey key, std::int64_t index) {
  const auto i = static_cast<std::uint64_t>(index);
  const PhiloxCounter words = philox4x32(philox_counter(key, i / 4), philox_key(key));
  const std::size_t pair = i % 4 / 2;
  return normal_pair(words[2 * pair], words[2 * pair + 1])[i % 2];
}

}  // namespace tessera
