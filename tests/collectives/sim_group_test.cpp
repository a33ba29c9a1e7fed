#include "tessera/collectives/sim_group.h"

#include <gtest/gtest.h>

#include <string>

#include "tessera/core/error.h"
#include "tessera/core/memory.h"
#include "tessera/core/sim_device.h"
#include "tessera/core/tensor.h"

namespace tessera {
namespace {

TEST(SimGroupTest, CountsWithoutTouchingMemory) {
  SimDevice device;
  Memory memory(device);
  const auto stream = device.create_stream({.name = "gather"});
  const auto group = make_sim_group(3, 10000);
  const Tensor whole = Tensor::empty(memory, Shape{1000000000}, DType::kBFloat16,
                                     MemoryCategory::kUnshardedParameters, "slot");
  const TensorView part = whole.view().narrow(0, 300000, 100000);
  group->all_gather(part, whole, *stream);
  group->reduce_scatter(whole, part, false, *stream);
  stream->synchronize();
  const std::int64_t sent = 2000000000LL / 10000 * 9999;
  EXPECT_EQ(group->traffic().sent_of(CollectiveKind::kAllGather), sent);
  EXPECT_EQ(group->traffic().sent_of(CollectiveKind::kReduceScatter), sent);
  ASSERT_EQ(device.spans().size(), 2U);
  EXPECT_EQ(device.spans()[1].name, "reduce_scatter");
  EXPECT_EQ(device.spans()[1].end, 0.0);  // time is the caller's to charge
}

TEST(SimGroupTest, ChecksArgumentsLikeARealGroup) {
  SimDevice device;
  const auto stream = device.create_stream({.name = "s"});
  const auto group = make_sim_group(0, 4);
  const TensorView data(device.allocate(400), DType::kFloat32, Shape{100});
  EXPECT_THROW(group->all_gather(data, data, *stream), Error);
  EXPECT_THROW(group->broadcast(data, 4, *stream), Error);
  EXPECT_EQ(group->traffic(), Traffic{});
  EXPECT_THROW(make_sim_group(4, 4), Error);
}

TEST(SimGroupTest, SplitExplainsWhatToDo) {
  const auto group = make_sim_group(0, 4);
  try {
    group->split(0, 0);
    FAIL() << "did not throw";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find("make_sim_group"), std::string::npos);
  }
}

TEST(SimGroupTest, AbortFailsLaterOperationsWithTheFirstReason) {
  SimDevice device;
  const auto stream = device.create_stream({.name = "s"});
  const auto group = make_sim_group(0, 4);
  group->abort("first");
  group->abort("second");
  group->barrier(*stream);
  try {
    stream->synchronize();
    FAIL() << "did not throw";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kAborted);
    EXPECT_NE(std::string(error.what()).find("first"), std::string::npos);
  }
}

}  // namespace
}  // namespace tessera
