#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "cli/program.h"
#include "tessera/lab/hardware_profile.h"

namespace tessera::calibrate_command_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class CalibrateCommand : public test::ProgramTest {
 protected:
  std::string refused(std::vector<std::string> flags) const {
    flags.insert(flags.begin(), "calibrate");
    const test::ProgramResult result = run(flags);
    EXPECT_NE(result.exit_code, 0);
    EXPECT_EQ(result.out, "");
    return result.err;
  }
};

TEST_F(CalibrateCommand, TimesOneThing) {
  const auto says_both =
      AllOf(HasSubstr("choose what to time: --profile FILE.json"), HasSubstr("--gemm-table FILE"));
  EXPECT_THAT(refused({}), says_both);
  EXPECT_THAT(refused({"--quick"}), says_both);
  EXPECT_THAT(refused({"--profile", path("p.json"), "--gemm-table", path("t.json")}), says_both);
}

TEST_F(CalibrateCommand, AFileThatCannotBeWrittenIsRefusedBeforeAnythingIsTimed) {
  const std::string file = write("file", "text");
  EXPECT_THAT(refused({"--profile", file + "/p.json"}),
              AllOf(HasSubstr("cannot be written"), HasSubstr("give --profile a path")));
  std::filesystem::create_directories(path("folder"));
  EXPECT_THAT(refused({"--profile", path("folder")}), HasSubstr("give --profile a path"));
}

/// Threads that keep every core busy several times over while it lives.
class BusyMachine {
 public:
  BusyMachine() {
    constexpr unsigned kForEachCore = 4;
    const unsigned count = kForEachCore * std::max(std::thread::hardware_concurrency(), 1U);
    for (unsigned i = 0; i < count; ++i) {
      threads_.emplace_back([this] {
        while (!over_) {
        }
      });
    }
  }
  ~BusyMachine() {
    over_ = true;
    for (std::thread& thread : threads_) thread.join();
  }
  BusyMachine(const BusyMachine&) = delete;
  BusyMachine& operator=(const BusyMachine&) = delete;

 private:
  std::atomic<bool> over_ = false;
  std::vector<std::thread> threads_;
};

TEST_F(CalibrateCommand, ABusyMachineIsRefusedBeforeAnythingIsTimed) {
  const BusyMachine busy;
  EXPECT_THAT(refused({"--device", "cpu", "--profile", path("p.json")}),
              AllOf(HasSubstr("error: this machine is busy: "), HasSubstr("none was written"),
                    HasSubstr("--anyway")));
  EXPECT_FALSE(std::filesystem::exists(path("p.json")));
}

TEST_F(CalibrateCommand, AnywayWritesAProfileWithItsNoise) {
  const test::ProgramResult result =
      run({"calibrate", "--device", "cpu", "--profile", path("p.json"), "--quick", "--time-budget",
           "1", "--anyway"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr(", 0 of 1 s  "));
  EXPECT_THAT(result.out, HasSubstr("a longer --time-budget measures more"));
  const HardwareProfile profile = find_profile(path("p.json"));
  ASSERT_TRUE(profile.noise);
  EXPECT_GT(profile.noise->points, 0);
  EXPECT_GT(profile.noise->left_out, 0);
}

TEST_F(CalibrateCommand, AModelsStepsAreAddedToAProfile) {
  const std::vector<std::string> calibrate{"calibrate",    "--device", "cpu",           "--profile",
                                           path("p.json"), "--quick",  "--time-budget", "1",
                                           "--anyway"};
  ASSERT_EQ(run(calibrate).exit_code, 0);
  const HardwareProfile alone = find_profile(path("p.json"));
  const std::vector<std::string> model{"--model",       "gpt2-tiny", "--layers",          "1",
                                       "--micro-batch", "1",         "--sequence-length", "16"};
  std::vector<std::string> words = calibrate;
  words.insert(words.end(), model.begin(), model.end());
  const test::ProgramResult result = run(words);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("are kept"));
  EXPECT_THAT(result.out, HasSubstr(": a step takes "));
  const HardwareProfile profile = find_profile(path("p.json"));
  EXPECT_EQ(profile.kernels.size(), alone.kernels.size());
  const std::size_t kinds = profile.steps.size();
  EXPECT_TRUE(kinds == 2 || kinds == 4) << "one thread and all, recomputed and not: " << kinds;
  ASSERT_EQ(run(words).exit_code, 0);
  EXPECT_EQ(find_profile(path("p.json")).steps.size(), kinds) << "replaced, not added again";

  std::vector<std::string> simulate{"simulate", "--profile", path("p.json"), "--ranks", "2"};
  simulate.insert(simulate.end(), model.begin(), model.end());
  EXPECT_THAT(run(simulate).out, HasSubstr(" % measured in steps"));
}

TEST_F(CalibrateCommand, AgainKeepsTheFasterTimes) {
  const std::vector<std::string> calibrate{"calibrate",    "--device", "cpu",           "--profile",
                                           path("p.json"), "--quick",  "--time-budget", "1",
                                           "--anyway",     "--again"};
  ASSERT_EQ(run(calibrate).exit_code, 0) << "there is no file yet";
  HardwareProfile before = find_profile(path("p.json"));
  KernelRates::Point &slow = before.kernels[0].points[0], &fast = before.kernels[1].points[0];
  slow.per_second = 1.0;
  fast.per_second = 1e18;
  const std::vector<double> size = slow.size;
  std::ofstream(path("p.json")) << to_text(before);
  ASSERT_EQ(run(calibrate).exit_code, 0);
  const HardwareProfile both = find_profile(path("p.json"));
  EXPECT_GT(both.kernels[0].points[0].per_second, 1.0);
  EXPECT_EQ(both.kernels[0].points[0].size, size);
  EXPECT_EQ(both.kernels[1].points[0].per_second, 1e18);
  EXPECT_GE(both.kernels.size(), before.kernels.size());
  std::ofstream(path("gpu.json")) << to_text(find_profile("h100-sxm"));
  EXPECT_THAT(refused({"--device", "cpu", "--again", "--profile", path("gpu.json")}),
              HasSubstr("is of a GPU"));
}

TEST_F(CalibrateCommand, AProfileOfABusyMachineIsNotedOnce) {
  HardwareProfile profile = find_profile("h100-sxm");
  profile.name = "here";
  const std::string quiet = write("quiet.json", to_text(profile));
  profile.noise = {.others = 0.5, .points = 10};
  const std::string busy = write("busy.json", to_text(profile));
  const std::vector<std::string> model{"--model", "gpt2-tiny", "--ranks", "2"};
  const auto notes = [&](std::vector<std::string> words) {
    words.insert(words.end(), model.begin(), model.end());
    const test::ProgramResult result = run(words);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    const std::string note =
        "note: the profile here was measured on a busy machine (other "
        "programs had 50 % of the cores)";
    int count = 0;
    for (std::size_t at = 0; (at = result.err.find(note, at)) != std::string::npos; ++at) ++count;
    return count;
  };
  EXPECT_EQ(notes({"simulate", "--profile", busy, "--sweep", "micro-batch=1,2"}), 1);
  EXPECT_EQ(notes({"simulate", "--profile", quiet}), 0);
  EXPECT_EQ(notes({"plan", "--fit", "auto", "--fit-profile", busy}), 1);
  const test::ProgramResult compared =
      run({"compare", "--strategies", "zero1", "--ranks", "2", "--model", "gpt2-tiny",
           "--only-simulate", "--simulate", busy, "--out", path("compared")});
  EXPECT_THAT(compared.err, HasSubstr("was measured on a busy machine"));
}

}  // namespace
}  // namespace tessera::calibrate_command_test
