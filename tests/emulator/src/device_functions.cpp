#include "block.h"

// Barriers, shuffles and votes, as emulator/warp_functions.h calls them.

namespace tessera::emulator {
namespace {

struct ShuffleLane {
  std::uint64_t in[2], out[2];
  unsigned source;
};
struct VoteLane {
  std::uint32_t in, out;
};

template <typename Action>
void for_each_lane(std::uint32_t mask, Action action) {
  for (; mask != 0; mask &= mask - 1) action(static_cast<unsigned>(__builtin_ctz(mask)));
}

}  // namespace

void fault(const char* what, const Location& where) { Block::running().fault(what, where); }

int block_barrier(Vote vote, bool predicate, const Location& where) {
  return Block::running().barrier(vote, predicate, where);
}

void warp_barrier(std::uint32_t mask, const Location& where) {
  Block::running().warp_barrier(mask, where);
}

void shuffle(std::uint32_t mask, void* value, std::size_t bytes, unsigned source,
             const Location& where) {
  ShuffleLane self{.in = {0, 0}, .out = {0, 0}, .source = source};
  // A copy of a size that is not known is a call of memcpy, which ThreadSanitizer would see.
  if (bytes == 4) {
    __builtin_memcpy(self.in, value, 4);
  } else if (bytes == 8) {
    __builtin_memcpy(self.in, value, 8);
  } else if (bytes == 2) {
    __builtin_memcpy(self.in, value, 2);
  } else {
    fault("a shuffle of a type that does not have 2, 4 or 8 bytes", where);
  }
  Block::running().meet(
      mask, Collective::kShuffle, &self,
      [](const std::array<void*, 32>& payload, std::uint32_t lanes) {
        for_each_lane(lanes, [&](unsigned lane) {
          auto* to = static_cast<ShuffleLane*>(payload[lane]);
          const bool present = (lanes >> to->source & 1U) != 0;
          const auto* from = static_cast<ShuffleLane*>(payload[present ? to->source : lane]);
          to->out[0] = present ? from->in[0] : ~std::uint64_t{0};
        });
      },
      where);
  if (bytes == 4) {
    __builtin_memcpy(value, self.out, 4);
  } else if (bytes == 8) {
    __builtin_memcpy(value, self.out, 8);
  } else {
    __builtin_memcpy(value, self.out, 2);
  }
}

std::uint32_t ballot(std::uint32_t mask, bool predicate, const Location& where) {
  VoteLane self{.in = predicate ? 1U : 0U, .out = 0};
  Block::running().meet(
      mask, Collective::kVote, &self,
      [](const std::array<void*, 32>& payload, std::uint32_t lanes) {
        std::uint32_t votes = 0;
        for_each_lane(lanes, [&](unsigned lane) {
          votes |= static_cast<VoteLane*>(payload[lane])->in << lane;
        });
        for_each_lane(lanes,
                      [&](unsigned lane) { static_cast<VoteLane*>(payload[lane])->out = votes; });
      },
      where);
  return self.out;
}

void* static_shared(const void* key, std::size_t bytes, std::size_t alignment,
                    const Location& where) {
  void* object = Block::running().shared().object(key, bytes, alignment);
  if (object == nullptr) fault("more shared memory than the launch may use", where);
  return object;
}

void* dynamic_shared(const Location& where) {
  void* memory = Block::running().dynamic_shared();
  if (memory == nullptr) fault("dynamic shared memory, of which the launch has none,", where);
  return memory;
}

}  // namespace tessera::emulator
