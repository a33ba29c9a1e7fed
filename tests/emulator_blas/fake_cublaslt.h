#pragma once

#include <array>
#include <cstdint>

// What tests ask of the substitute for cuBLASLt.
namespace fake_cublaslt {

/// Algorithms that were looked for since the program began.
std::int64_t heuristics();

/// A product has as many algorithms. They differ in the order in which they add.
inline constexpr int kAlgorithms = 8;

/// Microseconds that a call takes at least, by the number of its algorithm: one that stores the
/// product, perhaps with a bias, and one with another epilogue.
struct Delays {
  std::array<unsigned, kAlgorithms> plain{}, fused{};
};
/// For calls from now on. Until then, what FAKE_CUBLASLT_DELAYS has: their numbers, in this order.
void set_delays(const Delays& delays);

/// The number of an algorithm, which has the words of a cublasLtMatmulAlgo_t.
int number_of(const std::array<std::uint64_t, 8>& algorithm);

}  // namespace fake_cublaslt
