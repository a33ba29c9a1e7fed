#pragma once

#include <array>
#include <cstdint>

// What tests ask of the substitute for cuBLASLt.
namespace fake_cublaslt {

/// Algorithms that were looked for since the program began.
std::int64_t heuristics();

/// A product has as many algorithms. They differ in the order in which they add.
inline constexpr int kAlgorithms = 8;

/// Milliseconds that CUDA's events say a call took, by the number of its algorithm, though it ends
/// at once: one that stores the product, perhaps with a bias, and one with another epilogue. No
/// work of this machine takes nearly as long as the differences between those that tests set.
struct Durations {
  std::array<unsigned, kAlgorithms> plain{}, fused{};
};
/// For calls from now on. Until then, what FAKE_CUBLASLT_DURATIONS has: their numbers, in this
/// order; without it one millisecond each.
void set_durations(const Durations& durations);

/// The number of an algorithm, which has the words of a cublasLtMatmulAlgo_t.
int number_of(const std::array<std::uint64_t, 8>& algorithm);

}  // namespace fake_cublaslt
