#include "tessera/model/tokenize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "temporary_folder.h"
#include "tessera/core/error.h"
#include "tessera/core/memory.h"
#include "tessera/model/dataset.h"

// Texts as token ids: in a file, and at the start of a run.
namespace tessera {
namespace {

using nlohmann::json;
using test::TemporaryFolder;
using ::testing::HasSubstr;
using Tokens = std::vector<std::int32_t>;

const std::string kTokenizers = TESSERA_SOURCE_DIR "/tests/model/tokenizers/";
const std::string kAlice = TESSERA_SOURCE_DIR "/tests/text/alice.txt";

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// What a file of tokens holds after its header.
template <typename T>
Tokens ids_of(const std::string& path) {
  const std::string bytes = bytes_of(path);
  Tokens ids;
  for (std::size_t at = 1024; at + sizeof(T) <= bytes.size(); at += sizeof(T)) {
    T id = 0;
    std::memcpy(&id, bytes.data() + at, sizeof(T));
    ids.push_back(static_cast<std::int32_t>(id));
  }
  return ids;
}

/// All tokens of a data set but the last few, in order.
Tokens ids_of(DatasetOptions options) {
  options.sequence_length = 1;
  options.shuffle = false;
  const TokenDataset dataset(std::move(options));
  const std::int64_t samples = dataset.samples_per_epoch();
  Tokens inputs(static_cast<std::size_t>(samples)), targets(inputs.size());
  const Shape shape{samples, 1};
  dataset.fill(0, samples, TensorView{inputs.data(), DType::kInt32, shape},
               TensorView{targets.data(), DType::kInt32, shape});
  inputs.push_back(targets.back());
  return inputs;
}

TEST(Tokenize, WritesTheIdsOfTheGoldens) {
  const TemporaryFolder folder;
  const json golden = json::parse(bytes_of(kTokenizers + "golden.json"));
  for (const auto& [name, rows] : golden.items()) {
    const Tokenizer tokenizer(kTokenizers + name + ".json");
    Tokens expected;
    std::vector<std::string> paths;
    const auto separator = tokenizer.end_of_text().value();
    for (const json& row : rows.at("encoded")) {
      const auto text = row.at(0).get<std::string>();
      if (text.empty() || std::ranges::count(text, '\0') * 2 >= std::ssize(text)) continue;
      if (!paths.empty()) expected.push_back(separator);
      paths.push_back(folder.write(concat(name, "/", paths.size()), text));
      for (const json& id : row.at(1)) expected.push_back(id);
    }
    const std::string output = folder.path(name + ".bin");
    const TokenizeResult result = tokenize(tokenizer, {.paths = paths, .output = output});
    EXPECT_EQ(result.tokens, static_cast<std::int64_t>(expected.size()));
    EXPECT_EQ(result.files, static_cast<std::int64_t>(paths.size()));
    EXPECT_EQ(ids_of<std::uint16_t>(output), expected);
    DatasetOptions read;
    read.path = output;
    EXPECT_EQ(ids_of(read), expected);
    EXPECT_FALSE(std::filesystem::exists(output + ".tmp"));
  }
}

TEST(Tokenize, CutsLongTextsWithoutATrace) {
  const TemporaryFolder folder;
  const std::string book = bytes_of(kAlice);
  std::string windows, dense;
  while (windows.size() < 1'200'000) windows += "\u4e2d\u6587\u6587\u672c\u3002\r\n";
  while (dense.size() < 1'200'000) dense += "0123456789";
  std::string long_text;
  while (long_text.size() < 1'200'000) long_text += book;
  for (const std::string name : {"gpt2", "llama3", "qwen"}) {
    const Tokenizer tokenizer(kTokenizers + name + ".json");
    for (const std::string& text : {long_text, windows, dense}) {
      if (&text == &dense && name == "gpt2") continue;
      const std::string input = folder.write("text", text);
      const std::string output = folder.path("out.bin");
      tokenize(tokenizer, {.paths = {input}, .output = output});
      ASSERT_EQ(ids_of<std::uint16_t>(output), tokenizer.encode(text)) << name;
    }
  }
}

TEST(Tokenize, PutsANewlineBetweenFilesIfAsked) {
  const TemporaryFolder folder;
  const Tokenizer tokenizer(kTokenizers + "gpt2.json");
  const TokenizeOptions options{
      .paths = {folder.write("b", "x"), folder.write("a", ""), folder.write("c", "y")},
      .output = folder.path("out.bin"),
      .end_of_text = false};
  EXPECT_EQ(tokenize(tokenizer, options).files, 2);
  const Tokens newline = tokenizer.encode("\n");
  EXPECT_EQ(ids_of<std::uint16_t>(options.output),
            (Tokens{*tokenizer.id_of("x"), newline.at(0), *tokenizer.id_of("y")}));
}

TEST(Tokenize, WritesUint32WhereTheVocabularyNeedsIt) {
  const TemporaryFolder folder;
  json file = json::parse(bytes_of(kTokenizers + "llama3.json"));
  file["added_tokens"] = json::array();
  file["post_processor"] = nullptr;
  json& vocabulary = file["model"]["vocab"];
  while (vocabulary.size() < 65536) {
    const std::size_t id = vocabulary.size();
    vocabulary[concat("word", id)] = id;
  }
  const auto write = [&] {
    return tokenize(Tokenizer(file.dump(), "made"),
                    {.paths = {folder.write("text", "word65535")}, .output = folder.path("o.bin")});
  };
  EXPECT_EQ(write().token_bytes, 2);
  vocabulary["last"] = 65536;
  folder.write("text", "last");
  EXPECT_EQ(tokenize(Tokenizer(file.dump(), "made"),
                     {.paths = {folder.path("text")}, .output = folder.path("o.bin")})
                .token_bytes,
            4);
  EXPECT_EQ(ids_of<std::uint32_t>(folder.path("o.bin")), Tokens{65536});
}

TEST(Tokenize, RefusesWhatIsNoText) {
  const TemporaryFolder folder;
  const Tokenizer tokenizer(kTokenizers + "gpt2.json");
  for (const std::string& bytes : {std::string("a\0b\0c\0", 6), std::string("\1\xff\2\0", 4)}) {
    const std::string path = folder.write("data", bytes);
    try {
      tokenize(tokenizer, {.paths = {path}, .output = folder.path("out.bin")});
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("is not text; give files of UTF-8"));
    }
  }
}

TEST(Tokenize, LeavesTheOutputAsItWasWhenItFails) {
  const TemporaryFolder folder;
  const Tokenizer tokenizer(kTokenizers + "gpt2.json");
  const std::string output = folder.write("out.bin", "as it was");
  std::string text = bytes_of(kAlice);
  while (text.size() < 2'500'000) text += text;
  text.insert(2'000'000, "\xff");
  const std::string input = folder.write("text", text);
  try {
    tokenize(tokenizer, {.paths = {input}, .output = output});
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kConfig);
    EXPECT_THAT(error.what(), HasSubstr("text': byte 2000000 is not UTF-8"));
  }
  int calls = 0;
  const TokenizeResult result = tokenize(
      tokenizer,
      {.paths = {kAlice, kAlice}, .output = output, .on_progress = [&](auto done, auto all) {
         EXPECT_EQ(all, 2 * done);
         return ++calls > 1;
       }});
  EXPECT_TRUE(result.stopped);
  EXPECT_EQ(calls, 1);
  for (const std::string& path : {output, folder.path("missing")}) {
    EXPECT_THROW(
        tokenize(tokenizer, {.paths = {path == output ? kAlice : path, path}, .output = output}),
        Error);
  }
  EXPECT_THROW(tokenize(tokenizer, {.paths = {kAlice}, .output = folder.path("no/folder")}), Error);
  EXPECT_EQ(bytes_of(output), "as it was");
  EXPECT_FALSE(std::filesystem::exists(output + ".tmp"));
}

TEST(Tokenize, OfADatasetIsThatOfAFile) {
  const TemporaryFolder folder;
  const Tokenizer tokenizer(kTokenizers + "qwen.json");
  folder.write("texts/a.txt", "Alice was beginning to get very tired");
  folder.write("texts/b.txt", "of sitting by her sister on the bank");
  tokenize(tokenizer, {.paths = {folder.path("texts")}, .output = folder.path("out.bin")});
  DatasetOptions text, tokens;
  text.path = folder.path("texts");
  text.tokenizer = tokenizer;
  tokens.path = folder.path("out.bin");
  EXPECT_EQ(ids_of(text), ids_of(tokens));
  text.sequence_length = 4;
  const TokenDataset dataset(text);
  EXPECT_EQ(dataset.kind(), DataKind::kText);
  EXPECT_THAT(dataset.assumptions().at(0), HasSubstr("text, tokenised at the start"));
  EXPECT_THAT(dataset.identity(),
              ::testing::Contains(NamedText{"tokenizer", "hash " + tokenizer.identity()}));
  EXPECT_NO_THROW(dataset.check_vocabulary(526));
  EXPECT_THROW(dataset.check_vocabulary(300), Error);
}

TEST(Tokenize, RefusesMoreTextThanARunMayHold) {
  const TemporaryFolder folder;
  DatasetOptions options;
  options.path = folder.write("large.txt", "");
  options.kind = DataKind::kText;
  options.tokenizer = Tokenizer(kTokenizers + "gpt2.json");
  std::filesystem::resize_file(options.path, (std::uintmax_t{1} << 30) + 1);  // takes no disk
  try {
    const TokenDataset dataset(options);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("with `tessera tokenize`"));
  }
}

}  // namespace
}  // namespace tessera
