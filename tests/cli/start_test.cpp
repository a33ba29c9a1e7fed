#include <fcntl.h>
#include <gmock/gmock.h>

#include <array>
#include <csignal>
#include <filesystem>

#include "cli/program.h"

// A signal before the first step.
namespace tessera::start_test {
namespace {

using test::ProgramResult;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class Start : public test::ProgramTest {
 protected:
  /// Runs tessera, and sends it `signal` while it writes its notes: between what watches for
  /// signals and the start of its ranks. There is more to write than the pipe holds, so that it
  /// cannot go on before all is read.
  ProgramResult signalled_at_its_notes(std::vector<std::string> words, int signal) const {
    std::array<int, 2> pipe{};
    EXPECT_EQ(::pipe2(pipe.data(), O_CLOEXEC), 0);
    EXPECT_EQ(fcntl(pipe[0], F_SETPIPE_SZ, 4096), 4096);
    const std::string out = path("stdout");
    words.insert(words.begin(), TESSERA_PROGRAM);
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, out.c_str(),
                                     O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_adddup2(&actions, pipe[1], STDERR_FILENO);
    pid_t pid = 0;
    EXPECT_EQ(posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(pipe[1]);
    ProgramResult result{};
    bool is_sent = false;
    std::array<char, 64> bytes{};
    for (ssize_t count = 0; (count = read(pipe[0], bytes.data(), bytes.size())) > 0;) {
      result.err.append(bytes.data(), static_cast<std::size_t>(count));
      if (is_sent || result.err.find("WARNING") == std::string::npos) continue;
      is_sent = true;
      kill(pid, signal);
    }
    close(pipe[0]);
    int status = 0;
    waitpid(pid, &status, 0);
    EXPECT_TRUE(is_sent) << result.err;
    EXPECT_TRUE(WIFEXITED(status)) << "it is not killed by it: " << status;
    result.exit_code = WEXITSTATUS(status);
    result.out = test::read_file(out);
    return result;
  }
};

TEST_F(Start, IsEndedBySignalsBeforeTheFirstStep) {
  const std::vector<std::string> words{"--data",          write_text(), "--steps", "1000",
                                       "--sample-tokens", "0",          "--save",  path("run"),
                                       "--ranks",         "2"};
  std::vector<std::string> first = words;
  first.insert(first.end(), {"--stop-after", "1"});
  ASSERT_EQ(train(first).exit_code, 0);
  // The note on these is long.
  for (int step = 100; step < 600; ++step) {
    std::filesystem::create_directory(path("run/step_" + std::to_string(step)));
  }
  write("run/latest", "step_599\n");
  std::vector<std::string> rest{"train", "--layers",         "2",  "--heads",       "2", "--width",
                                "16",    "--context-length", "16", "--micro-batch", "2"};
  rest.insert(rest.end(), words.begin(), words.end());
  rest.insert(rest.end(), {"--resume", "auto"});
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) {
    const ProgramResult result = signalled_at_its_notes(rest, signal);
    EXPECT_EQ(result.exit_code, 128 + signal) << result.err;
    EXPECT_THAT(result.out, HasSubstr("stopped before the first step"));
    EXPECT_THAT(result.err, AllOf(Not(HasSubstr("step 2/1000")), Not(HasSubstr("error"))));
  }
}

}  // namespace
}  // namespace tessera::start_test
