// Groups that span processes, tested from inside of all of them at once. ctest starts this program
// under mpirun, or with --processes to fork; see CMakeLists.txt.

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <fstream>
#include <iostream>

#include "collectives/ranks.h"
#include "mpi/processes.h"
#include "tessera/core/cpu_device.h"

// The tests of thread groups (thread_group_test.cpp, thread_group_split_test.cpp) are part of this
// program, too: here a group's ends are those of this process, and its peers' are in others.
namespace tessera {
namespace {

/// Made in main; every test uses it, in the same order in all processes.
World* world = nullptr;
Device* device = nullptr;
bool over_mpi = false;

/// This process's ends of a group of the world's first `size` ranks, none if it has no such rank,
/// or if there are not so many.
test::Groups first_ranks(int size) {
  const auto& ends = world->groups();
  test::Groups all(ends.size());
  test::Groups result;
  if (size > world->size()) return result;
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    threads.emplace_back(
        [&, i] { all[i] = ends[i]->split(ends[i]->rank() < size ? 0 : 1, ends[i]->rank()); });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::size_t i = 0; i < ends.size(); ++i) {
    if (ends[i]->rank() < size) result.push_back(std::move(all[i]));
  }
  return result;
}

}  // namespace

namespace test {

Groups make_groups(int size, std::chrono::milliseconds) { return first_ranks(size); }
Device& device_under_test() { return *device; }
void* allocate(std::size_t bytes) { return device->allocate(bytes); }
void deallocate(void* address, std::size_t bytes) { device->deallocate(address, bytes); }
void delay_device(std::chrono::microseconds) {}  // run_ranks delays the lanes themselves
bool testing_cuda() { return false; }
bool testing_nccl() { return false; }
void enqueue(Stream& stream, std::function<void()> task) {
  stream.submit({.name = "task"}, std::move(task));
}

}  // namespace test

namespace {

using test::expect_same_bits;
using test::expect_success;
using test::Groups;
using test::ordered_sum_oracle;
using test::random_value;
using test::RankContext;
using test::values;
using test::Vector;
using test::view_of;

/// The device of the tests: of the world, or one whose memory nobody else can read.
Device* own_device();

/// True if every rank can read every other one's memory.
bool all_near() { return world->ranks_on_host() == world->size(); }

TEST(WorldTest, NumbersItsRanks) {
  EXPECT_EQ(world->size(), world->processes() * world->local_ranks());
  EXPECT_EQ(world->first_rank(), world->process() * world->local_ranks());
  ASSERT_EQ(world->groups().size(), static_cast<std::size_t>(world->local_ranks()));
  for (int i = 0; i < world->local_ranks(); ++i) {
    EXPECT_EQ(world->groups()[static_cast<std::size_t>(i)]->rank(), world->first_rank() + i);
  }
}

/// What this process has mapped at an address, as the system tells it: a line of /proc/self/maps.
std::string mapping_of(const void* address) {
  const auto wanted = reinterpret_cast<std::uintptr_t>(address);
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::size_t parsed = 0;
    const std::uintptr_t begin = std::stoull(line, &parsed, 16);
    const std::uintptr_t end = std::stoull(line.substr(parsed + 1), nullptr, 16);
    if (begin <= wanted && wanted < end) return line;
  }
  return "nothing";
}

TEST(WorldTest, BuffersLieInTheWindowOfMpi) {
  const bool neighbours = world->ranks_on_host() > world->local_ranks();
  constexpr std::size_t kBytes = 1 << 16;
  const auto shared = world->make_device();
  void* const buffer = shared->allocate(kBytes);
  const std::string mapping = mapping_of(buffer);
  if (over_mpi && neighbours) {
    EXPECT_EQ(mapping.find("memfd"), std::string::npos) << mapping;
    EXPECT_NE(mapping.find("/dev/shm"), std::string::npos) << mapping;
  } else {
    EXPECT_NE(mapping.find("memfd:tessera"), std::string::npos) << mapping;
  }
  shared->deallocate(buffer, kBytes);
}

TEST(WorldTest, LargeBuffersAreReadWhereTheyLie) {
  constexpr std::int64_t kNumel = 70000;
  const auto shared = world->make_device();
  device = shared.get();
  Groups groups = first_ranks(world->size());
  expect_success(groups, [&](RankContext c) {
    const int n = c.size();
    Vector<float> part = values<float>(random_value, c.rank(), kNumel);
    Vector<float> whole = values<float>(random_value, c.rank(), kNumel * n);
    Vector<float> sum = values<float>(random_value, c.rank(), kNumel);
    Vector<float> out(kNumel);
    c.group.reduce_scatter(view_of(whole), view_of(out), false, c.stream);
    c.group.all_reduce(view_of(sum), c.stream);
    c.group.all_gather(view_of(part), view_of(whole), c.stream);
    c.group.broadcast(view_of(part), n - 1, c.stream);
    c.stream.synchronize();
    expect_same_bits(out,
                     ordered_sum_oracle<float, float>(random_value, n, c.rank() * kNumel,
                                                      (c.rank() + 1) * kNumel, nullptr),
                     "reduce_scatter");
    expect_same_bits(sum, ordered_sum_oracle<float, float>(random_value, n, 0, kNumel, nullptr),
                     "all_reduce");
    for (int r = 0; r < n; ++r) {
      expect_same_bits({whole.begin() + r * kNumel, whole.begin() + (r + 1) * kNumel},
                       values<float>(random_value, r, kNumel), "all_gather");
    }
    expect_same_bits(part, values<float>(random_value, n - 1, kNumel), "broadcast");
    if (all_near()) {
      EXPECT_EQ(c.group.traffic().copied_bytes, 0);
    }
  });
  groups.clear();
  device = own_device();
}

TEST(WorldTest, StagingIsCounted) {
  if (!all_near() || world->size() == 1) GTEST_SKIP() << "all ranks must share memory";
  const auto private_device = make_cpu_device();
  device = private_device.get();
  Groups groups = first_ranks(world->size());
  expect_success(groups, [&](RankContext c) {
    Vector<float> part(25);
    Vector<float> whole(25 * static_cast<std::size_t>(c.size()));
    c.group.all_gather(view_of(part), view_of(whole), c.stream);
    c.stream.synchronize();
    EXPECT_EQ(c.group.traffic().copied_bytes, 100);  // the part, in
    c.group.reduce_scatter(view_of(whole), view_of(part), true, c.stream);
    c.stream.synchronize();
    EXPECT_EQ(c.group.traffic().copied_bytes, 100 + 100 * c.size());
    EXPECT_EQ(c.group.traffic().calls_of(CollectiveKind::kAllGather), 1);
    EXPECT_EQ(c.group.traffic().sent_of(CollectiveKind::kAllGather), 100 * (c.size() - 1));
  });
  device = own_device();
}

TEST(WorldTest, SplitsOfSplitsAndReversedOrders) {
  Groups groups = first_ranks(world->size());
  expect_success(groups, [&](RankContext c) {
    const int n = c.size();
    const auto half = c.group.split(c.rank() % 2, -c.rank());
    EXPECT_EQ(half->size(), (n + 1 - c.rank() % 2) / 2);
    const auto reversed = half->split(0, -half->rank());
    Vector<std::int64_t> own{c.rank()};
    Vector<std::int64_t> all(static_cast<std::size_t>(reversed->size()));
    reversed->all_gather(view_of(own), view_of(all), c.stream);
    c.stream.synchronize();
    Vector<std::int64_t> expected;
    for (int r = c.rank() % 2; r < n; r += 2) expected.push_back(r);
    EXPECT_EQ(all, expected);
    const auto alone = reversed->split(c.rank(), 0);
    EXPECT_EQ(alone->size(), 1);
    Vector<double> sum{c.rank() + 0.5};
    alone->all_reduce(view_of(sum), c.stream);
    c.stream.synchronize();
    EXPECT_EQ(sum[0], c.rank() + 0.5);
  });
}

/// What the processes that do not report say: their failures.
class FailurePrinter : public ::testing::EmptyTestEventListener {
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::cerr << "process " << world->process() << ": " << result.file_name() << ":"
              << result.line_number() << ": " << result.message() << std::endl;
  }
};

std::unique_ptr<Device> made_device;
Device* own_device() { return made_device.get(); }

/// Tests of thread groups that look into all ranks' memory, or hold copies to none.
void choose_tests(const test::ProcessArguments& arguments) {
  const bool copies = arguments.options.apart || arguments.mode == "staged";
  std::string& filter = ::testing::FLAGS_gtest_filter;
  if (filter != "*") return;
  filter = copies ? "-ThreadGroupTest.*" : "-ThreadGroupTest.Barrier*:ThreadGroupTest.Wrong*";
  // A checked pair talks in both directions, so two lanes would wait for each other.
  if (arguments.options.check) filter += ":*SendAndReceive*";
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const auto arguments = tessera::test::parse_process_arguments(argc, argv);
  const tessera::test::Meeting meeting(arguments);
  int result = 1;
  try {
    const std::unique_ptr<tessera::World> made = meeting.make();
    tessera::world = made.get();
    tessera::made_device =
        arguments.mode == "staged" ? tessera::make_cpu_device() : made->make_device();
    tessera::device = tessera::own_device();
    tessera::over_mpi = arguments.processes == 0;
    tessera::choose_tests(arguments);
    if (made->process() != 0) {
      auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
      delete listeners.Release(listeners.default_result_printer());
      listeners.Append(new tessera::FailurePrinter);
    }
    result = RUN_ALL_TESTS();
    tessera::made_device.reset();
  } catch (const std::exception& error) {
    std::cerr << "cannot meet: " << error.what() << "\n";
  }
  for (const pid_t child : meeting.children()) {
    int status = 0;
    waitpid(child, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) result = 1;
  }
  return result;
}
