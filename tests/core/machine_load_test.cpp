#include "tessera/core/machine_load.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "temporary_folder.h"

namespace tessera {
namespace {

MachineReading reading(double clock, double busy, double own) {
  return {.clock = clock, .busy = busy, .own = own, .cpus = 2, .machine_cpus = 2, .runnable = 1};
}

TEST(MachineLoad, OfAMachineWithNothingElseIsNothing) {
  // Two CPUs for ten seconds; ticks of 10 ms count a little more than the process used.
  const MachineLoad load = load_between(reading(0, 100, 50), reading(10, 119.93, 69.9), 2);
  EXPECT_EQ(load.most(), 0.0);
}

TEST(MachineLoad, OthersTakeAShareOfTheCores) {
  const MachineLoad load = load_between(reading(0, 100, 50), reading(10, 120, 60), 2);
  EXPECT_NEAR(load.others, 0.5, 0.01);
  EXPECT_EQ(load.most(), load.others);
}

TEST(MachineLoad, OthersOnCpusBesideTheCoresTakeNothing) {
  MachineReading begin = reading(0, 0, 0), end = reading(10, 70, 20);
  begin.cpus = end.cpus = begin.machine_cpus = end.machine_cpus = 8;
  EXPECT_EQ(load_between(begin, end, 2).others, 0.0);
  EXPECT_NEAR(load_between(begin, end, 8).others, 50.0 / 80.0, 0.01);
}

TEST(MachineLoad, CountsWhatTheHypervisorAndAQuotaTook) {
  MachineReading begin = reading(0, 0, 0), end = reading(10, 15, 15);
  begin.stolen = 3.0;
  end.stolen = 5.0;
  begin.periods = 100;
  end.periods = 200;
  begin.throttled = 10;
  end.throttled = 35;
  const MachineLoad load = load_between(begin, end, 2);
  EXPECT_DOUBLE_EQ(load.stolen, 0.1);
  EXPECT_DOUBLE_EQ(load.throttled, 0.25);
  EXPECT_EQ(load.others, 0.0);
}

TEST(MachineLoad, ThreadsThatFindNoCoreWait) {
  MachineReading end = reading(1, 0, 0);
  const auto waiting = [&](int runnable, int cores) {
    end.runnable = runnable;
    return load_between(reading(0, 0, 0), end, cores).waiting;
  };
  EXPECT_EQ(waiting(1, 2), 0.0) << "the one that reads";
  EXPECT_EQ(waiting(2, 2), 0.5);
  EXPECT_EQ(waiting(2, 1), 0.0) << "it has the other CPU";
  EXPECT_EQ(waiting(9, 2), 1.0);
  EXPECT_EQ(waiting(0, 2), 0.0) << "not known";
}

TEST(MachineLoad, IsWatchedOverSeveralLooks) {
  // Every second look finds a program that runs; over all of them it had a quarter of the cores.
  int looks = 0;
  const auto read = [&] {
    MachineReading now = reading(looks, 0.5 * looks, 0.0);
    now.runnable = looks % 2 == 0 ? 2 : 1;
    return now;
  };
  const MachineLoad load = watch_machine(2, read, [&] { ++looks; });
  EXPECT_NEAR(load.others, 0.25, 0.01);
  EXPECT_DOUBLE_EQ(load.waiting, 0.25);
}

TEST(MachineReading, IsWhatLinuxSays) {
  const test::TemporaryFolder folder;
  std::string stat = "cpu  1 1 1 1 1 1 1 1 0 0\n";
  // More CPUs than any machine has, so that those of this process are among them.
  for (int cpu = 0; cpu < 8192; ++cpu) {
    stat += "cpu" + std::to_string(cpu) + " 100 200 300 1000 50 30 70 40 5 5\n";
  }
  folder.write("cgroup/job/cpu.stat",
               "usage_usec 5\nnr_periods 20\nnr_throttled 4\nthrottled_usec 9\n");
  const MachinePlaces places{.stat = folder.write("stat", stat + "intr 1 2\n"),
                             .loadavg = folder.write("loadavg", "0.59 6.65 10.98 3/92 20720\n"),
                             .cgroup = {.membership = folder.write("proc", "0::/job/step\n"),
                                        .root = folder.path("cgroup")}};
  const MachineReading read = read_machine(places);
  EXPECT_EQ(read.machine_cpus, 8192);
  EXPECT_GE(read.cpus, 1);
  const double tick = 1.0 / static_cast<double>(sysconf(_SC_CLK_TCK));
  EXPECT_NEAR(read.busy / read.cpus, 700 * tick, 1e-6);
  EXPECT_NEAR(read.stolen / read.cpus, 40 * tick, 1e-6);
  EXPECT_EQ(read.runnable, 3);
  EXPECT_EQ(read.periods, 20);
  EXPECT_EQ(read.throttled, 4);
  EXPECT_GT(read.own, 0.0);

  const std::string none = folder.path("none");
  const MachineReading nothing = read_machine({none, none, {.membership = none, .root = none}});
  EXPECT_EQ(nothing.busy, 0.0);
  EXPECT_EQ(nothing.runnable, 0);
  EXPECT_EQ(load_between(nothing, nothing, 2).most(), 0.0);
}

}  // namespace
}  // namespace tessera
