#include <gmock/gmock.h>

#include <cstdlib>

#include "cli/program.h"

// Several processes with a GPU for each rank, over NCCL: the same numbers as threads of one
// process, and an end when one of them ends. GPUs and NCCL are emulated, the processes are real.
namespace tessera {
namespace {

using test::ProgramResult;
using test::read_file;
using ::testing::AllOf;
using ::testing::HasSubstr;

class CudaProcesses : public test::ProgramTest {
 protected:
  void SetUp() override {
    ProgramTest::SetUp();
    setenv("TESSERA_CUDA_MODULE", TESSERA_EMULATED_MODULE, 1);
    setenv("LD_LIBRARY_PATH", TESSERA_NO_DRIVER, 1);
    setenv("FAKE_GPUS", "4", 1);
    setenv("TMPDIR", path("").c_str(), 1);  // where the fake NCCL's ranks meet
  }
  void TearDown() override {
    for (const char* name : {"TESSERA_CUDA_MODULE", "LD_LIBRARY_PATH", "FAKE_GPUS", "TMPDIR"}) {
      unsetenv(name);
    }
    ProgramTest::TearDown();
  }

  /// `launcher` before the arguments of a very small training on GPUs.
  ProgramResult launch(std::vector<std::string> launcher, const std::vector<std::string>& more,
                       const std::function<void(pid_t)>& while_running = {}) const {
    launcher.insert(launcher.begin(), "launch");
    for (const char* word : {"--", "train", "--layers", "2", "--heads", "2", "--width", "16",
                             "--context-length", "16", "--micro-batch", "2", "--device", "cuda"}) {
      launcher.emplace_back(word);
    }
    launcher.insert(launcher.end(), more.begin(), more.end());
    return run(launcher, while_running);
  }

  std::vector<std::string> arguments(const std::string& log,
                                     const std::vector<std::string>& more) const {
    std::vector<std::string> all{"--data",
                                 path("data.txt"),
                                 "--steps",
                                 "4",
                                 "--log",
                                 path(log),
                                 "--deterministic-collectives",
                                 "--ranks",
                                 "4"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  /// Losses and norms of all steps, memory, bytes and the hash: what must not depend on processes.
  std::vector<nlohmann::json> numbers(const std::string& name) const {
    std::vector<nlohmann::json> lines = read_log(name);
    EXPECT_GE(lines.size(), 3U) << name;
    if (!lines.empty()) lines.erase(lines.begin());
    for (nlohmann::json& line : lines) {
      for (const char* key : {"seconds", "tokens_per_second", "positions_per_second", "mfu",
                              "matmul_flops_per_second", "exposed_seconds",
                              "exposed_seconds_per_step", "communication_seconds_per_step"}) {
        line.erase(key);
      }
    }
    return lines;
  }
};

TEST_F(CudaProcesses, TrainAsThreadsDo) {
  write_text();
  const std::vector<std::vector<std::string>> variants{
      {"--strategy", "zero1", "--precision", "bf16"},
      {"--strategy", "hybrid_shard", "--replicas", "2", "--accumulate", "2"}};
  for (const auto& variant : variants) {
    SCOPED_TRACE(variant[1]);
    std::vector<std::string> threads = arguments("threads.jsonl", variant);
    threads.insert(threads.end(), {"--device", "cuda", "--group", "nccl", "--overwrite"});
    const ProgramResult alone = train(threads);
    ASSERT_EQ(alone.exit_code, 0) << alone.err;
    const auto expected = numbers("threads.jsonl");
    std::vector<std::string> processes = arguments("processes.jsonl", variant);
    processes.emplace_back("--overwrite");
    const ProgramResult result =
        launch({"--processes", "2", "--ranks-per-process", "2"}, processes);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(numbers("processes.jsonl"), expected);
  }
}

TEST_F(CudaProcesses, AKilledProcessEndsAllAndIsNamed) {
  const auto begin = std::chrono::steady_clock::now();
  pid_t killed = 0;
  const ProgramResult result = launch(
      {"--processes", "3"}, {"--data", write_text(), "--steps", "1000000", "--log", path("log")},
      [&](pid_t launcher) {
        while (read_file(path("log")).find("\"step\":3,") == std::string::npos &&
               kill(launcher, 0) == 0) {
          std::this_thread::sleep_for(std::chrono::milliseconds(20));
        }
        const std::string children = read_file("/proc/" + std::to_string(launcher) + "/task/" +
                                               std::to_string(launcher) + "/children");
        ASSERT_NE(children.find(' '), std::string::npos);
        killed = std::stoi(children.substr(children.find(' ')));  // the second
        kill(killed, SIGKILL);
      });
  EXPECT_EQ(result.exit_code, 128 + SIGKILL) << result.err;
  EXPECT_THAT(result.err, HasSubstr("rank 1 (process 1, pid " + std::to_string(killed)));
  EXPECT_THAT(result.err, HasSubstr("[rank 0] tessera: error:"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
}

/// An illegal access fails every later call of the process, as that of destructors: the first error
/// is told, once, and the process ends.
TEST_F(CudaProcesses, AnIllegalAccessIsToldOnceAndEndsTheRun) {
  const std::string text = write_text();
  const std::vector<std::vector<std::string>> variants{{"--ranks", "1", "--cuda-graph", "false"},
                                                       {"--ranks", "1"},
                                                       {"--ranks", "2", "--group", "thread"},
                                                       {"--ranks", "2", "--group", "nccl"}};
  setenv("FAKE_ILLEGAL_ACCESS", "1000", 1);
  for (const auto& variant : variants) {
    SCOPED_TRACE(variant[1] + " " + variant.back());
    std::vector<std::string> all{"--data", text, "--device", "cuda", "--steps", "1000000"};
    all.insert(all.end(), variant.begin(), variant.end());
    const auto begin = std::chrono::steady_clock::now();
    const ProgramResult result = train(all);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
    EXPECT_EQ(result.exit_code, 1) << result.err;
    EXPECT_THAT(result.err, HasSubstr("cudaErrorIllegalAddress, an illegal memory access"));
    const std::size_t first = result.err.find("error:");
    EXPECT_EQ(result.err.find("error:", first + 1), std::string::npos) << result.err;
  }
  unsetenv("FAKE_ILLEGAL_ACCESS");
}

TEST_F(CudaProcesses, ThatWouldShareAGpuAreRefused) {
  setenv("FAKE_GPUS", "1", 1);
  const ProgramResult result =
      launch({"--processes", "2"}, {"--data", write_text(), "--steps", "1"});
  EXPECT_EQ(result.exit_code, 2) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("ranks 0 and 1 would share GPU 0"),
                                HasSubstr("--ranks 2 --group thread"), HasSubstr("--device cpu")));
  const ProgramResult threads = launch(
      {"--processes", "2"}, {"--data", path("data.txt"), "--steps", "1", "--group", "thread"});
  EXPECT_THAT(threads.err, HasSubstr("group thread joins ranks of one process"));
}

TEST_F(CudaProcesses, UseOnlyGpusThatAreThere) {
  setenv("FAKE_GPUS", "2", 1);
  const std::vector<std::string> run{"--data", write_text(), "--steps", "1"};
  const ProgramResult flag = launch({"--processes", "2", "--gpu-ids", "0,7"}, run);
  EXPECT_EQ(flag.exit_code, 2) << flag.err;
  EXPECT_THAT(flag.err, HasSubstr("--gpu-ids: there is no GPU 7 here; there are 0, 1; "));
  const std::string file =
      write("a.yaml", "distributed_type: MULTI_GPU\nnum_processes: 2\ngpu_ids: 2,1\n");
  const ProgramResult key = launch({"--config", file}, run);
  EXPECT_EQ(key.exit_code, 2) << key.err;
  EXPECT_THAT(key.err, HasSubstr(file + ":3: gpu_ids: there is no GPU 2 here; there are 0, 1; "));
  const ProgramResult good = launch({"--processes", "2", "--gpu-ids", "1,0"}, run);
  EXPECT_EQ(good.exit_code, 0) << good.err;

  setenv("CUDA_VISIBLE_DEVICES", "4,5", 1);  // the emulation sees its GPUs in any case
  const ProgramResult hidden = launch({"--processes", "2", "--gpu-ids", "0,4"}, run);
  unsetenv("CUDA_VISIBLE_DEVICES");
  EXPECT_EQ(hidden.exit_code, 2) << hidden.err;
  EXPECT_THAT(hidden.err, HasSubstr("--gpu-ids: there is no GPU 0 here; there are 4, 5, as "
                                    "CUDA_VISIBLE_DEVICES says"));
}

TEST_F(CudaProcesses, AreToldOfTheGpusInFields) {
  setenv("FAKE_GPUS", "2", 1);
  const ProgramResult result = run({"env", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const nlohmann::json cuda = nlohmann::json::parse(result.out)["cuda"];
  EXPECT_EQ(cuda["usable"], true);
  EXPECT_TRUE(cuda["problem"].is_null());
  ASSERT_EQ(cuda["gpus"].size(), 2U);
  EXPECT_EQ(cuda["gpus"][1]["ordinal"], 1);
  EXPECT_GT(cuda["gpus"][1]["total_bytes"].get<std::int64_t>(), 0);
  EXPECT_TRUE(cuda["gpus"][1]["free_bytes"].is_number_integer());
  EXPECT_TRUE(cuda["gpus"][1]["uuid"].is_string());
}

TEST_F(CudaProcesses, ThatAskForGpusHearOfTheMissingDriverFirst) {
  setenv("TESSERA_CUDA_MODULE", path("none.so").c_str(), 1);
  const ProgramResult result = launch({"--gpu-ids", "7"}, {"--data", write_text(), "--steps", "1"});
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("device cuda: "), ::testing::Not(HasSubstr("GPU 7"))));
}

TEST_F(CudaProcesses, ThatAreHostsOfTheirOwnShareAGpu) {
  setenv("FAKE_GPUS", "1", 1);
  const std::vector<std::string> common{"--data", write_text(), "--steps",    "2",    "--device",
                                        "cuda",   "--strategy", "full_shard", "--log"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), common.begin(), common.end());
    return more;
  };
  const ProgramResult threads = train(with({path("threads"), "--ranks", "2", "--group", "thread"}));
  ASSERT_EQ(threads.exit_code, 0) << threads.err;

  // As a launcher on each of two hosts would start them.
  const auto become = [](int rank) {
    for (const char* name : {"RANK", "LOCAL_RANK"}) setenv(name, std::to_string(rank).c_str(), 1);
    setenv("NCCL_HOSTID", ("host" + std::to_string(rank)).c_str(), 1);
  };
  for (const char* name : {"WORLD_SIZE", "LOCAL_WORLD_SIZE"}) setenv(name, "2", 1);
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  setenv("MASTER_PORT", std::to_string(20000 + getpid() % 10000).c_str(), 1);
  ProgramResult second;
  become(0);
  const ProgramResult first =
      train(with({path("processes"), "--deterministic-collectives"}), [&](pid_t /*first*/) {
        become(1);
        second = train(with({path("other"), "--deterministic-collectives"}));
      });
  for (const char* name : {"RANK", "LOCAL_RANK", "NCCL_HOSTID", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
                           "MASTER_ADDR", "MASTER_PORT"}) {
    unsetenv(name);
  }
  EXPECT_EQ(second.exit_code, 0) << second.err;
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_EQ(read_log("processes").back()["parameters_sha256"],
            read_log("threads").back()["parameters_sha256"]);
}

}  // namespace
}  // namespace tessera
