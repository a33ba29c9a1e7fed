#include "tessera/model/data_mixture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "temporary_folder.h"
#include "tessera/core/error.h"

// Several data sets in proportions.
namespace tessera::data_mixture_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

struct Row {
  std::vector<std::int32_t> inputs, targets;
  std::int64_t counted = 0;
  bool operator==(const Row&) const = default;
};

Row rows_of(const BatchSource& data, std::int64_t first, std::int64_t count = 1) {
  const Shape inputs = data.input_shape(count), targets = data.target_shape(count);
  Row row{std::vector<std::int32_t>(static_cast<std::size_t>(inputs.numel()), -7),
          std::vector<std::int32_t>(static_cast<std::size_t>(targets.numel()), -7)};
  row.counted = data.fill(first, count, {row.inputs.data(), DType::kInt32, inputs},
                          {row.targets.data(), DType::kInt32, targets});
  return row;
}

class Mixtures : public ::testing::Test {
 protected:
  /// `count` examples "a0", "a1", ... that begin with `letter`.
  DatasetOptions examples(char letter, int count) const {
    std::string text;
    for (int i = 0; i < count; ++i) {
      text += concat("{\"text\": \"", letter, 1000 + i, "\"}\n");
    }
    return {.path = folder_.write(concat(letter, ".jsonl"), text), .sequence_length = 4, .seed = 3};
  }
  /// Samples of four letters.
  DatasetOptions text(char letter, int samples) const {
    const std::string all(static_cast<std::size_t>(samples) * 4 + 1, letter);
    return {.path = folder_.write(concat(letter, ".txt"), all), .sequence_length = 4, .seed = 3};
  }

  test::TemporaryFolder folder_;
};

TEST_F(Mixtures, OfOneAreThatOne) {
  const TokenDataset alone(examples('a', 20));
  const DataMixture mixture({{examples('a', 20)}});
  EXPECT_EQ(mixture.identity(), alone.identity());
  EXPECT_EQ(mixture.samples_per_epoch(), alone.samples_per_epoch());
  for (std::int64_t i = 0; i < 60; i += 3) EXPECT_EQ(rows_of(mixture, i, 3), rows_of(alone, i, 3));
}

// Of the first n samples, for every n.
TEST_F(Mixtures, GiveTheirShares) {
  const std::vector<std::vector<double>> all{{0.7, 0.3},
                                             {1, 1},
                                             {1, 1, 1},
                                             {0.5, 0.25, 0.25},
                                             {97, 2, 1},
                                             {0.333, 0.333, 0.334},
                                             {1, 2, 3, 4, 5, 6, 7},
                                             {0.999, 0.001},
                                             {12, 1, 1, 1, 1, 1, 1}};
  for (const std::vector<double>& weights : all) {
    std::vector<MixedData> sources;
    double sum = 0.0;
    for (std::size_t s = 0; s < weights.size(); ++s) {
      const DatasetOptions options = examples(static_cast<char>('a' + s), static_cast<int>(s) + 2);
      sources.push_back({options, weights[s]});
      sum += weights[s];
    }
    const DataMixture mixture(std::move(sources));
    std::vector<std::int64_t> given(weights.size());
    for (std::int64_t n = 0; n < 3000; ++n) {
      ASSERT_EQ(mixture.samples_by_source(n), given) << n;
      for (std::size_t s = 0; s < weights.size(); ++s) {
        const double share = static_cast<double>(n) * weights[s] / sum;
        ASSERT_LT(std::abs(static_cast<double>(given[s]) - share), 1.0) << n << " of " << s;
      }
      const auto source = static_cast<std::size_t>(rows_of(mixture, n).inputs[0] - 'a');
      ASSERT_LT(source, given.size());
      ++given[source];
    }
    // Far on, too.
    constexpr std::int64_t kFar = 1'000'000'000'007;
    for (std::size_t s = 0; s < weights.size(); ++s) {
      const double share = static_cast<double>(kFar) * weights[s] / sum;
      EXPECT_NEAR(static_cast<double>(mixture.samples_by_source(kFar)[s]), share, 1.0);
    }
  }
}

TEST_F(Mixtures, ReadEachSourceInItsOwnOrder) {
  const DataMixture mixture({{examples('a', 10), 0.75}, {examples('b', 7), 0.25}});
  std::vector<std::string> of_a, of_b;
  for (std::int64_t i = 0; i < 120; ++i) {
    const Row row = rows_of(mixture, i);
    auto& texts = row.inputs[0] == 'a' ? of_a : of_b;
    texts.emplace_back(row.inputs.begin() + 1, row.inputs.end());
    texts.back() += static_cast<char>(row.targets.back());
  }
  ASSERT_EQ(of_a.size(), 90U);
  ASSERT_EQ(of_b.size(), 30U);
  for (const auto* texts : {&of_a, &of_b}) {  // every epoch has every example, in another order
    const std::size_t size = texts == &of_a ? 10 : 7;
    const std::vector<std::string> first(texts->begin(), texts->begin() + static_cast<int>(size));
    const std::vector<std::string> second(texts->begin() + static_cast<int>(size),
                                          texts->begin() + static_cast<int>(2 * size));
    EXPECT_THAT(second, testing::UnorderedElementsAreArray(first));
    EXPECT_NE(second, first);
    EXPECT_NE(texts->at(0), texts->at(1));
  }
  // Any division of samples over ranks and micro-batches reads the same.
  const Row ten = rows_of(mixture, 35, 10);
  for (std::int64_t i = 0; i < 10; ++i) {
    const Row one = rows_of(mixture, 35 + i);
    EXPECT_TRUE(std::equal(one.inputs.begin(), one.inputs.end(), ten.inputs.begin() + i * 4));
    EXPECT_TRUE(std::equal(one.targets.begin(), one.targets.end(), ten.targets.begin() + i * 4));
  }
  const std::vector<NamedText> identity = mixture.identity();
  const auto value_of = [&](const std::string& name) {
    const auto found = std::ranges::find(identity, name, &NamedText::name);
    return found == identity.end() ? "none" : found->value;
  };
  EXPECT_EQ(value_of("names of data files (1)"), "a.jsonl");
  EXPECT_EQ(value_of("names of data files (2)"), "b.jsonl");
  EXPECT_EQ(value_of("weights of data"), "3 : 1");
}

TEST_F(Mixtures, AnEpochReadsEachAtLeastOnce) {
  for (const auto& [weight_a, weight_b] : {std::pair{3.0, 1.0}, {1.0, 5.0}, {0.01, 0.99}}) {
    const DataMixture mixture({{examples('a', 12), weight_a}, {examples('b', 5), weight_b}});
    const std::int64_t epoch = mixture.samples_per_epoch();
    const auto counts = mixture.samples_by_source(epoch);
    EXPECT_TRUE(counts[0] >= 12 && counts[1] >= 5);
    const auto before = mixture.samples_by_source(epoch - 1);
    EXPECT_TRUE(before[0] < 12 || before[1] < 5);
  }
}

TEST_F(Mixtures, WithoutWeightsHaveTheRatioOfSizes) {
  const DataMixture mixture({{examples('a', 30)}, {text('b', 15)}, {text('c', 5)}});
  EXPECT_THAT(mixture.weights(), ElementsAre(6, 3, 1));
  EXPECT_EQ(mixture.samples_per_epoch(), 50);
  EXPECT_EQ(mixture.kind(), DataKind::kAuto);
  EXPECT_EQ(mixture.tokens(), 30 * 5 + 61 + 21);
  EXPECT_EQ(mixture.files().size(), 3U);
}

TEST_F(Mixtures, OfPackedExamplesAndText) {
  DatasetOptions packed = examples('a', 40), stream = text('b', 10);
  packed.packing = stream.packing = true;
  packed.sequence_length = stream.sequence_length = 8;
  const DataMixture mixture({{packed, 0.5}, {stream, 0.5}});
  ASSERT_EQ(mixture.input_shape(2), (Shape{2, 2, 8}));
  const Row rows = rows_of(mixture, 0, 2);
  const auto of = [&](const std::vector<std::int32_t>& values, std::size_t row) {
    const auto begin = values.begin() + static_cast<std::ptrdiff_t>(row * 8);
    return std::vector(begin, begin + 8);
  };
  const std::size_t a = rows.inputs[0] == 'a' ? 0 : 1, b = 1 - a;
  EXPECT_THAT(of(rows.inputs, 2 + a), ElementsAre(0, 0, 0, 0, 4, 4, 4, 4));
  EXPECT_THAT(of(rows.inputs, 2 + b), ElementsAre(0, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(of(rows.targets, b), testing::Each('b'));
  EXPECT_EQ(rows.counted, 16);
  DatasetOptions other = stream;
  EXPECT_THAT(([&] {
                DataMixture({{stream}, {other}});
              }),
              ThrowsMessage<Error>(HasSubstr("packing is for examples")));
}

TEST_F(Mixtures, HoldOutPartsOfAll) {
  DatasetOptions a = examples('a', 20), b = text('b', 20);
  a.validation_fraction = b.validation_fraction = 0.1;
  const DataMixture mixture({{a, 1}, {b, 1}});
  const DataMixture held_out = mixture.validation();
  EXPECT_EQ(mixture.sources()[0].samples_per_epoch(), 18);
  EXPECT_EQ(held_out.sources()[0].samples_per_epoch(), 2);
  EXPECT_EQ(held_out.weights(), mixture.weights());
  EXPECT_NE(held_out.identity(), mixture.identity());
}

TEST_F(Mixtures, ErrorsNameTheRemedy) {
  const auto open = [&](std::optional<double> a, std::optional<double> b) {
    return [this, a, b] { DataMixture({{examples('a', 3), a}, {examples('b', 3), b}}); };
  };
  EXPECT_THAT(open(0.5, {}), ThrowsMessage<Error>(AllOf(HasSubstr("b.jsonl' has no weight"),
                                                        HasSubstr("give all of them one"))));
  EXPECT_THAT(open({}, 0.5), ThrowsMessage<Error>(HasSubstr("a.jsonl' has no weight")));
  EXPECT_THAT(open(0.5, 0.0), ThrowsMessage<Error>(HasSubstr("weight 0 of data is not above 0")));
  EXPECT_THAT(open(0.5, 1e-9), ThrowsMessage<Error>(HasSubstr("too many digits")));
  EXPECT_THAT(open(std::sqrt(2.0), 1.0), ThrowsMessage<Error>(HasSubstr("0.7 and 0.3")));
  EXPECT_NO_THROW(open(0.123456, 0.876544)());
}

}  // namespace
}  // namespace tessera::data_mixture_test
