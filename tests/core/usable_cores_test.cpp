#include "tessera/core/usable_cores.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

namespace tessera {
namespace {

namespace fs = std::filesystem;

class UsableCores : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) /
              ("tessera_cores_" + std::to_string(getpid()) + "_" +
               ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  void write(const std::string& name, const std::string& text) const {
    fs::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name) << text;
  }
  void join(const std::string& groups) const { write("proc", groups); }
  int cores() const {
    return cgroup_cores({.membership = folder_ / "proc", .root = folder_ / "cgroup"});
  }

 private:
  fs::path folder_;
};

TEST_F(UsableCores, NoGroupsAreNoQuota) {
  EXPECT_EQ(cores(), 0);
  join("nonsense\n0::/job\n7:memory:/job\n");
  write("cgroup/job/cpu.max", "max 100000\n");
  EXPECT_EQ(cores(), 0);
}

TEST_F(UsableCores, TheSmallestQuotaAboveAProcessCounts) {
  join("0::/batch/job/step\n");
  write("cgroup/batch/cpu.max", "300000 100000\n");
  EXPECT_EQ(cores(), 3);
  write("cgroup/batch/job/cpu.max", "800000 100000\n");
  write("cgroup/batch/job/step/cpu.max", "max 100000\n");
  EXPECT_EQ(cores(), 3);
  write("cgroup/batch/job/step/cpu.max", "250000 100000\n");
  EXPECT_EQ(cores(), 2);
  write("cgroup/batch/job/step/cpu.max", "20000 100000\n");  // a fifth of one
  EXPECT_EQ(cores(), 1);
}

TEST_F(UsableCores, AContainerSeesItsGroupAsTheRoot) {
  join("0::/\n");
  write("cgroup/cpu.max", "400000 100000\n");
  EXPECT_EQ(cores(), 4);
  join("0::/../../elsewhere\n");
  EXPECT_EQ(cores(), 4);
}

TEST_F(UsableCores, Version1IsReadToo) {
  join("9:memory:/docker/1\n4:cpu,cpuacct:/docker/1\n3:cpuset:/docker/1\n1:name=systemd:/\n");
  write("cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  write("cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cores(), 0);
  write("cgroup/cpu,cpuacct/docker/1/cpu.cfs_quota_us", "150000\n");
  write("cgroup/cpu,cpuacct/docker/1/cpu.cfs_period_us", "50000\n");
  EXPECT_EQ(cores(), 3);
}

TEST_F(UsableCores, Version1MayBeMountedAsCpuAndAsTheRoot) {
  join("4:cpuacct,cpu:/docker/1\n0::/docker/1\n");
  write("cgroup/cpu/cpu.cfs_quota_us", "200000\n");
  write("cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cores(), 2);
}

TEST_F(UsableCores, FollowsTheAffinityMask) {
  int seen = 0;
  std::thread([&seen] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    seen = usable_cores();
  }).join();
  EXPECT_EQ(seen, 1);
  EXPECT_GE(usable_cores(), 1);
}

}  // namespace
}  // namespace tessera
