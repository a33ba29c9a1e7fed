#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "cli/launched_program.h"

// Runs of several processes: the same numbers as in one, and an end when one of them ends.
namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::ProgramResult;
using testing::read_file;

class LaunchCommand : public testing::LaunchTest {};

struct Variant {
  const char* strategy;
  std::vector<std::string> more;
};

TEST_F(LaunchCommand, ProcessesTrainAsThreadsDo) {
  const std::string data = write_text();
  const std::vector<Variant> variants{{"full_shard", {}},
                                      {"zero1", {"--precision", "bf16"}},
                                      {"hybrid_shard", {"--replicas", "2", "--accumulate", "2"}}};
  for (const Variant& variant : variants) {
    SCOPED_TRACE(variant.strategy);
    const auto arguments = [&](const std::string& log) {
      std::vector<std::string> all{
          "--data", data,    "--steps", "4", "--strategy", variant.strategy, "--threads-per-rank",
          "1",      "--log", path(log)};
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
    if (variant.more.empty() || variant.more.front() != "--replicas") {
      ASSERT_EQ(apart.exit_code, 0) << apart.err;
      ASSERT_EQ(train(threads).exit_code, 0);
      EXPECT_EQ(numbers("apart.jsonl").back()["parameters_sha256"],
                numbers("threads.jsonl").back()["parameters_sha256"]);
    }
  }
}

TEST_F(LaunchCommand, OutputComesInWholeLinesWithTheirRanks) {
  const ProgramResult result = launch({"--processes", "2", "--ranks-per-process", "2"},
                                      {"--data", write_text(), "--steps", "3"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("[ranks 0-1] parameters sha256"), HasSubstr("4 ranks")));
  EXPECT_THAT(result.err, HasSubstr("[ranks 0-1] step 3/3"));
  EXPECT_THAT(result.out + result.err, Not(HasSubstr("ranks 2-3")));  // rank 0 speaks for all
  EXPECT_THAT(result.out + result.err, Not(HasSubstr("\033")));
}

TEST_F(LaunchCommand, AKilledProcessEndsAllAndIsNamed) {
  const auto begin = std::chrono::steady_clock::now();
  pid_t killed = 0;
  const ProgramResult result = launch(
      {"--processes", "3"}, {"--data", write_text(), "--steps", "1000000", "--log", path("log")},
      [&](pid_t launcher) {
        while (read_file(path("log")).find("\"step\":3,") == std::string::npos) {
          std::this_thread::sleep_for(std::chrono::milliseconds(20));
        }
        const std::string children = read_file("/proc/" + std::to_string(launcher) + "/task/" +
                                               std::to_string(launcher) + "/children");
        killed = std::stoi(children.substr(children.find(' ')));  // the second
        kill(killed, SIGKILL);
      });
  EXPECT_EQ(result.exit_code, 128 + SIGKILL) << result.err;
  EXPECT_THAT(result.err, HasSubstr("rank 1 (process 1, pid " + std::to_string(killed)));
  EXPECT_THAT(result.err, HasSubstr("was killed by signal 9"));
  EXPECT_THAT(result.err, HasSubstr("[rank 0] tessera: error:"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
}

TEST_F(LaunchCommand, CtrlCEndsAllAfterTheStep) {
  const ProgramResult result = launch(
      {"--processes", "2"}, {"--data", write_text(), "--steps", "1000000", "--log", path("log")},
      [&](pid_t launcher) {
        while (read_file(path("log")).find("\"step\":3,") == std::string::npos) {
          std::this_thread::sleep_for(std::chrono::milliseconds(20));
        }
        kill(launcher, SIGINT);
      });
  EXPECT_EQ(result.exit_code, 128 + SIGINT) << result.err;
  EXPECT_THAT(result.out, HasSubstr("stopped after step"));
  EXPECT_EQ(read_log("log").back()["kind"], "summary");
}

TEST_F(LaunchCommand, TheFirstFailureIsReturned) {
  const ProgramResult result =
      launch({"--processes", "2"}, {"--data", path("missing.txt"), "--steps", "1"});
  EXPECT_EQ(result.exit_code, 2) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("missing.txt"), HasSubstr("failed with exit code 2")));
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

TEST_F(LaunchCommand, ServesWhatTorchrunExports) {
  const std::string data = write_text();
  ASSERT_EQ(train({"--data", data, "--steps", "3", "--ranks", "2", "--quiet", "--log",
                   path("threads.jsonl")})
                .exit_code,
            0);
  const std::string port = std::to_string(20000 + getpid() % 10000);
  for (const auto& [name, value] :
       {std::pair("WORLD_SIZE", "2"), std::pair("MASTER_ADDR", "127.0.0.1"),
        std::pair("MASTER_PORT", port.c_str())}) {
    setenv(name, value, 1);
  }
  // The second process is started while the first one runs; it prints and logs nothing.
  ProgramResult second;
  setenv("RANK", "0", 1);
  const std::vector<std::string> arguments{"--data", data,    "--steps",
                                           "3",      "--log", path("processes.jsonl")};
  const ProgramResult first = train(arguments, [&](pid_t) {
    setenv("RANK", "1", 1);
    second.exit_code = std::system((std::string(TESSERA_PROGRAM) +
                                    " train --layers 2 --heads 2 --width 16 --context-length 16 "
                                    "--micro-batch 2 --steps 3 --data " +
                                    data)
                                       .c_str());
  });
  for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) unsetenv(name);
  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_EQ(second.exit_code, 0);
  EXPECT_EQ(numbers("processes.jsonl"), numbers("threads.jsonl"));
}

TEST_F(LaunchCommand, WorksUnderMpirun) {
  if (std::system("command -v mpirun >/dev/null 2>&1") != 0) GTEST_SKIP() << "there is no mpirun";
  const std::string module =
      std::filesystem::path(TESSERA_PROGRAM).parent_path() / "libtessera_mpi.so";
  if (!std::filesystem::exists(module)) GTEST_SKIP() << "built without MPI";
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

}  // namespace
}  // namespace tessera
