#pragma once

#include <cstdint>

namespace tessera::emulator {

/// In which order threads run that may run in any: what the environment variable
/// TESSERA_SIMT_ORDER says. 0, the default: by number. 1: from the last to the first. Greater: at
/// random, with that seed.
class Order {
 public:
  static Order from_environment();
  explicit Order(unsigned kind) : kind_(kind), state_(kind) {}

  /// One of the set bits of `lanes`, which is not 0.
  unsigned pick(std::uint32_t lanes);
  /// The warp to look at as the `turn`-th of `count`, where a round begins with turn 0.
  unsigned warp(unsigned turn, unsigned count);
  /// The block to run as the `turn`-th of `count`. Every block has its turn.
  std::uint64_t block(std::uint64_t turn, std::uint64_t count) const;
  /// Whether an asynchronous copy arrives at once, or no earlier than it must.
  bool copy_at_once();

 private:
  std::uint32_t random();

  unsigned kind_;
  unsigned first_warp_ = 0;
  std::uint32_t state_;
};

}  // namespace tessera::emulator
