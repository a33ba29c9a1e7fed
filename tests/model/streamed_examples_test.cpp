#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "temporary_folder.h"
#include "tessera/core/error.h"
#include "tessera/model/dataset.h"

// Files of examples that are read as they are needed, and several files of them.
namespace tessera::streamed_examples_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Row {
  std::vector<std::int32_t> inputs, targets;
  std::int64_t counted = 0;
  bool operator==(const Row&) const = default;
};

Row row_of(const TokenDataset& dataset, std::int64_t sample) {
  const Shape inputs = dataset.input_shape(1), targets = dataset.target_shape(1);
  Row row{std::vector<std::int32_t>(static_cast<std::size_t>(inputs.numel())),
          std::vector<std::int32_t>(static_cast<std::size_t>(targets.numel()))};
  row.counted = dataset.fill(sample, 1, {row.inputs.data(), DType::kInt32, inputs},
                             {row.targets.data(), DType::kInt32, targets});
  return row;
}

/// A text that no other number has, of 4 to `longest` bytes.
std::string text_of(int number, int longest = 60) {
  std::string text = std::to_string(1000 + number);
  text.resize(static_cast<std::size_t>(4 + number * 7919 % (longest - 3)), 'x');
  return text;
}

std::string line_of(const std::string& text) { return "{\"text\": \"" + text + "\"}\n"; }

class StreamedExamples : public ::testing::Test {
 protected:
  DatasetOptions options_of(const std::string& text, std::int64_t length = 64) const {
    return {.path = folder_.write("examples.jsonl", text),
            .sequence_length = length,
            .seed = 7,
            .held_bytes = 0};
  }

  test::TemporaryFolder folder_;
};

TEST_F(StreamedExamples, AreTheSamplesOfThoseHeldInMemory) {
  std::string text = " \n";
  for (int i = 0; i < 300; ++i) text += line_of(text_of(i)) + (i % 7 == 0 ? "\r\n\t\n" : "");
  text.pop_back();  // the last line has no end
  for (const bool shuffle : {true, false}) {
    DatasetOptions options = options_of(text);
    options.shuffle = shuffle;
    options.validation_fraction = 0.1;
    const TokenDataset streamed(options);
    options.held_bytes = 1 << 20;
    const TokenDataset held(options);
    ASSERT_EQ(streamed.samples_per_epoch(), 270);
    ASSERT_EQ(held.samples_per_epoch(), 270);
    EXPECT_EQ(streamed.identity(), held.identity());
    for (std::int64_t i = 0; i < 600; i += 7) {
      EXPECT_EQ(row_of(streamed, i), row_of(held, i)) << i;
      EXPECT_EQ(row_of(streamed.validation(), i), row_of(held.validation(), i)) << i;
    }
    EXPECT_TRUE(streamed.example_counts()->estimated);
    EXPECT_EQ(streamed.tokens(), held.tokens()) << "of no more examples than are looked at";
    EXPECT_EQ(streamed.example_counts()->targets, held.example_counts()->targets);
    EXPECT_THAT(streamed.assumptions(), ElementsAre(HasSubstr("300, tokenised as they are read")));
  }
}

// Threads look through pieces of 64 MiB.
TEST_F(StreamedExamples, AreFoundInEveryPieceOfAFile) {
  constexpr std::size_t kPiece = std::size_t{64} << 20;
  std::string text;
  int count = 0;
  const auto add = [&](std::size_t until) {
    while (text.size() < until) {
      const std::string line = line_of(std::to_string(100000 + count));
      text += std::string(std::min<std::size_t>(1000, until - text.size()), ' ');
      if (text.size() + line.size() > until) break;
      text += line;
      ++count;
    }
  };
  for (const int into : {0, 1, 9}) {  // a line begins at a piece's first byte, before it, across it
    text.clear();
    count = 0;
    add(kPiece - 3000);
    text += std::string(kPiece - text.size() - static_cast<std::size_t>(into) - 1, ' ') + "\n";
    ASSERT_EQ(text.size(), kPiece - static_cast<std::size_t>(into));
    const int across = count++;
    text += line_of(std::to_string(100000 + across));
    text += std::string(5000, ' ') + "\n";
    const int behind = count++;
    text += line_of(std::to_string(100000 + behind)) + "{\n";
    DatasetOptions options = options_of(text, 8);
    options.shuffle = false;
    ASSERT_EQ(std::ranges::count(text, '\n'), count + 3);
    try {
      const TokenDataset dataset(options);
      ASSERT_EQ(dataset.samples_per_epoch(), count + 1);
      for (const int i : {0, 1, across - 1, across, behind}) {
        const Row row = row_of(dataset, i);
        EXPECT_EQ(std::string(row.inputs.begin(), row.inputs.begin() + 5),
                  std::to_string(100000 + i).substr(0, 5));
        EXPECT_EQ(row.targets[4], '0' + i % 10);
      }
      row_of(dataset, count);
      FAIL();
    } catch (const Error& error) {
      EXPECT_THAT(error.what(),
                  HasSubstr(concat("line ", count + 3, " of '", options.path, "' is no JSON")));
    }
  }
}

TEST_F(StreamedExamples, ErrorsOfReadingNameFileAndLine) {
  const auto error_of = [&](const std::string& second, std::int64_t vocab_size = 256) {
    std::string text = line_of("first") + "\n" + second + "\n";
    for (int i = 0; i < 1200; ++i) text += line_of(text_of(i));
    DatasetOptions options = options_of(text);
    options.shuffle = false;
    options.vocab_size = vocab_size;
    const TokenDataset dataset(options);  // looks at every second example
    dataset.check_vocabulary(vocab_size);
    try {
      row_of(dataset, 1);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kConfig);
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(error_of("{\"text\": "),
              AllOf(HasSubstr("line 3 of '"), HasSubstr("examples.jsonl' is no JSON")));
  EXPECT_THAT(error_of("[1]"), HasSubstr("examples.jsonl' is no JSON object"));
  EXPECT_THAT(error_of("{\"text\": 3}"), HasSubstr("has a \"text\" that is no text"));
  EXPECT_THAT(error_of("{\"prompt\": \"a\", \"completion\": \"b\"}"),
              HasSubstr("has prompts, and those before it have texts"));
  EXPECT_THAT(error_of("{\"text\": \"a~\"}", 126),
              AllOf(HasSubstr("line 3 of '"), HasSubstr("has the token 126, outside of the")));
  EXPECT_EQ(error_of("{\"text\": \"ab\"}"), "");
  EXPECT_THROW(TokenDataset(options_of("{\"text\": 3}")), Error);
  EXPECT_THROW(TokenDataset(options_of("\n \n")), Error);
  EXPECT_THROW(TokenDataset(options_of("{\"text\": \"a\"}")), Error);
}

TEST_F(StreamedExamples, ThatAreCutShortAreAnError) {
  std::string text;
  for (int i = 0; i < 5000; ++i) text += line_of(text_of(i));
  DatasetOptions options = options_of(text);
  options.shuffle = false;
  const TokenDataset dataset(options);
  std::filesystem::resize_file(options.path, text.size() / 2);
  EXPECT_NO_THROW(row_of(dataset, 0));
  try {
    row_of(dataset, 4999);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIo);
    EXPECT_THAT(error.what(), HasSubstr("it was cut short"));
  }
}

TEST_F(StreamedExamples, WithoutATargetHaveTheNextInTheirPlace) {
  DatasetOptions options = options_of(line_of("abc") + line_of("a") + line_of("") + line_of("bcd"));
  options.shuffle = false;
  const TokenDataset dataset(options);
  ASSERT_EQ(dataset.samples_per_epoch(), 4);
  EXPECT_EQ(row_of(dataset, 0).inputs[0], 'a');
  for (const int i : {1, 2, 3}) EXPECT_EQ(row_of(dataset, i).inputs[0], 'b');
  EXPECT_THAT(dataset.notes(), ElementsAre(HasSubstr("about 50 % of the examples of '")));
}

/// The documents of a packed sample, as texts, and how many places they take.
std::vector<std::string> documents_of(const Row& row) {
  const std::size_t length = row.targets.size();
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < length; ++i) {
    if (row.targets[i] < 0) continue;
    const std::int32_t start = row.inputs[length + i];
    if (static_cast<std::size_t>(start) == i)
      texts.emplace_back(1, static_cast<char>(row.inputs[i]));
    texts.back() += static_cast<char>(row.targets[i]);
  }
  return texts;
}

TEST_F(StreamedExamples, ArePackedInWindows) {
  constexpr int kExamples = 6000;
  std::string text;
  std::set<std::string> all;
  for (int i = 0; i < kExamples; ++i) {
    text += line_of(text_of(i));
    all.insert(text_of(i));
  }
  DatasetOptions options = options_of(text, 128);
  options.packing = true;
  const TokenDataset dataset(options);
  const std::int64_t samples = dataset.samples_per_epoch();
  EXPECT_EQ(samples % 64, 0);
  EXPECT_EQ(dataset.example_counts()->packed_samples, samples);
  std::set<std::string> seen_in_two;
  std::vector<Row> rows;
  for (const std::int64_t epoch : {0, 1}) {
    std::set<std::string> seen;
    std::int64_t places = 0;
    for (std::int64_t i = 0; i < samples; ++i) {
      const Row row = row_of(dataset, epoch * samples + i);
      if (epoch == 0) rows.push_back(row);
      EXPECT_GT(row.counted, 0);
      places += row.counted;
      for (const std::string& document : documents_of(row)) {
        EXPECT_TRUE(all.contains(document)) << document;
        EXPECT_TRUE(seen.insert(document).second) << document << " is there twice";
      }
    }
    EXPECT_GT(std::ssize(seen), kExamples * 9 / 10);  // the last examples make no window
    EXPECT_GT(places, samples * 128 * 85 / 100);
    seen_in_two.merge(seen);
  }
  EXPECT_GT(std::ssize(seen_in_two), kExamples * 98 / 100);
  EXPECT_NE(rows[0], rows[1]);
  // Whoever asks for them, and in whatever order: every thread has rows of all windows.
  const TokenDataset other(options);
  std::vector<std::jthread> threads;
  std::vector<int> equal(4);
  for (std::size_t t = 0; t < equal.size(); ++t) {
    threads.emplace_back([&, t] {
      for (std::int64_t i = samples - 1 - static_cast<std::int64_t>(t); i >= 0; i -= 4) {
        equal[t] += row_of(other, i) == rows[static_cast<std::size_t>(i)] ? 1 : 0;
      }
    });
  }
  threads.clear();
  EXPECT_THAT(equal, ::testing::Each(samples / 4));
  // A checkpoint of other windows, or of none, is one of other data.
  const auto order_of = [](const TokenDataset& of) { return of.identity().back().value; };
  EXPECT_THAT(order_of(dataset), HasSubstr("examples packed into 64 samples"));
  options.held_bytes = 1 << 30;
  EXPECT_NE(order_of(TokenDataset(options)), order_of(dataset));
}

TEST_F(StreamedExamples, OfFewArePackedInSmallerWindows) {
  std::string text;
  for (int i = 0; i < 20; ++i) text += line_of(text_of(i, 20));
  DatasetOptions options = options_of(text, 50);
  options.packing = true;
  const TokenDataset dataset(options);
  for (std::int64_t i = 0; i < dataset.samples_per_epoch(); ++i) {
    EXPECT_GT(row_of(dataset, i).counted, 0);
  }
}

class ExampleFiles : public StreamedExamples {};

TEST_F(ExampleFiles, OfAFolderAndOfAPatternFollowEachOther) {
  std::vector<std::string> texts(3);
  for (int i = 0; i < 30; ++i) texts[static_cast<std::size_t>(i / 10)] += line_of(text_of(i));
  const DatasetOptions one = options_of(texts[0] + texts[1] + texts[2]);
  folder_.write("set/a.jsonl", texts[0]);
  folder_.write("set/b.jsonl", texts[1]);
  folder_.write("set/c.jsonl", texts[2]);
  folder_.write("set/README.md", "About them.");
  for (const std::int64_t held : {0, 1 << 20}) {
    for (const char* const path : {"set", "set/*.jsonl"}) {
      DatasetOptions options = one;
      options.path = folder_.path(path);
      options.held_bytes = held;
      const TokenDataset dataset(options), joined(one);
      EXPECT_EQ(dataset.kind(), DataKind::kExamples);
      EXPECT_EQ(dataset.files().size(), 3U);
      ASSERT_EQ(dataset.samples_per_epoch(), 30);
      for (std::int64_t i = 0; i < 60; ++i) EXPECT_EQ(row_of(dataset, i), row_of(joined, i)) << i;
      EXPECT_THAT(dataset.assumptions(), ElementsAre(HasSubstr("' and 2 more files are read as")));
    }
  }
  folder_.write("set/b.jsonl", "{\"text\": \"abc\"}\n{\"text\": 3}");
  DatasetOptions options = one;
  options.path = folder_.path("set");
  EXPECT_THAT([&] { TokenDataset{options}; },
              testing::ThrowsMessage<Error>(HasSubstr("b.jsonl' has a \"text\" that is no text")));
}

TEST_F(ExampleFiles, BesideOthersNeedAChoice) {
  folder_.write("set/a.jsonl", line_of("abc"));
  folder_.write("set/notes.txt", "some text to learn");
  const auto open = [&](const char* path, DataKind kind) {
    return TokenDataset({.path = folder_.path(path), .kind = kind, .sequence_length = 4});
  };
  EXPECT_THAT([&] { open("set", DataKind::kAuto); },
              testing::ThrowsMessage<Error>(AllOf(HasSubstr("holds examples ("),
                                                  HasSubstr("notes.txt"), HasSubstr("data kind"))));
  EXPECT_THAT([&] { open("set/*", DataKind::kAuto); },
              testing::ThrowsMessage<Error>(HasSubstr("name one sort of them")));
  EXPECT_EQ(open("set", DataKind::kExamples).files().size(), 1U);
  EXPECT_EQ(open("set", DataKind::kText).files().size(), 2U);
  folder_.write("split/train.jsonl", line_of("abc"));
  folder_.write("split/validation.jsonl", line_of("abc"));
  EXPECT_THAT([&] { open("split", DataKind::kAuto); },
              testing::ThrowsMessage<Error>(HasSubstr("/*train*.jsonl'")));
  EXPECT_THAT([&] { open("none*.jsonl", DataKind::kExamples); },
              testing::ThrowsMessage<Error>(HasSubstr("there is no data at")));
}

}  // namespace
}  // namespace tessera::streamed_examples_test
