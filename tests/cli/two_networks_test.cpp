#include <gmock/gmock.h>

#include <chrono>
#include <cstdlib>
#include <thread>

#include "cli/launched_program.h"

// Two machines as this one can play them: network, process ids and host name are separate, so that
// everything goes over a (virtual) cable.
namespace tessera {
namespace {

using test::ProgramResult;
using test::read_file;
using ::testing::AllOf;
using ::testing::HasSubstr;

class TwoNetworks : public test::LaunchTest {
 protected:
  void SetUp() override {
    LaunchTest::SetUp();
    name_ = "tsr" + std::to_string(getpid());
    std::string why;
    if (!make(why)) GTEST_SKIP() << "cannot make two networks here: " << why;
  }
  void TearDown() override {
    for (const char* node : {"0", "1"}) {
      shell("ip netns delete " + name_ + "n" + node);  // and its end of the cable
    }
    LaunchTest::TearDown();
  }

  int shell(const std::string& command) const {
    return std::system((command + " >>" + path("setup") + " 2>&1").c_str());
  }

  bool make(std::string& why) {
    if (shell("command -v ip && command -v unshare") != 0) {
      why = "there is no ip (iproute2) or no unshare (util-linux)";
      return false;
    }
    const std::string n0 = name_ + "n0";
    const std::string n1 = name_ + "n1";
    const bool good = shell("ip netns add " + n0) == 0 && shell("ip netns add " + n1) == 0 &&
                      shell("ip link add " + name_ + "a netns " + n0 + " type veth peer name " +
                            name_ + "b netns " + n1) == 0 &&
                      shell("ip -n " + n0 + " address add 10.213.7.1/24 dev " + name_ + "a") == 0 &&
                      shell("ip -n " + n1 + " address add 10.213.7.2/24 dev " + name_ + "b") == 0 &&
                      shell("ip -n " + n0 + " link set " + name_ + "a up") == 0 &&
                      shell("ip -n " + n1 + " link set " + name_ + "b up") == 0 &&
                      shell("ip -n " + n0 + " link set lo up") == 0 &&
                      shell("ip -n " + n1 + " link set lo up") == 0 &&
                      shell("ip netns exec " + n0 + " unshare --pid --fork --mount-proc true") == 0;
    if (!good) why = read_file(path("setup"));
    return good;
  }

  /// The shell's line for one machine's `tessera launch`; its output goes to the file `output`.
  std::string on_node(int node, const std::vector<std::string>& command,
                      const std::string& output) const {
    std::vector<std::string> all{
        "launch",         "--nodes",    "2",           "--node-rank", std::to_string(node),
        "--main-address", "10.213.7.1", "--processes", "2",           "--"};
    all.insert(all.end(), command.begin(), command.end());
    return "ip netns exec " + name_ + "n" + std::to_string(node) +
           " unshare --uts --pid --fork --kill-child --mount-proc sh -c 'hostname node" +
           std::to_string(node) + "; exec \"$@\"' sh " + in_shell(all) + " >" + path(output) +
           " 2>&1";
  }

  /// Runs `first` on node 0 and `second` on node 1; returns when both have ended.
  std::pair<int, int> run_both(const std::vector<std::string>& first,
                               const std::vector<std::string>& second) const {
    int code = -1;
    std::thread other([&] { code = std::system(on_node(1, second, "out1").c_str()); });
    const int own = std::system(on_node(0, first, "out0").c_str());
    other.join();
    return {own, code};
  }

  std::vector<std::string> training(const std::vector<std::string>& more) const {
    std::vector<std::string> all = small_training();
    all.insert(all.end(), {"--data", path("data.txt"), "--threads-per-rank", "1"});
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  std::string name_;
};

TEST_F(TwoNetworks, TrainAsThreadsDo) {
  write_text();
  for (const auto& strategy : {std::vector<std::string>{"--strategy", "full_shard"},
                               std::vector<std::string>{"--strategy", "hybrid_shard", "--replicas",
                                                        "2", "--accumulate", "2"}}) {
    SCOPED_TRACE(strategy[1]);
    std::vector<std::string> flags{"--steps", "5", "--overwrite"};
    flags.insert(flags.end(), strategy.begin(), strategy.end());
    std::vector<std::string> logged = flags;
    logged.insert(logged.end(), {"--log", path("nodes.jsonl")});
    const auto [first, second] = run_both(training(logged), training(flags));
    ASSERT_EQ(first, 0) << read_file(path("out0"));
    ASSERT_EQ(second, 0) << read_file(path("out1"));

    std::vector<std::string> threads = training(flags);
    threads.insert(threads.end(), {"--ranks", "4", "--quiet", "--log", path("threads.jsonl")});
    ASSERT_EQ(run(threads).exit_code, 0);
    const auto nodes = numbers("nodes.jsonl");
    const auto expected = numbers("threads.jsonl");
    ASSERT_EQ(nodes.size(), expected.size());
    for (std::size_t i = 0; i + 1 < nodes.size(); ++i) {
      EXPECT_EQ(nodes[i]["loss"], expected[i]["loss"]);
      EXPECT_EQ(nodes[i]["grad_norm"], expected[i]["grad_norm"]);
    }
    EXPECT_EQ(nodes.back()["parameters_sha256"], expected.back()["parameters_sha256"]);
    EXPECT_GT(nodes.back()["copied_bytes"], 0);  // messages, and no shared memory
  }
}

TEST_F(TwoNetworks, ThePreflightMeasuresTheCable) {
  const auto [first, second] = run_both({"test"}, {"test"});
  ASSERT_EQ(first, 0) << read_file(path("out0"));
  EXPECT_EQ(second, 0) << read_file(path("out1"));
  EXPECT_THAT(read_file(path("out0")),
              AllOf(HasSubstr("all are there: 2 ranks on node0, 2 ranks on node1"),
                    HasSubstr("link between node0 (rank 0) and node1 (rank 2): round trip"),
                    HasSubstr("All 4 ranks on 2 machines work and give the same bits")));
}

TEST_F(TwoNetworks, AMachineThatDiesEndsTheOtherWhichNamesItsRanks) {
  write_text();
  // With exec, the process that is killed is the one whose end takes its machine along.
  const pid_t other = fork();
  if (other == 0) {
    const std::string line = "exec " + on_node(1, training({"--steps", "1000000"}), "out1");
    execl("/bin/sh", "sh", "-c", line.c_str(), nullptr);
    _exit(127);
  }
  std::chrono::steady_clock::time_point killed;
  std::thread killer([&] {
    while (read_file(path("log")).find("\"step\":3,") == std::string::npos) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    killed = std::chrono::steady_clock::now();
    kill(other, SIGKILL);
  });
  const int own = std::system(
      on_node(0, training({"--steps", "1000000", "--log", path("log")}), "out0").c_str());
  const auto ended = std::chrono::steady_clock::now();
  killer.join();
  waitpid(other, nullptr, 0);
  EXPECT_NE(own, 0);
  EXPECT_LT(ended - killed, std::chrono::seconds(60));
  EXPECT_THAT(read_file(path("out0")),
              ::testing::ContainsRegex("rank [23] \\(process [23], pid [0-9]+ on node1\\)"));
}

}  // namespace
}  // namespace tessera
