#include "tessera/trainer/output_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <string>

#include "temporary_folder.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string refusal(const std::string& path, Writing writing = Writing::kInPlace) {
  try {
    check_writable(path, "--log", writing);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIo);
    return error.what();
  }
  ADD_FAILURE() << "would write " << path;
  return "";
}

TEST(OutputFile, MakesItsFolderAndHoldsWhatWasWritten) {
  const test::TemporaryFolder folder;
  const std::string path = folder.path("a/b/file");
  OutputFile file(path, "--log");
  file.write("one\n");
  EXPECT_EQ(std::filesystem::file_size(path), 4U);
  EXPECT_EQ(file.path(), path);
}

TEST(OutputFile, HoldsNoPartOfWhatHadNoRoom) {
  const test::TemporaryFolder folder;
  const std::string path = folder.path("file");
  OutputFile file(path, "--log");
  file.write("a whole line\n");
  // In a process of its own: the limit holds for all that it writes.
  const auto write_too_much = [&] {
    const rlimit limit{.rlim_cur = 20, .rlim_max = 20};
    setrlimit(RLIMIT_FSIZE, &limit);
    std::signal(SIGXFSZ, SIG_IGN);
    try {
      file.write("a line that is too long\n");
    } catch (const Error& error) {
      const std::string what = error.what();
      const bool clear = what.find("writing failed (File too large); make room, or give --log") !=
                         std::string::npos;
      _exit(clear ? 0 : 2);
    }
    _exit(1);
  };
  EXPECT_EXIT(write_too_much(), testing::ExitedWithCode(0), "");
  EXPECT_EQ(std::filesystem::file_size(path), 13U);
}

TEST(OutputFile, KeepsWhatIsThereUntilTheFirstWrite) {
  const test::TemporaryFolder folder;
  const std::string path = folder.write("file", "precious");
  OutputFile file(path, "--log");
  EXPECT_EQ(std::filesystem::file_size(path), 8U);
  file.write("new\n");
  file.write("more\n");
  EXPECT_EQ(std::filesystem::file_size(path), 9U);
}

TEST(OutputFile, KeepsWhatIsThereOnRequest) {
  const test::TemporaryFolder folder;
  const auto add = [](const std::string& path, const char* line) {
    OutputFile file(path, "--log", Existing::kExtend);
    file.write(line);
    return std::pair(file.size(), std::filesystem::file_size(path));
  };
  EXPECT_EQ(add(folder.path("new"), "one\n"), std::pair(4L, 4UL));
  EXPECT_EQ(add(folder.write("lines", "one\n"), "two\n"), std::pair(8L, 8UL));
  // A run that was killed has left half a line: the next one begins on its own.
  EXPECT_EQ(add(folder.write("cut", "one\ntw"), "three\n"), std::pair(13L, 13UL));
}

TEST(OutputFile, HoldsSomethingOrNot) {
  const test::TemporaryFolder folder;
  EXPECT_FALSE(holds_something(folder.path("none")));
  EXPECT_FALSE(holds_something(folder.write("empty", "")));
  EXPECT_FALSE(holds_something(folder.path()));
  EXPECT_FALSE(holds_something("/dev/zero"));
  EXPECT_TRUE(holds_something(folder.write("file", "x")));
}

TEST(OutputFile, CheckingMakesAndChangesNothing) {
  const test::TemporaryFolder folder;
  const std::string file = folder.write("file", "precious");
  check_writable(file, "--log");
  check_writable(folder.path("new"), "--log");
  check_writable(folder.path("a/b/new"), "--log");
  check_writable("new", "--log");  // in the current folder
  check_writable("/dev/null", "--log");
  EXPECT_EQ(std::filesystem::file_size(file), 8U);
  EXPECT_FALSE(std::filesystem::exists(folder.path("new")));
  EXPECT_FALSE(std::filesystem::exists(folder.path("a")));
  EXPECT_FALSE(std::filesystem::exists("new"));
}

TEST(OutputFile, CheckingSaysWhyItCannotBeWritten) {
  const test::TemporaryFolder folder;
  const std::string file = folder.write("file", "x");
  EXPECT_THAT(refusal(folder.path()), AllOf(HasSubstr("directory"), HasSubstr("--log")));
  EXPECT_THAT(refusal(file + "/in/it"), AllOf(HasSubstr("in/it"), HasSubstr("Not a directory")));
  EXPECT_THAT(refusal(folder.path(), Writing::kByReplacing), HasSubstr("directory"));
}

TEST(OutputFile, CheckingFollowsLinksAsWritingDoes) {
  const test::TemporaryFolder folder;
  const auto link = [&](const std::string& target, const char* name) {
    std::filesystem::create_symlink(target, folder.path(name));
    return folder.path(name);
  };
  check_writable(link(folder.path("new"), "to_new"), "--log");
  check_writable(link("to_new", "to_link"), "--log");
  EXPECT_THAT(refusal(link("loop", "loop")), HasSubstr("symbolic links"));
  EXPECT_THAT(refusal(folder.path(std::string(256, 'x'))), HasSubstr("name too long"));
}

TEST(OutputFile, CheckingSeesWhatPermissionsForbid) {
  if (geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  const test::TemporaryFolder folder;
  const std::string file = folder.write("file", "x");
  const auto forbid = std::filesystem::perms::owner_read;
  std::filesystem::permissions(file, forbid);
  EXPECT_THAT(refusal(file), HasSubstr("Permission denied"));
  EXPECT_THAT(refusal("/usr/a/b"), HasSubstr("Permission denied"));
}

TEST(OutputFile, WhatIsReplacedNeedsAFolderThatIsWritable) {
  if (geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  const test::TemporaryFolder folder;
  const std::string file = folder.write("file", "x");
  const std::string link = folder.path("link");
  std::filesystem::permissions(file, std::filesystem::perms::owner_read);
  check_writable(file, "--log", Writing::kByReplacing);
  std::filesystem::create_symlink("/etc/passwd", link);
  EXPECT_THAT(refusal(link, Writing::kByReplacing), HasSubstr("Permission denied"));
  EXPECT_THAT(refusal("/usr/a/b", Writing::kByReplacing), HasSubstr("Permission denied"));
}

}  // namespace
}  // namespace tessera
