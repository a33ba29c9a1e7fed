#pragma once

#include <cstddef>
#include <cstdlib>
#include <vector>

// How many cases a test takes where all of them cost minutes: a sample by `./run test`, more by
// `--ci`, all by `--long`; and fewer under a sanitizer, with which a test takes ten times as long.
namespace tessera::test {

inline bool runs_long_tests() { return std::getenv("TESSERA_LONG_TESTS") != nullptr; }
inline bool runs_ci_tests() {
  return std::getenv("TESSERA_CI_TESTS") != nullptr || runs_long_tests();
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

/// All cases; under a sanitizer every `stride`-th. Where cases are a product of axes, a stride that
/// has no factor in common with their lengths keeps each value of each axis.
template <typename T>
std::vector<T> fewer_if_sanitized(std::vector<T> cases, std::size_t stride) {
  if (!kSanitized) return cases;
  std::vector<T> some;
  for (std::size_t i = 0; i < cases.size(); i += stride) some.push_back(cases[i]);
  return some;
}

}  // namespace tessera::test
