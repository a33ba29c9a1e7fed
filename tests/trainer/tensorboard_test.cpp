#include "tessera/trainer/tensorboard.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>

#include "temporary_folder.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The data of each record; checks nothing but that the lengths add up.
std::vector<std::string> records(const std::string& bytes) {
  std::vector<std::string> all;
  std::size_t at = 0;
  while (at < bytes.size()) {
    std::uint64_t length = 0;
    std::memcpy(&length, bytes.data() + at, sizeof length);
    all.push_back(bytes.substr(at + 12, length));
    at += 12 + length + 4;
  }
  EXPECT_EQ(at, bytes.size());
  return all;
}

TEST(TensorBoardLog, BeginsWithTheVersionAndKeepsTagsAndValues) {
  const test::TemporaryFolder folder;
  TensorBoardLog log(folder.path("new/board"));
  log.scalars(300, {{"train/loss", 0.5}});
  const auto all = records(contents(log.path()));
  ASSERT_EQ(all.size(), 2U);
  EXPECT_NE(all[0].find("brain.Event:2"), std::string::npos);
  // step 300 as a varint, then the summary: one value with its tag and the float 0.5.
  EXPECT_NE(all[1].find(std::string("\x10\xac\x02")), std::string::npos);
  EXPECT_NE(all[1].find(std::string("\x0a\x0atrain/loss\x15\x00\x00\x00\x3f", 17)),
            std::string::npos);
}

TEST(TensorBoardLog, AnEvaluationIsTwoScalarsOfItsStep) {
  const test::TemporaryFolder folder;
  TensorBoardLog log(folder.path("board"));
  log.evaluation({.step = 300, .loss = 0.5, .perplexity = 2.0, .tokens = 9});
  const auto all = records(contents(log.path()));
  ASSERT_EQ(all.size(), 2U);
  EXPECT_NE(all[1].find(std::string("\x10\xac\x02")), std::string::npos);
  for (const std::string& value : {std::string("\x0a\x09"
                                               "eval/loss\x15\x00\x00\x00\x3f",
                                               16),
                                   std::string("\x0a\x0f"
                                               "eval/perplexity\x15\x00\x00\x00\x40",
                                               22)}) {
    EXPECT_NE(all[1].find(value), std::string::npos) << value;
  }
}

TEST(TensorBoardLog, ChecksumsAreThoseOfTfRecord) {
  const test::TemporaryFolder folder;
  const TensorBoardLog log(folder.path("board"));
  const std::string bytes = contents(log.path());
  // The length of the first record, 24 bytes, and its masked CRC-32C, as TensorFlow writes them.
  ASSERT_GE(bytes.size(), 12U);
  EXPECT_EQ(bytes.substr(0, 12), std::string("\x18\0\0\0\0\0\0\0\xa3\x7f\x4b\x22", 12));
}

TEST(TensorBoardLog, TellsItsFilesFromOthers) {
  const test::TemporaryFolder folder;
  const std::string board = folder.path("board");
  EXPECT_TRUE(event_files(board).empty());
  const std::string ours = TensorBoardLog(board).path();
  const std::string other = folder.write("board/events.out.tfevents.1700000000.host.1.0", "x");
  folder.write("board/notes.txt", "x");
  EXPECT_EQ(event_files(board).size(), 2U);
  EXPECT_TRUE(is_our_event_file(ours));
  EXPECT_FALSE(is_our_event_file(other));
}

TEST(TensorBoardLog, AFolderThatCannotBeMadeIsNamed) {
  const test::TemporaryFolder folder;
  const std::string file = folder.write("file", "x");
  try {
    const TensorBoardLog log(file + "/board");
    FAIL() << "made a folder in a file";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIo);
    EXPECT_NE(std::string(error.what()).find("`tensorboard`"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace tessera
