#pragma once

#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "collectives/ranks.h"

namespace tessera::test {

/// One rank's end of the messages from a rank to its neighbour: a group of two and a stream that
/// nothing else uses.
struct Messages {
  int way;  ///< a number for the pair and the direction
  bool sends;
  std::unique_ptr<ProcessGroup> group;
  std::unique_ptr<Stream> stream;
  std::vector<Vector<float>> buffers{};  ///< by round
};

/// Splits `whole` as the ranks of a pipeline do: for each pair of neighbours and each direction the
/// two have one color, and every other rank has one of its own.
inline std::vector<Messages> split_into_pairs(ProcessGroup& whole) {
  const int rank = whole.rank();
  std::vector<Messages> own;
  for (int way = 0; way < 2 * (whole.size() - 1); ++way) {
    const int low = way / 2;
    const bool takes_part = rank == low || rank == low + 1;
    auto group = whole.split(takes_part ? 0 : rank + 1, rank);
    EXPECT_EQ(group->size(), takes_part ? 2 : 1);
    if (!takes_part) continue;
    EXPECT_EQ(group->rank(), rank - low);
    const auto seed = static_cast<unsigned>(1000 * rank + way);
    own.push_back({.way = way,
                   .sends = rank - low == way % 2,
                   .group = std::move(group),
                   .stream = device_under_test().create_stream(
                       {.name = "messages", .before_task = random_delays(seed)})});
  }
  return own;
}

/// All pairs of neighbours exchange messages of several sizes in both directions at once, with
/// random delays before each call and each task. Each has to arrive with its own bits.
inline void exchange_between_neighbours(Groups& groups) {
  constexpr std::array<std::int64_t, 6> kMessages{1000, 0, 1, 10007, 64, 3};
  constexpr int kRounds = 24;
  expect_success(groups, [&](RankContext c) {
    std::vector<Messages> own = split_into_pairs(c.group);
    const auto delay = random_delays(static_cast<unsigned>(c.rank()));
    const auto sent = [&](int way, int round) {
      const auto i = static_cast<std::size_t>(way + round) % kMessages.size();
      return values<float>(random_value, way * kRounds + round, kMessages[i]);
    };
    for (int round = 0; round < kRounds; ++round) {
      for (Messages& messages : own) {
        Vector<float>& buffer = messages.buffers.emplace_back(sent(messages.way, round));
        if (!messages.sends) buffer.assign(buffer.size(), 0.0F);
      }
    }
    for (int round = 0; round < kRounds; ++round) {
      for (Messages& messages : own) {
        const TensorView data = view_of(messages.buffers[static_cast<std::size_t>(round)]);
        const int other = 1 - messages.group->rank();
        delay();
        if (messages.sends) messages.group->send(data, other, *messages.stream);
        if (!messages.sends) messages.group->recv(data, other, *messages.stream);
      }
    }
    for (Messages& messages : own) messages.stream->synchronize();
    for (const Messages& messages : own) {
      const auto kind = messages.sends ? CollectiveKind::kSend : CollectiveKind::kRecv;
      EXPECT_EQ(messages.group->traffic().calls_of(kind), kRounds);
      for (int round = 0; round < kRounds; ++round) {
        expect_same_bits(messages.buffers[static_cast<std::size_t>(round)],
                         sent(messages.way, round), concat("way ", messages.way, " #", round));
      }
    }
  });
}

}  // namespace tessera::test
