#include "tessera/trainer/output_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

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
