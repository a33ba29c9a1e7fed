#pragma once

#include <cstdlib>

// How many cases a test takes where all of them cost minutes: a sample by `./run test`, more by
// `--ci`, all by `--long`.
namespace tessera::test {

inline bool runs_long_tests() { return std::getenv("TESSERA_LONG_TESTS") != nullptr; }
inline bool runs_ci_tests() {
  return std::getenv("TESSERA_CI_TESTS") != nullptr || runs_long_tests();
}

}  // namespace tessera::test
