#include "tessera/trainer/rank_binding.h"

#include <gmock/gmock.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "support/tiny_model.h"
#include "tessera/core/error.h"
#include "tessera/trainer/rank_device.h"
#include "tessera/trainer/session.h"
#include "tessera/trainer/trainer.h"

// Where the threads of a run's ranks really run, and where their memory lies.
namespace tessera::rank_binding_test {
namespace {

using test::tiny_model;
using test::TinyData;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TrainerOptions bound_options(BindPolicy policy, int ranks) {
  TrainerOptions options;
  options.ranks = ranks;
  options.steps = 3;
  options.micro_batch = 64;
  options.threads_per_rank = 2;
  options.device = DeviceChoice::kCpu;
  options.timeout = std::chrono::seconds(60);
  options.bind = policy;
  return options;
}

/// The CPUs of this process's threads, by what their streams are called: "compute0".
std::multimap<std::string, std::string> cpus_by_thread() {
  std::multimap<std::string, std::string> threads;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm") >> std::ws, name);
    std::ifstream status(task.path() / "status");
    const std::string key = "Cpus_allowed_list:\t";
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with(key)) threads.emplace(name, line.substr(key.size()));
    }
  }
  return threads;
}

/// What is seen while steps run.
struct Seen {
  std::mutex mutex;
  std::map<int, std::set<std::string>> ranks;            ///< the CPUs of their own threads
  std::map<std::string, std::set<std::string>> streams;  ///< of streams and their teams
  std::size_t most_compute_threads = 0;                  ///< of rank 0, at once
};

void look(TrainerOptions& options, Seen& seen) {
  options.before_action = [&seen](int rank, std::int64_t, const Action&) {
    const auto threads = cpus_by_thread();
    const std::lock_guard lock(seen.mutex);
    seen.ranks[rank].insert(to_string(cpus_of_thread()));
    for (const auto& [name, cpus] : threads) seen.streams[name].insert(cpus);
    seen.most_compute_threads = std::max(seen.most_compute_threads, threads.count("compute0"));
  };
}

/// Rank threads, streams and the threads of their teams are bound alike.
TEST(RankBinding, RanksTheirStreamsAndTheirTeamsRunOnTheirCores) {
  if (cpus_of_thread().size() < 2) GTEST_SKIP() << "one CPU";
  const Model model = tiny_model(600);
  const TinyData data;
  TrainerOptions options = bound_options(BindPolicy::kCores, 2);
  Seen seen;
  look(options, seen);
  Session session(model, data, options);
  while (session.step()) {
  }
  const CoreBinding& binding = *session.plan().options.binding;
  if (binding.policy != BindPolicy::kCores) GTEST_SKIP() << describe(binding);
  EXPECT_EQ(session.plan().options.bind, BindPolicy::kCores);
  EXPECT_GE(seen.most_compute_threads, 2U) << "there is no team to look at";
  for (const int rank : {0, 1}) {
    const std::string own = to_string(binding.ranks[static_cast<std::size_t>(rank)].cpus);
    EXPECT_THAT(seen.ranks[rank], ElementsAre(own));
    for (const char* lane : {"compute", "gather", "reduce"}) {
      EXPECT_THAT(seen.streams[lane + std::to_string(rank)], ElementsAre(own)) << lane << rank;
    }
  }
  EXPECT_NE(seen.ranks[0], seen.ranks[1]);
}

TEST(RankBinding, NobodyElseIsBound) {
  const CpuList before = cpus_of_thread();
  const Model model = tiny_model();
  const TinyData data;
  Trainer(model, data, bound_options(BindPolicy::kCores, 2)).train();
  EXPECT_EQ(cpus_of_thread(), before);
}

TEST(RankBinding, ChangesNoBits) {
  const Model model = tiny_model(200);
  const TinyData data;
  std::set<std::string> hashes;
  for (const BindPolicy policy :
       {BindPolicy::kAuto, BindPolicy::kCores, BindPolicy::kNuma, BindPolicy::kNone}) {
    hashes.insert(Trainer(model, data, bound_options(policy, 2)).train().parameters_sha256);
  }
  EXPECT_EQ(hashes.size(), 1U);
}

/// The mask of the thread that starts a run, as taskset would have set it for the process.
TEST(RankBinding, TakesNoCpuThatTheProcessWasNotGiven) {
  const CpuList all = cpus_of_thread();
  const Model model = tiny_model();
  const TinyData data;
  for (const BindPolicy policy : {BindPolicy::kAuto, BindPolicy::kCores, BindPolicy::kNuma}) {
    SCOPED_TRACE(to_string(policy));
    Seen seen;
    TrainerOptions options = bound_options(policy, 2);
    look(options, seen);
    std::thread([&] {
      bind_thread({all.back()});
      Trainer(model, data, options).train();
    }).join();
    EXPECT_THAT(seen.ranks[0], ElementsAre(to_string(CpuList{all.back()})));
    EXPECT_THAT(seen.ranks[1], ElementsAre(to_string(CpuList{all.back()})));
  }
}

TEST(RankBinding, AListIsAllThatRanksGet) {
  const CpuList all = cpus_of_thread();
  const Model model = tiny_model();
  const TinyData data;
  TrainerOptions options = bound_options(BindPolicy::kAuto, 3);
  options.bind_core_list = to_string(CpuList{all.back()});
  Seen seen;
  look(options, seen);
  const Trainer trainer(model, data, options);
  trainer.train();
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(seen.ranks[rank], ElementsAre(options.bind_core_list));
  }
  EXPECT_EQ(trainer.plan().options.bind, BindPolicy::kNuma) << "they share it";
  EXPECT_THAT(trainer.plan().notes, Contains("ranks have 2 threads and are bound to 1 CPU, which "
                                             "they share; use `threads_per_rank` 1"));
  options.bind_core_list = "60000";
  try {
    Trainer(model, data, options);
    ADD_FAILURE() << "there is no such CPU";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kConfig);
    EXPECT_THAT(error.what(), HasSubstr("bind_core_list names CPU 60000, which this process may"));
  }
}

TEST(RankBinding, MoreRanksThanCoresAreSaidSo) {
  const auto cores = static_cast<int>(within(read_topology(), cpus_of_thread()).cores.size());
  if (cores > 16) GTEST_SKIP() << "too many cores";
  const Model model = tiny_model();
  const TinyData data;
  TrainerOptions options = bound_options(BindPolicy::kCores, cores + 1);
  options.threads_per_rank = 1;
  const Trainer trainer(model, data, options);
  EXPECT_THAT(trainer.plan().notes,
              Contains(AllOf(HasSubstr("`bind` cores binds "), HasSubstr(" ranks share "))));
}

TEST(RankBinding, ThreadsAreThoseOfTheListedCpus) {
  TrainerOptions options = bound_options(BindPolicy::kAuto, 1);
  options.threads_per_rank = 0;
  EXPECT_EQ(resolved(options).threads_per_rank, default_threads_per_rank(1));
  options.bind_core_list = std::to_string(cpus_of_thread().front());
  EXPECT_EQ(resolved(options).threads_per_rank, 1);
}

/// The node of the page at `address`; below 0 if it has none yet.
int node_of_page(const void* address) {
  void* page = const_cast<void*>(address);
  int node = -1;
  return syscall(SYS_move_pages, 0, 1UL, &page, nullptr, &node, 0) == 0 ? node : -1;
}

TEST(RankBinding, TheMemoryOfARankIsOnItsNode) {
  const CpuTopology machine = within(read_topology(), cpus_of_thread());
  const int nodes = static_cast<int>(machine.nodes().size());
  if (nodes < 2) GTEST_SKIP() << "this machine has one NUMA node";
  const Model model = tiny_model(600);
  const TinyData data;
  TrainerOptions options = bound_options(BindPolicy::kNuma, nodes);
  std::mutex mutex;
  std::map<int, std::set<int>> found;
  options.initial_parameters = [&](TrainingState& state, Stream& stream) {
    state.initialize(1, stream);
    const std::lock_guard lock(mutex);
    for (const StateTensor& tensor : state) {
      const int node = node_of_page(tensor.view.data);
      if (node >= 0) found[state.rank()].insert(node);
    }
  };
  const Session session(model, data, options);
  for (int rank = 0; rank < nodes; ++rank) {
    const RankCores& own = session.plan().options.binding->ranks[static_cast<std::size_t>(rank)];
    EXPECT_THAT(found[rank], ::testing::ElementsAreArray(own.nodes)) << "rank " << rank;
  }
}

}  // namespace
}  // namespace tessera::rank_binding_test
