// What a data set is made of: folders, patterns, and files that are not what they should be.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <numeric>
#include <thread>

#include "temporary_folder.h"
#include "tessera/core/error.h"
#include "tessera/model/dataset.h"

namespace tessera::dataset_files_test {
namespace {

namespace fs = std::filesystem;
using test::TemporaryFolder;
using testing::ElementsAre;
using testing::HasSubstr;
using Ids = std::vector<std::uint16_t>;

/// All bytes or tokens that samples of the path cover, as a string.
std::string content(DatasetOptions options) {
  options.sequence_length = 1;
  options.shuffle = false;
  const TokenDataset dataset(options);
  const std::int64_t samples = dataset.samples_per_epoch();
  std::vector<std::int32_t> inputs(static_cast<std::size_t>(samples));
  std::vector<std::int32_t> targets(inputs.size());
  const Shape shape = dataset.input_shape(samples);
  dataset.fill(0, samples, {inputs.data(), DType::kInt32, shape},
               {targets.data(), DType::kInt32, shape});
  inputs.push_back(targets.back());
  std::string text;
  for (const std::int32_t token : inputs) text += static_cast<char>(token);
  return text;
}

void expect_error(ErrorCode code, const std::vector<std::string>& parts,
                  const DatasetOptions& options) {
  try {
    const TokenDataset dataset(options);
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    for (const std::string& part : parts) EXPECT_THAT(error.what(), HasSubstr(part));
  }
}

TEST(DataFiles, AFolderIsReadInOrderOfPaths) {
  TemporaryFolder folder;
  folder.write("b.txt", "BB");
  folder.write("a/z.txt", "AZ\n");
  folder.write("a/B.txt", "AB");
  folder.write("a.txt", "A");
  folder.write("empty.txt", "");
  // '.' sorts before '/', and capitals before small letters.
  EXPECT_EQ(content({.path = folder.path()}), "A\nAB\nAZ\n\nBB");
}

TEST(DataFiles, SamplesCrossFilesAtEveryOffset) {
  TemporaryFolder folder;
  folder.write("1", "abc");
  folder.write("2", "d");
  folder.write("3", "efghi");
  const std::string stream = "abc\nd\nefghi";
  for (std::int64_t length = 1; length < 11; ++length) {
    const TokenDataset dataset(
        {.path = folder.path(), .sequence_length = length, .shuffle = false});
    for (std::int64_t i = 0; i < dataset.samples_per_epoch(); ++i) {
      std::vector<std::int32_t> inputs(static_cast<std::size_t>(length));
      std::vector<std::int32_t> targets(inputs.size());
      dataset.fill(i, 1, {inputs.data(), DType::kInt32, {1, length}},
                   {targets.data(), DType::kInt32, {1, length}});
      const auto begin = static_cast<std::size_t>(i * length);
      const auto size = static_cast<std::size_t>(length);
      EXPECT_EQ(std::string(inputs.begin(), inputs.end()), stream.substr(begin, size));
      EXPECT_EQ(std::string(targets.begin(), targets.end()), stream.substr(begin + 1, size));
    }
  }
}

TEST(DataFiles, LeavesOutWhatIsNoTextAndSaysSo) {
  TemporaryFolder folder;
  folder.write("a.txt", "text");
  folder.write("nul.dat", std::string("te\0xt", 5));
  folder.write("control.dat", "\x01\x02\x03\x04");
  folder.write("large.txt", std::string(100, 'x'));
  folder.write(".hidden", "secret");
  folder.write(".git/config", "secret");
  folder.write("build/log.txt", "noise");
  folder.write("src/out/log.txt", "noise");
  folder.write("builder/b.txt", "more");
  fs::create_symlink("nowhere", folder.path("dangling.txt"));
  const DatasetOptions options{.path = folder.path(), .sequence_length = 1, .max_file_bytes = 99};
  EXPECT_EQ(content(options), "text\nmore");
  const TokenDataset dataset(options);
  EXPECT_THAT(dataset.notes(),
              ElementsAre(testing::AllOf(HasSubstr("not text"), HasSubstr("control.dat, "),
                                         HasSubstr("nul.dat")),
                          testing::AllOf(HasSubstr("over 99 bytes"), HasSubstr("large.txt")),
                          testing::AllOf(HasSubstr("nowhere"), HasSubstr("dangling.txt")),
                          testing::AllOf(HasSubstr("build output"), HasSubstr("/build, "))));
}

TEST(DataFiles, FollowsLinksToFilesButNoLoops) {
  TemporaryFolder folder;
  TemporaryFolder elsewhere;
  folder.write("a/a.txt", "A");
  fs::create_directory_symlink(folder.path(), folder.path("a/loop"));
  fs::create_directory_symlink("self", folder.path("self"));
  fs::create_symlink(elsewhere.write("b.txt", "B"), folder.path("b.txt"));
  EXPECT_EQ(content({.path = folder.path()}), "A\nB");
  fs::create_directory_symlink(folder.path(), elsewhere.path("link"));
  EXPECT_EQ(content({.path = elsewhere.path("link")}), "A\nB");
}

TEST(DataFiles, NamesAPathThatIsNotThere) {
  TemporaryFolder folder;
  fs::create_symlink("nowhere", folder.path("dangling"));
  fs::create_symlink("loop", folder.path("loop"));
  expect_error(ErrorCode::kNotFound, {"'" + folder.path("none.txt") + "'"},
               {.path = folder.path("none.txt")});
  expect_error(ErrorCode::kNotFound, {folder.path("dangling")}, {.path = folder.path("dangling")});
  expect_error(ErrorCode::kNotFound, {"*.bin"}, {.path = folder.path("*.bin")});
  expect_error(ErrorCode::kIo, {folder.path("loop"), "symbolic links; name another"},
               {.path = folder.path("loop")});
  expect_error(ErrorCode::kConfig, {"no data"}, {.path = ""});
}

TEST(DataFiles, NamesAFolderWithNothingToRead) {
  TemporaryFolder folder;
  expect_error(ErrorCode::kNotFound, {folder.path(), "no text"}, {.path = folder.path()});
  folder.write("image.png", std::string("\x89PNG\0\0", 6));
  expect_error(ErrorCode::kNotFound, {"1 files that are not text"}, {.path = folder.path()});
  expect_error(ErrorCode::kNotFound, {"no token files (*.bin)"},
               {.path = folder.path(), .kind = DataKind::kTokens});
}

TEST(DataFiles, RejectsWhatIsNoRegularFile) {
  TemporaryFolder folder;
  // Must not wait for somebody to write into the pipe.
  ASSERT_EQ(mkfifo(folder.path("pipe").c_str(), 0600), 0);
  for (const DataKind kind : {DataKind::kAuto, DataKind::kText, DataKind::kTokens}) {
    for (const char* name : {"pipe", "pip*"}) {
      expect_error(ErrorCode::kConfig, {"pipe", "not a regular file; copy its content to one"},
                   {.path = folder.path(name), .kind = kind});
    }
    expect_error(ErrorCode::kConfig, {"/dev/zero", "regular file; copy"},
                 {.path = "/dev/zero", .kind = kind});
  }
  expect_error(ErrorCode::kNotFound, {"no text"}, {.path = folder.path()});
}

TEST(DataFiles, RejectsEmptyFiles) {
  TemporaryFolder folder;
  for (const char* name : {"empty.txt", "empty.bin"}) {
    expect_error(ErrorCode::kConfig, {name, "is empty"}, {.path = folder.write(name, "")});
  }
  const std::string no_tokens = folder.write_tokens("none.tok", {20240520, 1, 0}, Ids{});
  expect_error(ErrorCode::kConfig, {"is empty"}, {.path = no_tokens});
}

TEST(DataFiles, AsksWhatABinaryFileIs) {
  TemporaryFolder folder;
  const std::string path = folder.write("data", std::string("ab\0\1cd", 6));
  expect_error(ErrorCode::kConfig, {path, "'tokens'", "'text'"}, {.path = path});
  EXPECT_EQ(content({.path = path, .kind = DataKind::kText}), std::string("ab\0\1cd", 6));
}

TEST(DataFiles, SaysWhatToMakeOfATable) {
  TemporaryFolder folder;
  const std::string path = folder.write("data.csv", "prompt,completion\na,b\n");
  expect_error(ErrorCode::kConfig, {path, "is a table", ".jsonl", "'text'"}, {.path = path});
  EXPECT_EQ(content({.path = path, .kind = DataKind::kText}), "prompt,completion\na,b\n");
}

TEST(DataFiles, NeverMixesTokensAndText) {
  TemporaryFolder folder;
  folder.write_tokens("train.bin", {}, Ids{'a', 'b', 'c'});
  folder.write("input.txt", "text");
  expect_error(ErrorCode::kConfig, {"train.bin", "input.txt", "data kind"},
               {.path = folder.path()});
  expect_error(ErrorCode::kConfig, {"train.bin", "input.txt"}, {.path = folder.path("*")});
  EXPECT_EQ(content({.path = folder.path(), .kind = DataKind::kTokens}), "abc");
  EXPECT_EQ(content({.path = folder.path(), .kind = DataKind::kText}), "text");
}

TEST(DataFiles, NeverTrainsOnValidationShards) {
  TemporaryFolder folder;
  folder.write_tokens("fineweb_train_000001.bin", {}, Ids{'a', 'b'});
  folder.write_tokens("fineweb_val_000000.bin", {}, Ids{'c', 'd'});
  expect_error(ErrorCode::kConfig, {"fineweb_train_000001.bin", "fineweb_val_000000.bin"},
               {.path = folder.path()});
  EXPECT_EQ(content({.path = folder.path("*train*.bin")}), "ab");
}

TEST(DataFiles, RejectsDamagedTokenFiles) {
  TemporaryFolder folder;
  const Ids ids{1, 2, 3};
  expect_error(ErrorCode::kIo, {"odd.bin", "5 bytes", "odd"},
               {.path = folder.write("odd.bin", "abcde")});
  expect_error(ErrorCode::kIo, {"ends after 8 of the 1024"},
               {.path = folder.write("cut.bin", std::string("\x88\xd8\x34\x01\1\0\0\0", 8))});
  expect_error(ErrorCode::kIo, {"announces 4 tokens of 2 bytes, but 6 bytes follow"},
               {.path = folder.write_tokens("few.bin", {20240520, 1, 4}, ids)});
  expect_error(ErrorCode::kIo, {"announces 2 tokens"},
               {.path = folder.write_tokens("many.bin", {20240520, 1, 2}, ids)});
  expect_error(ErrorCode::kIo, {"announces -1 tokens"},
               {.path = folder.write_tokens("negative.bin", {20240520, 1, -1}, ids)});
  expect_error(ErrorCode::kIo, {"announces 3 tokens of 4 bytes"},
               {.path = folder.write_tokens("wide.bin", {20240801, 7, 3}, ids)});
  expect_error(ErrorCode::kConfig, {"version 2", "make the file again"},
               {.path = folder.write_tokens("version.bin", {20240520, 2, 3}, ids)});
  expect_error(ErrorCode::kConfig, {"multiple choice"},
               {.path = folder.write_tokens("eval.bin", {20240522, 1, 3}, ids)});
}

// Touching a page that a mapped file has lost would end the process.
TEST(DataFiles, ReportsAFileThatShrinks) {
  TemporaryFolder folder;
  const std::string path = folder.write("a.txt", std::string(1 << 20, 'x'));
  const TokenDataset dataset({.path = path, .sequence_length = 4});
  std::vector<std::int32_t> tokens(4);
  const TensorView view(tokens.data(), DType::kInt32, {1, 4});
  EXPECT_EQ(dataset.fill(0, 1, view, view), 4);
  fs::resize_file(path, 1 << 19);
  try {
    dataset.fill(0, 1, view, view);
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIo);
    EXPECT_THAT(error.what(), HasSubstr("shrank from 1048576 to 524288"));
  }
  EXPECT_THROW(dataset.check_vocabulary(100), Error);
}

TEST(DataFiles, ReportsAFileThatShrinksWhileItIsRead) {
  TemporaryFolder folder;
  const std::string path = folder.write("a.txt", "");
  fs::resize_file(path, std::uintmax_t{4} << 30);  // a hole, so no bytes on the disk
  const TokenDataset dataset({.path = path, .kind = DataKind::kText, .sequence_length = 4});
  std::jthread shrink([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    fs::resize_file(path, 1 << 17);
  });
  try {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (std::chrono::steady_clock::now() < end) dataset.check_vocabulary(100);
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("shrank from 4294967296 to 131072"));
  }
}

// As many of its descriptors as the process has: the folder itself can be opened, or no file.
TEST(DataFiles, SaysWhatToRaiseIfFilesRunOut) {
  TemporaryFolder folder;
  folder.write("in/a.txt", "text");
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  const int next = dup(STDIN_FILENO);
  close(next);
  for (const int left : {0, 1, 2}) {
    const rlimit few{static_cast<rlim_t>(next + left), before.rlim_max};
    setrlimit(RLIMIT_NOFILE, &few);
    expect_error(ErrorCode::kIo, {"Too many open files; raise", "ulimit -n"},
                 {.path = folder.path()});
  }
  const rlimit none{0, before.rlim_max};
  setrlimit(RLIMIT_NOFILE, &none);
  expect_error(ErrorCode::kIo, {"cannot expand", "Too many open files; raise"},
               {.path = folder.path("*/*.txt")});
  setrlimit(RLIMIT_NOFILE, &before);
}

TEST(DataFiles, NamesTheFolderThatCannotBeSearched) {
  if (geteuid() == 0) GTEST_SKIP() << "root may read everything";
  TemporaryFolder folder;
  folder.write("in/a.txt", "text");
  fs::permissions(folder.path("in"), fs::perms::none);
  expect_error(ErrorCode::kIo, {folder.path("in") + "': Permission denied; make it readable"},
               {.path = folder.path()});
  fs::permissions(folder.path("in"), fs::perms::owner_all);
}

TEST(DataFiles, KeepsReadingAFileThatIsReplaced) {
  TemporaryFolder folder;
  const std::string path = folder.write("a.txt", std::string(1 << 20, 'x'));
  const TokenDataset dataset({.path = path, .sequence_length = 4});
  fs::rename(folder.write("b.txt", "short"), path);
  std::vector<std::int32_t> tokens(4);
  const TensorView view(tokens.data(), DType::kInt32, {1, 4});
  EXPECT_EQ(dataset.fill(0, 1, view, view), 4);
  EXPECT_EQ(tokens, (std::vector<std::int32_t>(4, 'x')));
}

TEST(DataFiles, ReadsMoreFilesThanAProcessMayHaveOpen) {
  TemporaryFolder folder;
  for (int i = 0; i < 3000; ++i) folder.write(concat(i), "x");
  EXPECT_EQ(TokenDataset({.path = folder.path(), .sequence_length = 1}).tokens(), 2 * 3000 - 1);
}

}  // namespace
}  // namespace tessera::dataset_files_test
