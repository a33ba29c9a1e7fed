#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/program.h"

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

}  // namespace
}  // namespace tessera::calibrate_command_test
