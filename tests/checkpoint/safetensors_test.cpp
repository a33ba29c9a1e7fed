#include "tessera/checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "../temporary_folder.h"
#include "tessera/core/error.h"

namespace tessera::safetensors_test {
namespace {

using test::TemporaryFolder;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using namespace std::string_literals;

std::string from_base64(const std::string& text) {
  const std::string digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  unsigned bits = 0;
  int count = 0;
  for (const char character : text) {
    if (character == '=') break;
    bits = (bits << 6U) | static_cast<unsigned>(digits.find(character));
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes += static_cast<char>(bits >> static_cast<unsigned>(count) & 0xffU);
  }
  return bytes;
}

nlohmann::json golden() {
  std::ifstream file(TESSERA_SOURCE_DIR "/tests/checkpoint/safetensors_cases.json");
  return nlohmann::json::parse(file);
}

std::string file_of(const std::string& header, const std::string& data) {
  const std::uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + header + data;
}

/// Without waiting for the disk, as ext4 does if content is replaced.
std::string rewrite(const TemporaryFolder& folder, const std::string& name,
                    const std::string& bytes) {
  std::filesystem::remove(folder.path(name));
  return folder.write(name, bytes);
}

SafetensorsHeader read(const std::string& path) { return read_safetensors_header(InputFile(path)); }

/// The text of the error, "" if there is none.
std::string refusal_of(const std::string& path) {
  try {
    read(path);
  } catch (const Error& error) {
    EXPECT_TRUE(error.code() == ErrorCode::kConfig || error.code() == ErrorCode::kIo);
    return error.what();
  }
  return "";
}

/// What the reference takes, on purpose refused here; see safetensors.h.
const std::set<std::string> kRefusedHere{"overflow behind 0",  "overflow of sizes that fit",
                                         "unknown key",        "object as a list",
                                         "name twice",         "name twice by an escape",
                                         "metadata key twice", "metadata key twice by an escape",
                                         "empty name",         "NUL in a name",
                                         "long name",          "rank 6"};

TEST(Safetensors, TakesWhatTheReferenceTakesButForWhatIsRefusedOnPurpose) {
  const TemporaryFolder folder;
  std::size_t refused_here = 0;
  const nlohmann::json all = golden();
  for (const nlohmann::json& row : all.at("cases")) {
    const std::string name = row.at("name");
    const std::string path = rewrite(folder, "case.safetensors", from_base64(row.at("bytes")));
    const bool here = kRefusedHere.contains(name);
    refused_here += here ? 1 : 0;
    const bool accepts = row.at("reference") == "accepts" && !here;
    const std::string refusal = refusal_of(path);
    EXPECT_EQ(refusal.empty(), accepts) << name << ": " << refusal;
    EXPECT_EQ(refusal.find("case.safetensors") != std::string::npos, !accepts) << name;
  }
  EXPECT_EQ(refused_here, kRefusedHere.size());
}

TEST(Safetensors, SaysWhatIsWrongWithWhichTensorAndWhatToDo) {
  struct Row {
    std::string header, data, tensor, problem;
  };
  const std::string u8 = R"({"dtype":"U8","shape":[4],"data_offsets":[0,4]})";
  const std::string four = "1234";
  const TemporaryFolder folder;
  for (const Row& row : {
           Row{R"({"w":)" + u8 + R"(,"\u0077":)" + u8 + "}", four, "'w'", "twice"},
           Row{R"({"w":)" + u8 + "}\0\0"s, four, "",
               "NUL; if it was padded so, pad it with spaces"},
           Row{R"({"w":["U8",[4],[0,4]]})", four, "'w'", "has a list, where an object must be"},
           Row{R"({"w":{"dtype":"f32","shape":[],"data_offsets":[0,4]}})", four, "'w'",
               "has the dtype 'f32', which the format does not know"},
           Row{R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", four, "'w'",
               "data_offsets [0, 4], and F32 (2) takes 8 bytes"},
           Row{R"({"w":{"dtype":"F32","shape":[1],"offsets":[0,4]}})", four, "'w'",
               "has the key 'offsets'"},
           Row{R"({"w":{"dtype":"U8","shape":[4.0],"data_offsets":[0,4]}})", four, "'w'",
               "has the number 4.0, where an integer from 0 up must be"},
           Row{R"({"w":)" + u8 + "}", "123", "", "it was cut short; copy or download it again"},
           Row{R"({"w":)" + u8 + "}", "12345", "", "1 bytes behind its last tensor"},
           Row{R"({"w":)" + u8 + R"(,"v":{"dtype":"U8","shape":[4],"data_offsets":[5,9]}})",
               "123456789", "'v'", "where 4 bytes are taken"},
           Row{R"({"a\u001bb":)" + u8 + "}", four, "'a\\u001bb'", "control character"},
           Row{R"({"__metadata__":{"k":1}})", "", "__metadata__", "has a number, where a text"},
           Row{R"({"__metadata__":{"k":"1","k":"2"}})", "", "__metadata__", "the key 'k' twice"},
       }) {
    EXPECT_THAT(refusal_of(folder.write("file", file_of(row.header, row.data))),
                AllOf(HasSubstr("/file'"), HasSubstr(row.tensor), HasSubstr(row.problem)))
        << row.header;
  }
}

TEST(Safetensors, GivesTensorsInTheOrderOfTheirBytesWithOffsetsInTheFile) {
  const TemporaryFolder folder;
  const std::string header =
      R"({"a":{"dtype":"U8","shape":[2,2],"data_offsets":[4,8]},"__metadata__":{"format":"pt"},)"
      R"("b":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})";
  const auto begin = static_cast<std::int64_t>(8 + header.size());
  const SafetensorsHeader read_back = read(folder.write("file", file_of(header, "12345678")));
  ASSERT_EQ(read_back.tensors.size(), 2U);
  const SafetensorsEntry &b = read_back.tensors[0], &a = read_back.tensors[1];
  EXPECT_EQ(b.name, "b");
  EXPECT_EQ(b.dtype, "F32");
  EXPECT_EQ(b.shape, Shape{});
  EXPECT_EQ(b.begin, begin);
  EXPECT_EQ(b.end, begin + 4);
  EXPECT_EQ(a.name, "a");
  EXPECT_EQ(a.shape, (Shape{2, 2}));
  EXPECT_EQ(a.begin, begin + 4);
  EXPECT_EQ(a.bytes(), 4);
  EXPECT_THAT(read_back.metadata, ElementsAre(Pair("format", "pt")));
}

TEST(Safetensors, WritesTheBytesOfTheReferenceForTensorsInItsOrder) {
  const std::string written = from_base64(golden().at("written"));
  const TemporaryFolder folder;
  SafetensorsHeader header = read(folder.write("file", written));
  ASSERT_EQ(header.tensors.size(), 3U);
  std::vector<SafetensorsEntry> tensors = header.tensors;
  for (SafetensorsEntry& tensor : tensors) tensor.begin = tensor.end = -1;
  const std::string start = safetensors_header(tensors, header.metadata);
  EXPECT_EQ(start, written.substr(0, start.size()));
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_EQ(tensors[i].begin, header.tensors[i].begin);
    EXPECT_EQ(tensors[i].end, header.tensors[i].end);
  }
  EXPECT_EQ(start.size() % 8, 0U);
}

TEST(Safetensors, WritesNoFileThatItWouldNotRead) {
  using Entries = std::vector<SafetensorsEntry>;
  const auto refuse = [](Entries entries, const std::string& why) {
    try {
      safetensors_header(entries);
      ADD_FAILURE() << "took what " << why;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_THAT(error.what(), HasSubstr(why));
    }
  };
  const SafetensorsEntry good{.name = "w", .dtype = "F32", .shape = Shape{2}};
  refuse({good, good}, "two of that name");
  refuse({{.name = "__metadata__", .dtype = "F32"}}, "metadata");
  refuse({{.name = "", .dtype = "F32"}}, "empty name");
  refuse({{.name = "a\xff", .dtype = "F32"}}, "UTF-8");
  refuse({{.name = "w", .dtype = "fp32"}}, "has the dtype 'fp32'");
  refuse({{.name = "w", .dtype = "F4", .shape = Shape{3}}}, "no whole number of bytes");
  const TemporaryFolder folder;
  Entries none;
  EXPECT_TRUE(read(folder.write("none", safetensors_header(none))).tensors.empty());
}

TEST(Safetensors, HasANameForEveryDType) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat64, DType::kInt32,
                            DType::kInt64, DType::kUInt8}) {
    EXPECT_EQ(safetensors_dtype_bits(safetensors_dtype(dtype)),
              8 * static_cast<int>(size_of(dtype)));
  }
}

TEST(Safetensors, SaysThatAFileIsMissingOrNoFile) {
  const TemporaryFolder folder;
  try {
    read(folder.path("none"));
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNotFound);
  }
  EXPECT_THAT(refusal_of(folder.path()), HasSubstr("not a regular file"));
}

TEST(Safetensors, ReadsNoMoreThanIsThereOfAFileThatIsCutShort) {
  const TemporaryFolder folder;
  const std::string path = folder.write("file", "0123456789");
  const InputFile file(path);
  std::filesystem::resize_file(path, 4);
  std::vector<std::byte> bytes(8);
  EXPECT_THROW(file.read(0, bytes), Error);
  file.read(0, std::span(bytes).first(4));
  EXPECT_EQ(bytes[3], std::byte{'3'});
}

/// Changes, removes, doubles and joins pieces of good files. What is read of a mutant must lie in
/// it; under sanitizers nothing reads out of range.
TEST(Safetensors, MutantsAreReadWithinTheirBoundsOrRefused) {
  std::vector<std::string> seeds;
  const nlohmann::json all = golden();
  for (const nlohmann::json& row : all.at("cases")) {
    if (row.at("reference") == "accepts") seeds.push_back(from_base64(row.at("bytes")));
  }
  const std::vector<std::string> words{"\"",
                                       "[",
                                       "]",
                                       "{",
                                       "}",
                                       ",",
                                       ":",
                                       "0",
                                       "4",
                                       "-1",
                                       "18446744073709551615",
                                       "__metadata__",
                                       "dtype",
                                       "shape",
                                       "data_offsets",
                                       "F32",
                                       "\\u0061",
                                       "\xff",
                                       std::string(1, '\0'),
                                       " ",
                                       "1e9",
                                       "null"};
  std::mt19937_64 random(17);
  const auto below = [&](std::size_t count) { return static_cast<std::size_t>(random() % count); };
  const TemporaryFolder folder;
  int taken = 0;
  for (int i = 0; i < 4000; ++i) {
    std::string bytes = seeds[below(seeds.size())];
    for (std::size_t n = below(2) + 1; n > 0; --n) {
      const std::size_t at = below(bytes.size()), length = below(bytes.size() - at) % 24 + 1;
      switch (below(6)) {
        case 0:
          bytes[at] = static_cast<char>(random());
          break;
        case 1:
          bytes.erase(at, length);
          break;
        case 2:
          bytes.insert(at, words[below(words.size())]);
          break;
        case 3:
          bytes.insert(at, bytes.substr(at, length));
          break;
        case 4:
          bytes.replace(at, length, words[below(words.size())]);
          break;
        default: {
          const std::string& other = seeds[below(seeds.size())];
          bytes = bytes.substr(0, at) + other.substr(below(other.size()));
        }
      }
      if (bytes.size() < 9) bytes.resize(9, ' ');
    }
    if (below(4) > 0) {  // or nearly all would be refused for their first number
      const std::size_t end = bytes.rfind('}');
      const std::uint64_t length = end == std::string::npos || end < 8 ? 1 : end - 7;
      bytes.replace(0, 8, reinterpret_cast<const char*>(&length), 8);
    }
    const std::string path = rewrite(folder, "mutant", bytes);
    try {
      const SafetensorsHeader header = read(path);
      ++taken;
      std::int64_t covered = header.tensors.empty() ? 0 : header.tensors[0].begin;
      for (const SafetensorsEntry& tensor : header.tensors) {
        ASSERT_EQ(tensor.begin, covered);
        covered = tensor.end;
        ASSERT_LE(covered, static_cast<std::int64_t>(bytes.size()));
        ASSERT_EQ(tensor.bytes() * 8, tensor.shape.numel() * safetensors_dtype_bits(tensor.dtype));
      }
      ASSERT_LE(header.tensors.size() * 40, bytes.size());
    } catch (const Error& error) {
      ASSERT_THAT(error.what(), HasSubstr("mutant"));
      ASSERT_LT(std::string(error.what()).size(), 1000U);
    }
  }
  EXPECT_GT(taken, 50);
}

}  // namespace
}  // namespace tessera::safetensors_test
