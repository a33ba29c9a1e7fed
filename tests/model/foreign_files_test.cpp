// Files of other programs, which must not be trained on as uint16 tokens, and what a run says of
// the files that it takes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "temporary_folder.h"
#include "tessera/core/error.h"
#include "tessera/model/dataset.h"

namespace tessera {
namespace {

using namespace std::string_literals;
using test::TemporaryFolder;
using testing::ElementsAre;
using testing::HasSubstr;

/// GPT-2-like ids: small ones are frequent, -1 stands for padding now and then.
template <typename T>
std::vector<T> ids(std::int64_t count, std::int64_t vocabulary = 50257) {
  std::mt19937 generator(3);
  std::exponential_distribution<double> rank(8.0 / static_cast<double>(vocabulary));
  std::vector<T> result;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto id = static_cast<std::int64_t>(rank(generator)) % vocabulary;
    result.push_back(static_cast<T>(i % 1000 == 999 ? -1 : id));
  }
  return result;
}

std::string error_of(const DatasetOptions& options) {
  try {
    const TokenDataset dataset(options);
    ADD_FAILURE() << options.path << " was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kConfig) << error.what();
    return error.what();
  }
  return "";
}

TEST(ForeignFiles, AreNamedByTheirMagic) {
  TemporaryFolder folder;
  std::string tail;  // as compressed data and numbers have it: any byte
  for (int i = 0; i < 2048; ++i) tail += static_cast<char>(i * 73 + i / 256);
  std::string tar = "notes.txt"s + std::string(248, '\0') + "ustar";
  const std::vector<std::pair<std::string, const char*>> starts{
      {"\x93NUMPY\x01\0v\0"s, "NumPy array"},
      {"PK\x03\x04\x14\0"s, "zip archive"},
      {"\x1f\x8b\x08\0\0\0"s, "gzip-compressed"},
      {"\xfd\x37zXZ\0\0\x04"s, "xz-compressed"},
      {"\x28\xb5\x2f\xfd\x04"s, "zstd-compressed"},
      {"BZh91AY&SY"s, "bzip2-compressed"},
      {"\x80\x04\x95\x10\0\0\0\0\0\0\0]\x94"s, "Python pickle"},
      {"\x80\x02\x8a\x0al\xfc\x9c\x46\xf9"s, "pickle of PyTorch"},
      {"PAR1\x15\x04"s, "Parquet"},
      {"ARROW1\0\0"s, "Arrow file"},
      {"\xff\xff\xff\xff\x78\x01\0\0\x10\0\0\0"s, "Arrow stream"},
      {"\x89HDF\r\n\x1a\n"s, "HDF5"},
      {"SQLite format 3\0"s, "SQLite"},
      {"BIN.TOK\n\x01\0\0\0"s, "llmq"},
      {"\x10\x01\0\0\0\0\0\0{\"wte\":"s, "safetensors"},
      {"GGUF\x03\0\0\0"s, "GGUF"},
      {tar, "tar archive"},
  };
  for (const auto& [start, name] : starts) {
    SCOPED_TRACE(name);
    // By name token files, by option, or neither text nor named as tokens.
    const std::string bin = folder.write("x.bin", start + tail);
    const std::string other = folder.write("x.dat", start + tail);
    for (const DatasetOptions& options :
         {DatasetOptions{.path = bin}, DatasetOptions{.path = other, .kind = DataKind::kTokens},
          DatasetOptions{.path = other}}) {
      const std::string error = error_of(options);
      EXPECT_THAT(error, HasSubstr("'" + options.path + "'"));
      EXPECT_THAT(error, HasSubstr("seems to be "));
      EXPECT_THAT(error, HasSubstr(name));
      EXPECT_THAT(error, HasSubstr("; "));
    }
    // Its bytes, if that is what the user wants.
    EXPECT_NO_THROW(TokenDataset({.path = other, .kind = DataKind::kText, .sequence_length = 8}));
  }
}

TEST(ForeignFiles, AHeaderThatIsNotKnownIsNoTokens) {
  TemporaryFolder folder;
  const auto tokens = ids<std::uint16_t>(5000);
  for (const std::int32_t magic : {20240326, 20240328, 20240803, 20251013}) {
    const std::string error =
        error_of({.path = folder.write_tokens("dated.bin", {magic, 3, 5000}, tokens)});
    EXPECT_THAT(error, HasSubstr(concat("magic ", magic, ", version 3")));
    EXPECT_THAT(error, HasSubstr("20240520, version 1"));
  }
  EXPECT_THAT(error_of({.path = folder.write_tokens("own.bin", {77, 1, 5000}, tokens)}),
              HasSubstr("a header of its own (its first number is 77)"));
}

TEST(ForeignFiles, WideIntegersAreNoTokens) {
  TemporaryFolder folder;
  const auto expect = [&](const std::string& path, const char* dtype) {
    const std::string error = error_of({.path = path});
    EXPECT_THAT(error, HasSubstr(concat("a dump of ", dtype, " numbers")));
    EXPECT_THAT(error, HasSubstr(concat("np.fromfile(PATH, np.", dtype, ")")));
  };
  for (const std::int64_t count : {40, 100'000, 1'000'000}) {
    SCOPED_TRACE(count);
    expect(folder.write_tokens("a.bin", {}, ids<std::int64_t>(count)), "int64");
    expect(folder.write_tokens("b.bin", {}, ids<std::int32_t>(count)), "int32");
    expect(folder.write_tokens("c.bin", {}, ids<std::uint32_t>(count, 128256)), "int32");
    expect(folder.write_tokens("d.bin", {}, ids<std::int64_t>(count, 128256)), "int64");
  }
  // Half of it is padding with zeros.
  auto padded = ids<std::int64_t>(20'000);
  padded.resize(40'000);
  expect(folder.write_tokens("e.bin", {}, padded), "int64");
}

TEST(ForeignFiles, TextIsNoTokensWhateverItsName) {
  TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 500; ++i) text += "To be, or not to be: that is the question.\n";
  EXPECT_THAT(error_of({.path = folder.write("a.bin", text)}), HasSubstr("seems to be text; set"));
  EXPECT_THAT(error_of({.path = folder.write("b.bin", "{\"text\": \"" + text + "\"}\n")}),
              HasSubstr("seems to be JSON; set the data kind to 'text'"));
  EXPECT_THAT(error_of({.path = folder.write("c.txt", text), .kind = DataKind::kTokens}),
              HasSubstr("seems to be text"));
}

TEST(ForeignFiles, RealTokensAreTaken) {
  TemporaryFolder folder;
  const auto take = [&](const std::vector<std::uint16_t>& tokens) {
    EXPECT_NO_THROW(
        TokenDataset({.path = folder.write_tokens("a.bin", {}, tokens), .sequence_length = 1}));
  };
  take(ids<std::uint16_t>(100'000));
  take(ids<std::uint16_t>(100'000, 300));
  take(ids<std::uint16_t>(1000, 3));
  take(std::vector<std::uint16_t>(1000, 0));
  take(std::vector<std::uint16_t>(1000, 5));
  auto padded = ids<std::uint16_t>(50'000);  // padded in front and behind
  padded.insert(padded.begin(), 5000, 0);
  padded.resize(200'000);
  take(padded);
  take({7, 0, 9, 0});  // too few to tell
  for (std::uint16_t first = 0; first < 65535; first += 257) take({first, 13, 262, 3290});
}

TEST(ForeignFiles, WhatIsAssumedIsSaid) {
  TemporaryFolder folder;
  const auto tokens = ids<std::uint16_t>(1000);
  const std::string raw = folder.write_tokens("raw.bin", {}, tokens);
  const std::string gpt2 = folder.write_tokens("x_gpt2.bin", {20240520, 1, 1000}, tokens);
  const std::string llama =
      folder.write_tokens("y_llama.bin", {20240801, 7, 3}, std::vector<std::uint32_t>{1, 2, 3});
  EXPECT_THAT(TokenDataset({.path = folder.path("*"), .sequence_length = 8}).assumptions(),
              ElementsAre("'" + gpt2 + "' is read as uint16 with llm.c's header: 1000 tokens",
                          "'" + raw + "' is read as uint16 without a header: 1000 tokens",
                          "'" + llama + "' is read as uint32 with llm.c's header: 3 tokens"));

  TemporaryFolder shards;
  for (int i = 0; i < 9; ++i) shards.write_tokens(concat(i, ".bin"), {}, tokens);
  const auto lines = TokenDataset({.path = shards.path(), .sequence_length = 8}).assumptions();
  ASSERT_EQ(lines.size(), 5U);
  EXPECT_EQ(lines.back(), "5 more are read as uint16 without a header: 5000 tokens");

  TemporaryFolder texts;
  const std::string one = texts.write("a.txt", "some text");
  EXPECT_THAT(TokenDataset({.path = one, .sequence_length = 2}).assumptions(),
              ElementsAre("'" + one + "' is read as text, a token per byte: 9 tokens"));
  texts.write("b.txt", "more text");
  EXPECT_THAT(TokenDataset({.path = texts.path(), .sequence_length = 2}).assumptions(),
              ElementsAre("2 files are read as text, a token per byte: 18 tokens"));
}

// A sparse file of 64 GiB, whose pages would take a minute to look at.
TEST(CheckVocabulary, ReadsABoundedPartOfLargeData) {
  TemporaryFolder folder;
  const std::string path = folder.write("a.bin", "");
  constexpr std::uintmax_t kBytes = std::uintmax_t{64} << 30;
  std::filesystem::resize_file(path, kBytes);
  const auto put = [&](std::uintmax_t token, std::uint16_t value) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(token * 2));
    file.write(reinterpret_cast<const char*>(&value), 2);
  };
  const TokenDataset dataset({.path = path, .sequence_length = 4, .shuffle = false});
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_NO_THROW(dataset.check_vocabulary(256));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
  const auto expect_named = [&](std::uintmax_t token) {
    put(token, 40'000);
    try {
      dataset.check_vocabulary(256);
      ADD_FAILURE() << "token " << token << " was not seen";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(concat("token ", token, " of '", path, "' is 40000")));
      EXPECT_THAT(error.what(), HasSubstr("at least 40001 (GPT-2's is 50257)"));
    }
    put(token, 0);
  };
  expect_named(0);  // the beginning and the end
  expect_named(kBytes / 2 - 1);
}

TEST(CheckVocabulary, SuggestsTheTokenizerOfTheFormat) {
  TemporaryFolder folder;
  const auto error_at = [&](const std::string& path) -> std::string {
    try {
      TokenDataset({.path = path, .sequence_length = 2}).check_vocabulary(256);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  const std::vector<std::uint32_t> wide{1, 2, 100'000};
  EXPECT_THAT(error_at(folder.write_tokens("a", {20240801, 7, 3}, wide)),
              HasSubstr("at least 100001 (Llama 3's is 128256), or"));
  const std::vector<std::uint16_t> beyond{1, 2, 60'000};
  EXPECT_THAT(error_at(folder.write_tokens("b.bin", {}, beyond)), HasSubstr("at least 60001, or"));
}

}  // namespace
}  // namespace tessera
