#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <sstream>

#include "cli/launched_program.h"
#include "cli/pseudo_terminal.h"
#include "tessera/core/error.h"
#include "tessera/sharding/strategies.h"

// Runs of several processes: the same numbers as in one, and an end when one of them ends.
namespace tessera::launch_command_test {
namespace {

using test::ProgramResult;
using test::read_file;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

class LaunchCommand : public test::LaunchTest {};

struct Variant {
  const char* strategy;
  std::vector<std::string> more;
};

TEST_F(LaunchCommand, ProcessesTrainAsThreadsDo) {
  const std::string data = write_text();
  const std::vector<Variant> variants{{"full_shard", {}},
                                      {"zero1", {"--precision", "bf16"}},
                                      {"hybrid_shard", {"--replicas", "2", "--accumulate", "2"}},
                                      {"zero1", {"--pipeline", "2", "--accumulate", "3"}},
                                      {"no_shard", {"--pipeline", "4", "--accumulate", "2"}}};
  for (const Variant& variant : variants) {
    SCOPED_TRACE(variant.strategy);
    const auto arguments = [&](const std::string& log) {
      std::vector<std::string> all{"--data",
                                   data,
                                   "--steps",
                                   "4",
                                   "--strategy",
                                   variant.strategy,
                                   "--threads-per-rank",
                                   "1",
                                   "--log",
                                   path(log),
                                   "--overwrite"};
      all.insert(all.end(), variant.more.begin(), variant.more.end());
      return all;
    };
    std::vector<std::string> threads = arguments("threads.jsonl");
    threads.insert(threads.end(), {"--ranks", "4"});
    ASSERT_EQ(train(threads).exit_code, 0);
    const auto expected = numbers("threads.jsonl");
    for (const auto& shape :
         {std::vector<std::string>{"--processes", "4"},
          std::vector<std::string>{"--processes", "2", "--ranks-per-process", "2"}}) {
      const ProgramResult result = launch(shape, arguments("processes.jsonl"));
      ASSERT_EQ(result.exit_code, 0) << result.err;
      EXPECT_EQ(numbers("processes.jsonl"), expected);  // copied_bytes are 0 in both
    }
    setenv("TESSERA_APART", "1", 1);
    const ProgramResult apart =
        launch({"--processes", "3", "--ranks-per-process", "1"}, arguments("apart.jsonl"));
    unsetenv("TESSERA_APART");
    threads.back() = "3";
    // Three processes have neither two replicas nor two stages.
    const bool is_of_three = variant.more.empty() || variant.more.front() == "--precision";
    if (is_of_three) {
      ASSERT_EQ(apart.exit_code, 0) << apart.err;
      ASSERT_EQ(train(threads).exit_code, 0);
      EXPECT_EQ(numbers("apart.jsonl").back()["parameters_sha256"],
                numbers("threads.jsonl").back()["parameters_sha256"]);
    }
  }
}

TEST_F(LaunchCommand, EveryStrategyGivesTheSameBitsInSeveralProcesses) {
  const std::string settings =
      write("settings.json", R"({"steps": 3, "quiet": true,
      "threads_per_rank": 1, "sample_tokens": 0, "overwrite": true, "data": ")" +
                                 write_text() + R"(", "log": ")" + path("run.jsonl") + "\"}");
  const auto arguments = [&](const std::string& strategy, const std::string& depth) {
    return std::vector<std::string>{"--config",           settings, "--strategy",          strategy,
                                    "--prefetch-forward", depth,    "--prefetch-backward", depth};
  };
  std::vector<std::string> threads = arguments("no_shard", "1");
  threads.insert(threads.end(), {"--ranks", "4"});
  ASSERT_EQ(train(threads).exit_code, 0);
  const auto bits = [&] {
    const std::vector<nlohmann::json> lines = read_log("run.jsonl");
    nlohmann::json result;
    for (const auto& line : lines) {
      if (line["kind"] == "step") result.push_back({line["loss"], line["grad_norm"]});
    }
    result.push_back(lines.back()["parameters_sha256"]);
    return result;
  };
  const auto expected = bits();
  int depth = 2;
  for (const Strategy& strategy : strategies()) {
    depth = 2 - depth;
    SCOPED_TRACE(concat(strategy.name, ", depth ", depth));
    const ProgramResult result = launch({"--processes", "2", "--ranks-per-process", "2"},
                                        arguments(strategy.name, std::to_string(depth)));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(bits(), expected);
  }
}

TEST_F(LaunchCommand, OutputComesInWholeLinesWithTheirRanks) {
  const ProgramResult result = launch({"--processes", "2", "--ranks-per-process", "2"},
                                      {"--data", write_text(), "--steps", "3"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("[ranks 0-1] sha256"), HasSubstr("4 ranks")));
  EXPECT_THAT(result.err, HasSubstr("[ranks 0-1] step 3/3"));
  EXPECT_THAT(result.out + result.err, Not(HasSubstr("ranks 2-3")));  // rank 0 speaks for all
  EXPECT_THAT(result.out + result.err, Not(HasSubstr("\033")));
}

void await_training(const std::string& log) {
  while (read_file(log).find("\"step\":3,") == std::string::npos) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

/// Sends a process a signal once training runs, and tells how long all others lived on.
class Killer {
 public:
  explicit Killer(std::string log, int signal = SIGKILL) : log_(std::move(log)), signal_(signal) {}

  void kill_child(pid_t launcher, std::size_t index) {
    await_training(log_);
    killed_ = test::children_of(launcher).at(index);
    kill(killed_, signal_);
    since_ = std::chrono::steady_clock::now();
  }
  pid_t killed() const { return killed_; }
  auto elapsed() const { return std::chrono::steady_clock::now() - since_; }

 private:
  std::string log_;
  int signal_;
  pid_t killed_ = 0;
  std::chrono::steady_clock::time_point since_{};
};

constexpr std::chrono::seconds kSoon{60};

TEST_F(LaunchCommand, AKilledProcessEndsAllSoonAndIsNamed) {
  Killer killer(path("log"));
  const ProgramResult result = launch(
      {"--processes", "3"}, {"--data", write_text(), "--steps", "1000000", "--log", path("log")},
      [&](pid_t launcher) { killer.kill_child(launcher, 1); });
  EXPECT_LT(killer.elapsed(), kSoon);
  EXPECT_EQ(result.exit_code, 128 + SIGKILL) << result.err;
  EXPECT_THAT(result.err, HasSubstr("rank 1 (process 1, pid " + std::to_string(killer.killed())));
  EXPECT_THAT(result.err, HasSubstr("was killed by signal 9"));
  EXPECT_THAT(result.err, HasSubstr("[rank 0] tessera: error:"));
}

TEST_F(LaunchCommand, ASignalToOneProcessEndsAllSoonAndIsNamed) {
  for (const std::size_t process : {0U, 1U}) {
    SCOPED_TRACE(process);
    std::filesystem::remove(path("log"));
    Killer killer(path("log"), SIGTERM);
    const ProgramResult result = launch(
        {"--processes", "2"}, {"--data", write_text(), "--steps", "1000000", "--log", path("log")},
        [&](pid_t launcher) { killer.kill_child(launcher, process); });
    EXPECT_LT(killer.elapsed(), kSoon + kSoon);
    EXPECT_EQ(result.exit_code, process == 0 ? 128 + SIGTERM : 1) << result.err;
    const std::string named = concat("rank 0 (process 0, pid ", killer.killed());
    EXPECT_THAT(result.err, process == 0
                                ? AllOf(HasSubstr(named), HasSubstr("was ended by signal 15"))
                                : AllOf(HasSubstr("[rank 0] tessera: error: "),
                                        HasSubstr("process 1 was ended by SIGTERM")));
  }
}

TEST_F(LaunchCommand, CtrlCEndsAllAfterTheStep) {
  const ProgramResult result = launch(
      {"--processes", "2"}, {"--data", write_text(), "--steps", "1000000", "--log", path("log")},
      [&](pid_t launcher) {
        await_training(path("log"));
        kill(launcher, SIGINT);
      });
  EXPECT_EQ(result.exit_code, 128 + SIGINT) << result.err;
  EXPECT_THAT(result.out, HasSubstr("stopped after step"));
  EXPECT_EQ(read_log("log").back()["kind"], "summary");
}

TEST_F(LaunchCommand, CtrlCBeforeTheTrainingIsNoError) {
  const ProgramResult result = launch(
      {"--processes", "3"}, {"--data", write_text(), "--steps", "1000000"}, [&](pid_t launcher) {
        while (test::children_of(launcher).size() < 3) {
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        kill(launcher, SIGINT);
      });
  EXPECT_EQ(result.exit_code, 128 + SIGINT) << result.err;
  EXPECT_THAT(result.err, HasSubstr("tessera: stopped, as asked\n"));
  EXPECT_THAT(result.err, Not(HasSubstr("was killed by signal")));
}

TEST_F(LaunchCommand, ARunThatDivergesEndsAllSoonAndSaysWhy) {
  const auto begin = std::chrono::steady_clock::now();
  const ProgramResult result =
      launch({"--processes", "2", "--grace", "60"},
             {"--data", write_text(), "--steps", "1000000", "--learning-rate", "1e30"});
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kSoon);
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_THAT(result.err, HasSubstr("[rank 0] tessera: error: training diverged: step "));
  EXPECT_THAT(result.err, ContainsRegex("\\[rank 1\\] tessera: error: .*training diverged: step "));
}

TEST_F(LaunchCommand, InATerminalErrorsOfProcess0HaveTheirRankToo) {
  // Of more processes, another one may be the first to say the same.
  std::vector<std::string> command{TESSERA_PROGRAM, "launch", "--processes", "1", "--"};
  for (const std::string& word : small_training()) command.push_back(word);
  command.insert(command.end(), {"--data", path("missing.txt")});
  test::PseudoTerminal terminal(command);
  EXPECT_EQ(terminal.exit_code(), 2);
  EXPECT_THAT(terminal.shown(), ::testing::ContainsRegex("\\[rank 0\\][^\n]*tessera: "));
}

TEST_F(LaunchCommand, InATerminalNotesOfProcess0HaveTheirRankAndItsBarHasNone) {
  const std::string config =
      write("a.yaml", "distributed_type: FSDP\nnum_processes: 2\nfsdp_config: {fsdp_version: 1}\n");
  std::vector<std::string> command{TESSERA_PROGRAM, "launch", "--config", config, "--"};
  for (const std::string& word : small_training()) command.push_back(word);
  command.insert(command.end(), {"--data", write_text(), "--steps", "5"});
  test::PseudoTerminal terminal(command);
  EXPECT_EQ(terminal.exit_code(), 0) << terminal.shown();
  int notes = 0;
  std::istringstream shown(terminal.shown());
  for (std::string line; std::getline(shown, line);) {
    const bool tells = line.find("note: ") != std::string::npos;
    notes += tells ? 1 : 0;
    if (tells || line.find("sha256") != std::string::npos) {
      EXPECT_THAT(line, HasSubstr("[rank 0]"));
    }
  }
  EXPECT_GT(notes, 0) << terminal.shown();
  EXPECT_THAT(terminal.shown(), AllOf(HasSubstr("\r\033[Kstep 5/5"), HasSubstr("━")));
}

TEST_F(LaunchCommand, GpusThatNobodyUsesAreSaid) {
  const ProgramResult result =
      launch({"--gpu-ids", "0"}, {"--data", write_text(), "--steps", "1", "--device", "cpu"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err,
              HasSubstr("note: --gpu-ids 0 has no effect: the ranks compute on the CPU\n"));
}

TEST_F(LaunchCommand, AFileMayBeCalledAsACommand) {
  // The program runs in the folder of the test, where there is no such file: it is read as one.
  const ProgramResult result = launch({"--config", "test"}, {"--data", write_text()});
  EXPECT_EQ(result.exit_code, 2) << result.err;
  EXPECT_THAT(result.err, HasSubstr("test: cannot be opened"));
}

TEST_F(LaunchCommand, TheFirstFailureIsReturned) {
  const ProgramResult result =
      launch({"--processes", "2"}, {"--data", path("missing.txt"), "--steps", "1"});
  EXPECT_EQ(result.exit_code, 2) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("missing.txt"), HasSubstr("failed with exit code 2")));
  // Both processes say it, with the same words.
  EXPECT_EQ(result.err.find("missing.txt"), result.err.rfind("missing.txt")) << result.err;
}

TEST_F(LaunchCommand, WrongFlagsAreNamedBeforeAnythingStarts) {
  const int busy = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t length = sizeof(address);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  ASSERT_EQ(bind(busy, any, length), 0);
  ASSERT_EQ(listen(busy, 1), 0);
  ASSERT_EQ(getsockname(busy, any, &length), 0);
  EXPECT_THAT(error_of(launch({"--main-port", std::to_string(ntohs(address.sin_port))}, {})),
              HasSubstr("--main-port"));
  close(busy);
  EXPECT_THAT(error_of(launch({"--main-address", "no.such.host.invalid"}, {})),
              AllOf(HasSubstr("--main-address"), HasSubstr("no.such.host.invalid")));
  EXPECT_THAT(error_of(launch({"--processes", "2", "--gpu-ids", "0"}, {})),
              AllOf(HasSubstr("--gpu-ids"), HasSubstr("--processes")));
  for (const char* wrong : {"foo,bar", "all,0", "0,-1", "0,,1"}) {
    EXPECT_THAT(error_of(launch({"--gpu-ids", wrong}, {})),
                AllOf(HasSubstr("--gpu-ids: '"), HasSubstr("is no GPU")));
  }
  for (const char* flag :
       {"--processes", "--ranks-per-process", "--nodes", "--node-rank", "--main-port", "--grace"}) {
    for (const char* wrong : {"abc", "", "1.5", "0x2"}) {
      EXPECT_THAT(error_of(launch({flag, wrong}, {})),
                  HasSubstr(concat(flag, ": '", wrong, "' is not an integer")));
    }
    EXPECT_THAT(error_of(launch({flag, "-1"}, {})),
                HasSubstr(concat(flag, ": -1 is out of range; allowed: ")));
  }
  // Not octal.
  EXPECT_THAT(error_of(launch({"--processes", "010"}, {"--ranks", "3"})), HasSubstr("is 10 ranks"));
  EXPECT_THAT(error_of(launch({"--config", ""}, {})), HasSubstr("--config is empty; "));
  EXPECT_THAT(error_of(launch({}, {"--config", ""})), HasSubstr("--config is empty; "));
  EXPECT_THAT(error_of(launch({"--nodes", "2000000"}, {})), HasSubstr("1 to 1048576"));
  EXPECT_THAT(error_of(launch({"--processes", "100000", "--ranks-per-process", "100"}, {})),
              HasSubstr("is more than 1048576 ranks"));
  EXPECT_THAT(error_of(launch({"--gpu-ids", "0,0"}, {})),
              HasSubstr("--gpu-ids: names GPU 0 twice"));
  EXPECT_THAT(error_of(launch({"--processes", "2"}, {"--ranks", "3"})),
              AllOf(HasSubstr("--ranks 3"), HasSubstr("is 2 ranks")));
  EXPECT_THAT(error_of(launch({"--processes", "3"}, {"--replicas", "2"})),
              HasSubstr("--replicas 2"));
  EXPECT_THAT(error_of(launch({"--nodes", "2", "--node-rank", "2"}, {})), HasSubstr("--node-rank"));
  EXPECT_THAT(error_of(launch({"--nodes", "2"}, {})), HasSubstr("--main-address"));
  EXPECT_THAT(error_of(run({"launch"})), HasSubstr("nothing to launch"));
  EXPECT_THAT(error_of(run({"launch", "--proceses", "2", "--", "train"})),
              HasSubstr("did you mean '--processes'"));
  EXPECT_THAT(error_of(run({"launch", "--", "plan"})), HasSubstr("'plan' cannot be launched"));
}

bool has_ipv6() {
  const int listener = socket(AF_INET6, SOCK_STREAM, 0);
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_addr = in6addr_loopback;
  const bool good =
      bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  close(listener);
  return good;
}

TEST_F(LaunchCommand, NodesMeetOverIpv6) {
  if (!has_ipv6()) GTEST_SKIP() << "no IPv6 here";
  const test::ScopedVariables apart{{"TESSERA_APART", "1"}};  // both nodes are this machine
  const std::string data = write_text();
  const auto flags = [&](const char* node) {
    return std::vector<std::string>{"--nodes",        "2",   "--node-rank", node,
                                    "--main-address", "::1", "--main-port", port_of_test()};
  };
  std::vector<std::string> second = flags("1");
  second.insert(second.begin(), "launch");
  second.emplace_back("--");
  for (const std::string& word : small_training()) second.push_back(word);
  second.insert(second.end(), {"--data", data, "--steps", "1"});
  int exit_code = -1;
  const ProgramResult first = launch(flags("0"), {"--data", data, "--steps", "1"}, [&](pid_t) {
    exit_code = std::system((in_shell(second) + " >" + path("second") + " 2>&1").c_str());
  });
  EXPECT_EQ(exit_code, 0) << read_file(path("second"));
  EXPECT_EQ(first.exit_code, 0) << first.err;
}

TEST_F(LaunchCommand, ThreadsOfARankAreThoseOfTheEnvironment) {
  const std::string data = write_text();
  const std::vector<std::string> rest{"--data",          data,         "--steps", "1", "--log",
                                      path("log.jsonl"), "--overwrite"};
  const auto threads_with = [&](const char* text, std::vector<std::string> more) {
    const test::ScopedVariables threads{{"OMP_NUM_THREADS", text}};
    more.insert(more.end(), rest.begin(), rest.end());
    const ProgramResult result = train(more);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return read_log("log.jsonl").at(0)["threads_per_rank"].get<int>();
  };
  EXPECT_EQ(threads_with("3", {"--ranks", "2"}), 3);
  EXPECT_EQ(threads_with("5,2", {}), 5);
  EXPECT_EQ(threads_with("3", {"--threads-per-rank", "1"}), 1);
  const test::ScopedVariables threads{{"OMP_NUM_THREADS", "3"}};
  const ProgramResult launched = launch({"--processes", "2"}, rest);
  ASSERT_EQ(launched.exit_code, 0) << launched.err;
  EXPECT_EQ(read_log("log.jsonl").at(0)["threads_per_rank"], 3);
  for (const char* wrong : {"0", "many", "-1"}) {
    const test::ScopedVariables bad{{"OMP_NUM_THREADS", wrong}};
    for (const ProgramResult& result : {train(rest), launch({}, rest)}) {
      EXPECT_EQ(result.exit_code, 2);  // libgomp may have said a line before
      EXPECT_THAT(result.err, HasSubstr("tessera: error: environment: OMP_NUM_THREADS is '"));
    }
  }
}

TEST_F(LaunchCommand, LostOutputIsAFailure) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "there is no /dev/full";
  std::vector<std::string> command{"launch", "--processes", "2", "--"};
  for (const std::string& word : small_training()) command.push_back(word);
  command.insert(command.end(), {"--data", write_text(), "--steps", "2"});
  const std::string streams = " >/dev/full 2>" + path("err");
  EXPECT_EQ(WEXITSTATUS(std::system((in_shell(command) + streams).c_str())), 1);
  EXPECT_THAT(read_file(path("err")), HasSubstr("error: standard output cannot be written\n"));
}

TEST_F(LaunchCommand, NumbersOfTheEnvironmentThatMakeNoSenseAreRefused) {
  test::ScopedVariables variables{
      {"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "99999"}};
  const std::vector<std::string> arguments{"--data", write_text(), "--timeout", "3"};
  EXPECT_THAT(error_of(train(arguments)), HasSubstr("MASTER_PORT is 99999; it must be 1 to 65535"));
  variables.set("MASTER_PORT", "65535");
  variables.set("TORCHELASTIC_RUN_ID", "none");
  variables.set("TORCHELASTIC_USE_AGENT_STORE", "True");
  EXPECT_THAT(error_of(train(arguments)), HasSubstr("MASTER_PORT is 65535; it must be 1 to 65534"));
  variables.set("MASTER_PORT", "29500");
  variables.set("RANK", "5");
  EXPECT_THAT(error_of(train(arguments)),
              HasSubstr("this is process 5 of 2; with WORLD_SIZE 2, RANK must be 0 to 1"));
  variables.set("WORLD_SIZE", "0");
  EXPECT_THAT(error_of(train(arguments)), HasSubstr("WORLD_SIZE is 0; it must be at least 1"));
}

TEST_F(LaunchCommand, ServesWhatTorchrunExports) {
  const std::string data = write_text();
  ASSERT_EQ(train({"--data", data, "--steps", "3", "--ranks", "2", "--quiet", "--log",
                   path("threads.jsonl")})
                .exit_code,
            0);
  const std::string port = port_of_test();
  test::ScopedVariables variables{};  // all that torchrun 2.x sets
  for (const auto& [name, value] :
       {std::pair("WORLD_SIZE", "2"), std::pair("MASTER_ADDR", "127.0.0.1"),
        std::pair("MASTER_PORT", port.c_str()), std::pair("LOCAL_WORLD_SIZE", "2"),
        std::pair("GROUP_RANK", "0"), std::pair("GROUP_WORLD_SIZE", "1"),
        std::pair("ROLE_NAME", "default"), std::pair("ROLE_WORLD_SIZE", "2"),
        std::pair("TORCHELASTIC_RUN_ID", "none"), std::pair("TORCHELASTIC_RESTART_COUNT", "0"),
        std::pair("TORCHELASTIC_MAX_RESTARTS", "0"),
        std::pair("TORCHELASTIC_USE_AGENT_STORE", "True"), std::pair("OMP_NUM_THREADS", "1")}) {
    variables.set(name, value);
  }
  // The second process is started while the first one runs; it prints and logs nothing.
  ProgramResult second;
  const auto be_rank = [&](const char* rank) {
    for (const char* name : {"RANK", "LOCAL_RANK", "ROLE_RANK"}) variables.set(name, rank);
  };
  be_rank("0");
  const std::vector<std::string> arguments{"--data", data,    "--steps",
                                           "3",      "--log", path("processes.jsonl")};
  const ProgramResult first = train(arguments, [&](pid_t) {
    be_rank("1");
    second.exit_code = std::system((std::string(TESSERA_PROGRAM) +
                                    " train --layers 2 --heads 2 --width 16 --context-length 16 "
                                    "--micro-batch 2 --steps 3 --data " +
                                    data)
                                       .c_str());
  });
  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_EQ(second.exit_code, 0);
  EXPECT_EQ(numbers("processes.jsonl"), numbers("threads.jsonl"));
}

std::string why_no_mpirun() {
  if (std::system("command -v mpirun >/dev/null 2>&1") != 0) return "there is no mpirun";
  const auto module = std::filesystem::path(TESSERA_PROGRAM).parent_path() / "libtessera_mpi.so";
  return std::filesystem::exists(module) ? "" : "built without MPI";
}

TEST_F(LaunchCommand, WorksUnderMpirun) {
  if (!why_no_mpirun().empty()) GTEST_SKIP() << why_no_mpirun();
  const std::string data = write_text();
  ASSERT_EQ(train({"--data", data, "--steps", "3", "--ranks", "4", "--quiet", "--log",
                   path("threads.jsonl")})
                .exit_code,
            0);
  // Open MPI never frees part of what it allocates, in components it has unloaded by the end, so
  // that LeakSanitizer cannot be told their names.
  const std::string command =
      "ASAN_OPTIONS=detect_leaks=0 mpirun -n 4 --oversubscribe --allow-run-as-root --bind-to "
      "none " +
      std::string(TESSERA_PROGRAM) +
      " train --layers 2 --heads 2 --width 16 --context-length 16 --micro-batch 2 --steps 3 "
      "--data " +
      data + " --log " + path("mpi.jsonl") + " >" + path("out") + " 2>&1";
  ASSERT_EQ(std::system(command.c_str()), 0) << read_file(path("out"));
  EXPECT_EQ(numbers("mpi.jsonl"), numbers("threads.jsonl"));
}

/// `mpirun -n 3 tessera train` of a very small model, for as good as ever.
class LaunchUnderMpirun : public LaunchCommand {
 protected:
  void SetUp() override {
    LaunchCommand::SetUp();
    if (!why_no_mpirun().empty()) GTEST_SKIP() << why_no_mpirun();
  }
  std::vector<std::string> mpirun() const {
    std::vector<std::string> command{
        "/usr/bin/env", "mpirun", "-n",           "3", "--oversubscribe", "--allow-run-as-root",
        "--bind-to",    "none",   TESSERA_PROGRAM};
    for (const std::string& word : small_training()) command.push_back(word);
    command.insert(command.end(),
                   {"--steps", "1000000", "--data", write_text(), "--log", path("log")});
    return command;
  }
};

TEST_F(LaunchUnderMpirun, AKilledProcessEndsAllSoon) {
  test::PseudoTerminal mpirun(this->mpirun());
  Killer killer(path("log"));
  killer.kill_child(mpirun.pid(), 1);
  EXPECT_NE(mpirun.exit_code(), 0);
  EXPECT_LT(killer.elapsed(), kSoon);
  EXPECT_THAT(mpirun.shown(), ::testing::ContainsRegex("rank 1"));
}

TEST_F(LaunchUnderMpirun, AProcessThatIsStoppedWhileMpiStartsEndsTheRunInTime) {
  std::vector<std::string> command = this->mpirun();
  const std::string stop_rank_1 = "[ $OMPI_COMM_WORLD_RANK = 1 ] && kill -STOP $$; exec \"$@\"";
  command.insert(std::ranges::find(command, TESSERA_PROGRAM), {"sh", "-c", stop_rank_1, "sh"});
  command.insert(command.end(), {"--timeout", "4"});
  const auto begin = std::chrono::steady_clock::now();
  test::PseudoTerminal mpirun(command);
  EXPECT_NE(mpirun.exit_code(), 0);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kSoon);
  EXPECT_THAT(mpirun.shown(), HasSubstr("waited 4 s for MPI to bring the processes together"));
}

TEST_F(LaunchUnderMpirun, ASignalToMpirunEndsAll) {
  for (const int signal : {SIGTERM, SIGINT}) {
    SCOPED_TRACE(strsignal(signal));
    std::filesystem::remove(path("log"));
    test::PseudoTerminal mpirun(this->mpirun());
    await_training(path("log"));
    const std::vector<pid_t> processes = test::children_of(mpirun.pid());
    EXPECT_GE(processes.size(), 3U);
    const auto deadline = std::chrono::steady_clock::now() + kSoon;
    mpirun.send(signal);
    EXPECT_NE(mpirun.exit_code(), 0);
    // One that has ended has no command line, even if nobody has waited for it.
    const auto lives = [](pid_t process) {
      return !read_file("/proc/" + std::to_string(process) + "/cmdline").empty();
    };
    while (std::ranges::any_of(processes, lives) && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    EXPECT_LT(std::chrono::steady_clock::now(), deadline) << mpirun.shown();
    for (const auto& line : read_log("log")) EXPECT_TRUE(line.contains("kind"));
  }
}

}  // namespace
}  // namespace tessera::launch_command_test
