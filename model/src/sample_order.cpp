#include "tessera/model/sample_order.h"

#include "tessera/core/error.h"

namespace tessera {
namespace {

constexpr std::int64_t kMaxSamples = std::int64_t{1} << 62;
// Small domains need more rounds than large ones before all permutations come up about evenly; the
// tests measure it on five elements.
constexpr std::uint64_t kRounds = 10;

/// A bijection of 64-bit words whose output bits all depend on all input bits: the finaliser of
/// splitmix64 (Steele, Lea and Flood 2014).
std::uint64_t mix(std::uint64_t word) {
  word += 0x9e3779b97f4a7c15U;
  word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9U;
  word = (word ^ (word >> 27)) * 0x94d049bb133111ebU;
  return word ^ (word >> 31);
}

/// A keyed permutation of words of 2 * half_bits bits: a balanced Feistel network, which is a
/// bijection whatever its round function.
std::uint64_t permute(std::uint64_t word, std::uint64_t key, int half_bits) {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits) - 1;
  std::uint64_t left = word >> half_bits;
  std::uint64_t right = word & mask;
  for (std::uint64_t round = 0; round < kRounds; ++round) {
    const std::uint64_t next = left ^ (mix(mix(key + round) ^ right) & mask);
    left = right;
    right = next;
  }
  return (left << half_bits) | right;
}

}  // namespace

SampleOrder::SampleOrder(std::int64_t samples, std::uint64_t seed)
    : samples_(samples), seed_(seed), half_bits_(1) {
  require(samples > 0 && samples <= kMaxSamples, ErrorCode::kInvalidArgument,
          "an order of samples needs between 1 and 2^62 of them, not ", samples);
  while ((std::int64_t{1} << (2 * half_bits_)) < samples) ++half_bits_;
}

std::int64_t SampleOrder::index(std::int64_t epoch, std::int64_t position) const {
  require(position >= 0 && position < samples_, ErrorCode::kInvalidArgument, "position ", position,
          " is outside of an epoch of ", samples_, " samples");
  require(epoch >= 0, ErrorCode::kInvalidArgument, "epoch ", epoch, " is negative");
  const std::uint64_t key = mix(mix(seed_) ^ static_cast<std::uint64_t>(epoch));
  // The network permutes a power of four that is below 4 * samples. Following a cycle until it is
  // back inside of [0, samples) restricts it to a permutation of those.
  auto word = static_cast<std::uint64_t>(position);
  do {
    word = permute(word, key, half_bits_);
  } while (word >= static_cast<std::uint64_t>(samples_));
  return static_cast<std::int64_t>(word);
}

}  // namespace tessera
