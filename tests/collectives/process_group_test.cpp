#include "tessera/collectives/process_group.h"

#include <gtest/gtest.h>

#include "tessera/core/error.h"

namespace tessera {
namespace {

TEST(SentBytesTest, FollowsNcclTests) {
  EXPECT_EQ(sent_bytes(CollectiveKind::kAllGather, 400, 4), 300);
  EXPECT_EQ(sent_bytes(CollectiveKind::kReduceScatter, 400, 4), 300);
  EXPECT_EQ(sent_bytes(CollectiveKind::kAllToAll, 400, 4), 300);
  EXPECT_EQ(sent_bytes(CollectiveKind::kBroadcast, 400, 4), 300);
  EXPECT_EQ(sent_bytes(CollectiveKind::kAllReduce, 400, 4), 600);
  EXPECT_EQ(sent_bytes(CollectiveKind::kSend, 400, 4), 400);
  EXPECT_EQ(sent_bytes(CollectiveKind::kRecv, 400, 4), 0);
  EXPECT_EQ(sent_bytes(CollectiveKind::kBarrier, 400, 4), 0);
  for (int kind = 0; kind < kCollectiveKinds; ++kind) {
    if (static_cast<CollectiveKind>(kind) == CollectiveKind::kSend) continue;
    EXPECT_EQ(sent_bytes(static_cast<CollectiveKind>(kind), 400, 1), 0);
  }
  EXPECT_THROW(sent_bytes(CollectiveKind::kAllGather, 400, 0), Error);
}

TEST(TrafficTest, Adds) {
  Traffic a;
  a.calls_of(CollectiveKind::kAllGather) = 2;
  a.sent_of(CollectiveKind::kAllGather) = 100;
  a.copied_bytes = 7;
  Traffic b = a;
  b.calls_of(CollectiveKind::kSend) = 1;
  a += b;
  EXPECT_EQ(a.calls_of(CollectiveKind::kAllGather), 4);
  EXPECT_EQ(a.sent_of(CollectiveKind::kAllGather), 200);
  EXPECT_EQ(a.calls_of(CollectiveKind::kSend), 1);
  EXPECT_EQ(a.copied_bytes, 14);
}

TEST(CollectiveKindTest, EveryKindHasAName) {
  EXPECT_EQ(to_string(CollectiveKind::kReduceScatter), "reduce_scatter");
  for (int kind = 0; kind < kCollectiveKinds; ++kind) {
    EXPECT_NE(to_string(static_cast<CollectiveKind>(kind)), "unknown");
  }
}

}  // namespace
}  // namespace tessera
