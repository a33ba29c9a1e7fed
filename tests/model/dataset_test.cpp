#include "tessera/model/dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <sstream>
#include <thread>

#include "temporary_folder.h"
#include "tessera/core/error.h"

namespace tessera::dataset_test {
namespace {

using test::TemporaryFolder;
using testing::HasSubstr;
using Tokens = std::vector<std::int32_t>;

struct Samples {
  Tokens inputs;
  Tokens targets;
  std::int64_t counted = 0;
};

Samples read(const TokenDataset& dataset, std::int64_t first, std::int64_t count) {
  Samples samples;
  const Shape shape = dataset.input_shape(count);
  samples.inputs.resize(static_cast<std::size_t>(shape.numel()));
  samples.targets.resize(samples.inputs.size());
  samples.counted = dataset.fill(first, count, {samples.inputs.data(), DType::kInt32, shape},
                                 {samples.targets.data(), DType::kInt32, shape});
  return samples;
}

/// The whole stream of one unshuffled part, as far as samples cover it.
Tokens stream_of_samples(const TokenDataset& dataset) {
  Samples samples = read(dataset, 0, dataset.samples_per_epoch());
  samples.inputs.push_back(samples.targets.back());
  return samples.inputs;
}

Tokens bytes_of(std::string_view text) { return Tokens(text.begin(), text.end()); }

void expect_error(ErrorCode code, const std::vector<std::string>& parts,
                  const std::function<void()>& action) {
  try {
    action();
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    for (const std::string& part : parts) EXPECT_THAT(error.what(), HasSubstr(part));
  }
}

std::vector<std::uint16_t> ascending(std::size_t count) {
  std::vector<std::uint16_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), std::uint16_t{0});
  return tokens;
}

TEST(TokenDataset, TargetsAreTheNextBytes) {
  TemporaryFolder folder;
  const TokenDataset dataset(
      {.path = folder.write("a.txt", "abcdefghij"), .sequence_length = 3, .shuffle = false});
  EXPECT_EQ(dataset.kind(), DataKind::kText);
  EXPECT_EQ(dataset.tokens(), 10);
  EXPECT_EQ(dataset.samples_per_epoch(), 3);
  const Samples samples = read(dataset, 0, 3);
  EXPECT_EQ(samples.inputs, bytes_of("abcdefghi"));
  EXPECT_EQ(samples.targets, bytes_of("bcdefghij"));
  EXPECT_EQ(samples.counted, 9);
}

TEST(TokenDataset, BytesAreUnsignedAndKeptAsTheyAre) {
  TemporaryFolder folder;
  const TokenDataset dataset({.path = folder.write("a.txt", "\xc3\xa4\r\n\t\xff."),
                              .sequence_length = 6,
                              .shuffle = false});
  EXPECT_EQ(stream_of_samples(dataset), (Tokens{0xc3, 0xa4, '\r', '\n', '\t', 0xff, '.'}));
}

TEST(TokenDataset, EveryEpochReadsEverySampleOnce) {
  TemporaryFolder folder;
  const TokenDataset dataset(
      {.path = folder.write_tokens("a.bin", {}, ascending(7 * 11 + 1)), .sequence_length = 7});
  ASSERT_EQ(dataset.samples_per_epoch(), 11);
  std::vector<Tokens> orders;
  for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
    std::set<std::int32_t> starts;
    orders.emplace_back();
    for (std::int64_t i = 0; i < 11; ++i) {
      const Samples sample = read(dataset, epoch * 11 + i, 1);
      orders.back().push_back(sample.inputs[0]);
      EXPECT_EQ(sample.inputs[0] % 7, 0);
      EXPECT_EQ(sample.targets[6], sample.inputs[0] + 7);
      starts.insert(sample.inputs[0]);
    }
    EXPECT_EQ(starts.size(), 11U);
  }
  EXPECT_NE(orders[0], orders[1]);
  EXPECT_NE(orders[1], orders[2]);
}

// N ranks that take blocks of positions in turn read what one rank reads that accumulates N times.
TEST(TokenDataset, DoesNotDependOnTheNumberOfRanks) {
  TemporaryFolder folder;
  const TokenDataset dataset(
      {.path = folder.write_tokens("a.bin", {}, ascending(5 * 60 + 1)), .sequence_length = 5});
  const Tokens alone = read(dataset, 0, 60).inputs;
  for (const std::int64_t ranks : {1, 2, 3, 5, 6}) {
    constexpr std::int64_t kMicroBatch = 2;
    std::set<std::int32_t> seen;
    for (std::int64_t step = 0; step < 60 / (ranks * kMicroBatch); ++step) {
      for (std::int64_t rank = 0; rank < ranks; ++rank) {
        const std::int64_t first = (step * ranks + rank) * kMicroBatch;
        const Tokens inputs = read(dataset, first, kMicroBatch).inputs;
        EXPECT_TRUE(std::equal(inputs.begin(), inputs.end(), alone.begin() + first * 5));
        for (std::size_t i = 0; i < inputs.size(); i += 5) {
          EXPECT_TRUE(seen.insert(inputs[i]).second) << "sample read twice in an epoch";
        }
      }
    }
    EXPECT_EQ(seen.size(), 60U);
  }
}

TEST(TokenDataset, ManyThreadsReadTheSame) {
  TemporaryFolder folder;
  const TokenDataset dataset(
      {.path = folder.write_tokens("a.bin", {}, ascending(65000)), .sequence_length = 100});
  const Tokens expected = read(dataset, 0, 700).inputs;
  std::vector<Tokens> results(8);
  std::vector<std::thread> threads;
  for (Tokens& result : results) {
    threads.emplace_back([&] {
      for (std::int64_t i = 0; i < 700; ++i) {
        const Tokens inputs = read(dataset, i, 1).inputs;
        result.insert(result.end(), inputs.begin(), inputs.end());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Tokens& result : results) EXPECT_EQ(result, expected);
}

TEST(TokenDataset, ValidationIsTheRestOfTheStream) {
  TemporaryFolder folder;
  const TokenDataset training({.path = folder.write_tokens("a.bin", {}, ascending(1001)),
                               .sequence_length = 10,
                               .shuffle = false,
                               .validation_fraction = 0.2});
  const TokenDataset validation = training.validation();
  EXPECT_EQ(training.tokens() + validation.tokens(), 1001);
  EXPECT_EQ(validation.tokens(), 200);
  EXPECT_EQ(stream_of_samples(training).front(), 0);
  EXPECT_EQ(stream_of_samples(training).back(), 800);
  EXPECT_EQ(stream_of_samples(validation).front(), 801);
  EXPECT_EQ(validation.samples_per_epoch(), 19);
  EXPECT_EQ(stream_of_samples(validation).back(), 991);
}

TEST(TokenDataset, ValidationNeedsAFraction) {
  TemporaryFolder folder;
  const std::string path = folder.write("a.txt", "abcdefghij");
  expect_error(ErrorCode::kConfig, {"validation fraction", path},
               [&] { (void)TokenDataset({.path = path, .sequence_length = 3}).validation(); });
  expect_error(ErrorCode::kConfig, {"validation part", "has 1 token,", "takes 4"}, [&] {
    (void)TokenDataset({.path = path, .sequence_length = 3, .validation_fraction = 0.1})
        .validation();
  });
  for (const double fraction : {-0.1, 1.0, std::numeric_limits<double>::quiet_NaN()}) {
    expect_error(ErrorCode::kConfig, {"[0, 1)"}, [&] {
      (void)TokenDataset({.path = path, .sequence_length = 3, .validation_fraction = fraction});
    });
  }
}

TEST(TokenDataset, ReadsEveryTokenFormat) {
  TemporaryFolder folder;
  const std::vector<std::uint16_t> narrow{1, 50256, 65535, 0, 7};
  const std::vector<std::uint32_t> wide{1, 128000, 70000, 0, 7};
  const auto read_all = [](const std::string& path, DataKind kind = DataKind::kAuto) {
    return stream_of_samples(
        TokenDataset({.path = path, .kind = kind, .sequence_length = 4, .shuffle = false}));
  };
  const Tokens expected{1, 50256, 65535, 0, 7};
  EXPECT_EQ(read_all(folder.write_tokens("raw.bin", {}, narrow)), expected);
  EXPECT_EQ(read_all(folder.write_tokens("raw", {}, narrow), DataKind::kTokens), expected);
  EXPECT_EQ(read_all(folder.write_tokens("gpt2.tok", {20240520, 1, 5}, narrow)), expected);
  EXPECT_EQ(read_all(folder.write_tokens("llama.tok", {20240801, 7, 5}, wide)),
            (Tokens{1, 128000, 70000, 0, 7}));
}

// A changed file either is refused by name, or gives tokens of the vocabulary.
TEST(TokenDataset, SurvivesMutatedFiles) {
  TemporaryFolder folder;
  constexpr std::int64_t kVocabulary = 400;
  const std::vector<std::uint32_t> wide{3, 1, 399, 200, 7, 0, 11, 5, 2};
  std::mt19937 random(17);
  int accepted = 0, refused = 0;
  for (const std::string& good :
       {folder.write_tokens("narrow.bin", {20240520, 1, 350}, ascending(350)),
        folder.write_tokens("wide.bin", {20240801, 7, 9}, wide)}) {
    std::ostringstream original;
    original << std::ifstream(good, std::ios::binary).rdbuf();
    for (int round = 0; round < 300; ++round) {
      std::string bytes = original.str();
      const std::size_t size = bytes.size();
      if (round % 3 == 0) bytes.resize(random() % (2 * size));
      for (std::size_t k = random() % 4; k > 0 && !bytes.empty(); --k) {
        // Half of the changes to magic, version and number.
        const std::size_t end =
            random() % 2 == 0 ? std::min<std::size_t>(12, bytes.size()) : bytes.size();
        bytes[random() % end] = static_cast<char>(random());
      }
      const std::string path = folder.write("mutant.bin", bytes);
      try {
        const TokenDataset dataset({.path = path,
                                    .kind = DataKind::kTokens,
                                    .sequence_length = 4,
                                    .vocab_size = kVocabulary});
        for (const std::int32_t token : stream_of_samples(dataset)) {
          ASSERT_GE(token, 0);
          ASSERT_LT(token, kVocabulary);
        }
        ++accepted;
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), HasSubstr("mutant.bin"));
        ++refused;
      }
    }
  }
  EXPECT_GT(accepted, 20);
  EXPECT_GT(refused, 100);
}

TEST(TokenDataset, ShardsFollowEachOtherInOrder) {
  TemporaryFolder folder;
  using Ids = std::vector<std::uint16_t>;
  folder.write_tokens("shard_10.bin", {}, Ids{5, 6});
  folder.write_tokens("shard_02.bin", {20240520, 1, 2}, Ids{3, 4});
  folder.write_tokens("shard_01.bin", {}, Ids{1, 2});
  folder.write_tokens("shard_05.bin", {}, Ids{});
  for (const std::string& path : {folder.path(), folder.path("shard_*.bin")}) {
    const TokenDataset dataset({.path = path, .sequence_length = 5, .shuffle = false});
    EXPECT_EQ(stream_of_samples(dataset), (Tokens{1, 2, 3, 4, 5, 6}));
    EXPECT_EQ(dataset.files().size(), 3U);
  }
  const TokenDataset two({.path = folder.path("shard_0[12].bin"), .sequence_length = 3});
  EXPECT_EQ(two.tokens(), 4);
}

TEST(TokenDataset, NamesTheTokenOutsideOfTheVocabulary) {
  TemporaryFolder folder;
  std::vector<std::uint16_t> tokens = ascending(9000);
  folder.write_tokens("a.bin", {}, ascending(100));
  const std::string second = folder.write_tokens("b.bin", {}, tokens);
  const DatasetOptions options{.path = folder.path(), .sequence_length = 10, .shuffle = false};
  const TokenDataset dataset(options);
  EXPECT_NO_THROW(dataset.check_vocabulary(9000));
  EXPECT_NO_THROW(dataset.check_vocabulary(65536));
  const std::vector<std::string> parts{"token 8999 of '" + second + "' is 8999", "8999",
                                       "at least 9000"};
  expect_error(ErrorCode::kConfig, parts, [&] { dataset.check_vocabulary(8999); });
  expect_error(ErrorCode::kConfig, {"token 50 of", "is 50", "at least 9000"},
               [&] { dataset.check_vocabulary(50); });

  DatasetOptions checked = options;
  checked.vocab_size = 8900;
  const TokenDataset lazy(checked);
  EXPECT_NO_THROW(read(lazy, 0, 1));
  expect_error(ErrorCode::kConfig, {"token 8900 of '" + second + "' is 8900"},
               [&] { read(lazy, 0, lazy.samples_per_epoch()); });
  expect_error(ErrorCode::kConfig, {"is 2147483648"}, [&] {
    const std::vector<std::uint32_t> wide{1, 2147483648U};
    read(TokenDataset(
             {.path = folder.write_tokens("w", {20240801, 7, 2}, wide), .sequence_length = 1}),
         0, 1);
  });
}

TEST(TokenDataset, TextNeedsAVocabularyOfBytes) {
  TemporaryFolder folder;
  const std::string path = folder.write("a.txt", "hello w\xc3\xb6rld");
  const TokenDataset dataset({.path = path, .sequence_length = 3});
  EXPECT_NO_THROW(dataset.check_vocabulary(256));
  expect_error(ErrorCode::kConfig, {"token 7 of '" + path + "' is 195", "256 for text"},
               [&] { dataset.check_vocabulary(128); });
}

TEST(TokenDataset, SaysHowShortTheDataIs) {
  TemporaryFolder folder;
  const std::string path = folder.write("a.txt", "abcdefghij");
  EXPECT_EQ(TokenDataset({.path = path, .sequence_length = 9}).samples_per_epoch(), 1);
  expect_error(ErrorCode::kConfig, {path, "10 tokens", "takes 11", "at most 9"},
               [&] { (void)TokenDataset({.path = path, .sequence_length = 10}); });
  const std::int64_t huge = std::numeric_limits<std::int64_t>::max();
  expect_error(ErrorCode::kConfig, {"takes 9223372036854775808"},
               [&] { (void)TokenDataset({.path = path, .sequence_length = huge}); });
  expect_error(ErrorCode::kConfig, {"not positive"},
               [&] { (void)TokenDataset({.path = path, .sequence_length = 0}); });
}

TEST(TokenDataset, RejectsBatchesThatDoNotFit) {
  TemporaryFolder folder;
  const TokenDataset dataset({.path = folder.write("a.txt", "abcdefghij"), .sequence_length = 3});
  EXPECT_EQ(read(dataset, 5, 0).counted, 0);
  Tokens tokens(6);
  const TensorView good(tokens.data(), DType::kInt32, {2, 3});
  EXPECT_THROW(dataset.fill(0, 1, good, good), Error);
  EXPECT_THROW(dataset.fill(-1, 2, good, good), Error);
  EXPECT_THROW(dataset.fill(std::numeric_limits<std::int64_t>::max(), 2, good, good), Error);
  EXPECT_THROW(dataset.fill(0, 2, good, TensorView(tokens.data(), DType::kFloat32, {2, 3})), Error);
}

TEST(DataKind, ParsesItsNames) {
  for (const DataKind kind : {DataKind::kAuto, DataKind::kText, DataKind::kTokens}) {
    EXPECT_EQ(parse_data_kind(to_string(kind)), kind);
  }
  expect_error(ErrorCode::kConfig, {"'parquet'", "auto, text, tokens or examples"},
               [] { parse_data_kind("parquet"); });
}

}  // namespace
}  // namespace tessera::dataset_test
