#include "world/process_watch.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace tessera {
namespace {

class ProcessWatchTest : public ::testing::TestWithParam<bool> {};

TEST_P(ProcessWatchTest, TellsOfAnEndBeforeAnybodyWaitsForIt) {
  const int file = open("/dev/null", O_RDONLY);
  const pid_t child = fork();
  if (child == 0) {
    while (true) pause();
  }
  close(file);  // the child's remains
  const ProcessWatch watch(child, file, GetParam());
  EXPECT_FALSE(watch.ended());
  kill(child, SIGKILL);
  siginfo_t end{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &end, WEXITED | WNOWAIT), 0);
  EXPECT_TRUE(watch.ended());
  waitpid(child, nullptr, 0);
  EXPECT_TRUE(watch.ended());
}

INSTANTIATE_TEST_SUITE_P(ByHandle, ProcessWatchTest, ::testing::Values(true));
INSTANTIATE_TEST_SUITE_P(ByFile, ProcessWatchTest, ::testing::Values(false));

}  // namespace
}  // namespace tessera
