#include "tessera/core/host_work.h"

#include <gtest/gtest.h>

#include "tessera/core/error.h"

namespace tessera {
namespace {

constexpr auto kInitialize = HostTask::kInitialize;

TEST(HostWork, AddsUpWhatRanksHaveToDoAndHaveDone) {
  HostWork work;
  EXPECT_EQ(work.current(), std::nullopt);
  work.begin(kInitialize, 10);
  work.begin(kInitialize, 20);
  work.advance(kInitialize, 3);
  EXPECT_EQ(work.current(), (HostWork::Extent{kInitialize, 3, 30}));
  EXPECT_DOUBLE_EQ(work.current()->share(), 0.1);
  work.begin(HostTask::kTouchPages, 5);
  EXPECT_EQ(work.current()->task, HostTask::kTouchPages);
  work.advance(HostTask::kTouchPages, 5);
  work.advance(kInitialize, 27);
  EXPECT_EQ(work.current(), std::nullopt);
}

TEST(HostWork, IsEndedBeforeTheFirstStepAlone) {
  bool ends = false;
  HostWork work([&ends] { return ends; });
  work.begin(kInitialize, 10);
  work.advance(kInitialize, 1);
  ends = true;
  try {
    work.advance(kInitialize, 1);
    ADD_FAILURE() << "it went on";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kAborted);
  }
  EXPECT_TRUE(work.is_starting());
  work.begin_steps();
  EXPECT_FALSE(work.is_starting());
  EXPECT_EQ(work.current(), std::nullopt) << "steps are shown by others";
  work.advance(kInitialize, 1);
  work.begin(HostTask::kHash, 4);
  work.advance(HostTask::kHash, 1);
  EXPECT_EQ(work.current()->task, HostTask::kHash);
}

}  // namespace
}  // namespace tessera
