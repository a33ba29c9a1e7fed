#include "tessera/model/generate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tessera/core/error.h"

namespace tessera::generate_test {
namespace {

using Logits = std::vector<float>;
using Tokens = std::vector<std::int32_t>;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(SampleToken, TemperatureZeroTakesTheLikeliest) {
  const Logits logits{0.5F, 2.0F, -1.0F, 2.0F};
  for (std::int64_t position = 0; position < 20; ++position) {
    EXPECT_EQ(sample_token({.temperature = 0.0F}, logits, position), 1);
    EXPECT_EQ(sample_token({.temperature = 1.0F, .top_k = 1}, logits, position), 1);
    EXPECT_EQ(sample_token({.temperature = 1e-30F, .top_k = 1}, logits, position), 1);
  }
}

TEST(SampleToken, DrawsWithTheProbabilitiesOfTheLogits) {
  const Logits logits{std::log(1.0F), std::log(2.0F), -kInfinity, std::log(5.0F)};
  constexpr std::int64_t kDraws = 80000;
  for (const float temperature : {1.0F, 0.5F}) {
    std::vector<double> weights{1.0, 2.0, 0.0, 5.0};
    for (double& weight : weights) weight = std::pow(weight, 1.0 / temperature);
    const double sum = weights[0] + weights[1] + weights[3];
    std::vector<std::int64_t> counts(4);
    for (std::int64_t i = 0; i < kDraws; ++i) {
      const std::int32_t token = sample_token({.temperature = temperature, .seed = 5}, logits, i);
      ++counts[static_cast<std::size_t>(token)];
    }
    for (std::size_t token = 0; token < 4; ++token) {
      const double p = weights[token] / sum;
      const double deviation = std::sqrt(p * (1.0 - p) * kDraws);
      EXPECT_NEAR(static_cast<double>(counts[token]), p * kDraws, 4.0 * deviation) << token;
    }
  }
}

TEST(SampleToken, TopKLeavesOutTheRest) {
  const Logits logits{1.0F, 1.0F, 0.9F, 1.0F, 0.5F};
  std::vector<int> counts(5);
  for (std::int64_t i = 0; i < 2000; ++i) {
    ++counts[static_cast<std::size_t>(sample_token({.temperature = 1.0F, .top_k = 2}, logits, i))];
  }
  // Of three equal ones the two lowest count as likelier.
  EXPECT_GT(counts[0], 800);
  EXPECT_GT(counts[1], 800);
  EXPECT_EQ(counts[0] + counts[1], 2000);
  const GenerateOptions all{.temperature = 1.0F, .top_k = 0, .seed = 3};
  const GenerateOptions more_than_all{.temperature = 1.0F, .top_k = 99, .seed = 3};
  for (std::int64_t i = 0; i < 100; ++i) {
    EXPECT_EQ(sample_token(all, logits, i), sample_token(more_than_all, logits, i));
  }
}

TEST(SampleToken, TopPKeepsTheFewestLikeliestThatReachIt) {
  const Logits logits{std::log(1.0F), std::log(2.0F), -kInfinity, std::log(5.0F)};
  struct Case {
    float top_p;
    int top_k;
    std::vector<double> weights;  // of those that stay
  };
  constexpr std::int64_t kDraws = 20000;
  for (const Case& c :
       {Case{0.01F, 0, {0, 0, 0, 5}}, Case{0.6F, 0, {0, 0, 0, 5}}, Case{0.65F, 0, {0, 2, 0, 5}},
        Case{0.87F, 0, {0, 2, 0, 5}}, Case{0.88F, 0, {1, 2, 0, 5}}, Case{1.0F, 0, {1, 2, 0, 5}},
        // Of the two likeliest, 5 is 0.714.
        Case{0.7F, 2, {0, 0, 0, 5}}, Case{0.72F, 2, {0, 2, 0, 5}}}) {
    SCOPED_TRACE(concat("top_p ", c.top_p, " top_k ", c.top_k));
    const GenerateOptions options{
        .temperature = 1.0F, .top_k = c.top_k, .top_p = c.top_p, .seed = 9};
    std::vector<std::int64_t> counts(4);
    for (std::int64_t i = 0; i < kDraws; ++i) {
      ++counts[static_cast<std::size_t>(sample_token(options, logits, i))];
    }
    const double sum = c.weights[0] + c.weights[1] + c.weights[3];
    for (std::size_t token = 0; token < 4; ++token) {
      const double p = c.weights[token] / sum;
      const double deviation = std::sqrt(p * (1.0 - p) * kDraws);
      EXPECT_NEAR(static_cast<double>(counts[token]), p * kDraws, 4.0 * deviation) << token;
    }
  }
  for (std::int64_t i = 0; i < 200; ++i) {  // of equal ones the lowest count as likelier
    EXPECT_LT(sample_token({.temperature = 1.0F, .top_p = 0.5F}, Logits(4, 1.0F), i), 2);
  }
}

TEST(SampleToken, SurvivesExtremeLogits) {
  const float largest = std::numeric_limits<float>::max();
  EXPECT_EQ(sample_token({.temperature = 0.01F}, Logits{-largest, largest}, 0), 1);
  EXPECT_EQ(sample_token({.temperature = 1.0F}, Logits{-kInfinity, -largest}, 0), 1);
  EXPECT_EQ(sample_token({.temperature = 1.0F}, Logits{3.0F}, 0), 0);
}

TEST(SampleToken, RejectsWhatIsNoDistribution) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const Logits& logits :
       {Logits{}, Logits{0.0F, nan}, Logits{kInfinity, 0.0F}, Logits{-kInfinity, -kInfinity}}) {
    EXPECT_THROW(sample_token({.temperature = 0.0F}, logits, 0), Error);
    EXPECT_THROW(sample_token({.temperature = 1.0F}, logits, 0), Error);
  }
}

/// Gives all the weight to the token after the last one, modulo 7.
struct Counter {
  std::vector<Tokens> contexts;
  Logits logits;
  std::span<const float> operator()(std::span<const std::int32_t> context) {
    contexts.emplace_back(context.begin(), context.end());
    logits.assign(7, -30.0F);
    logits[static_cast<std::size_t>((context.back() + 1) % 7)] = 30.0F;
    return logits;
  }
};

TEST(Generate, ContinuesThePromptWithinTheContext) {
  Counter counter;
  const Tokens prompt{0, 1, 2};
  Tokens streamed;
  const Tokens text = generate({.tokens = 6, .context_length = 4, .temperature = 0.5F}, prompt,
                               std::ref(counter), [&](std::int32_t t) {
                                 streamed.push_back(t);
                                 return true;
                               });
  EXPECT_EQ(text, (Tokens{3, 4, 5, 6, 0, 1}));
  EXPECT_EQ(streamed, text);
  EXPECT_THAT(counter.contexts,
              testing::ElementsAre(Tokens{0, 1, 2}, Tokens{0, 1, 2, 3}, Tokens{1, 2, 3, 4},
                                   Tokens{2, 3, 4, 5}, Tokens{3, 4, 5, 6}, Tokens{4, 5, 6, 0}));
}

TEST(Generate, EndsWhenItsCallerHasSeenEnough) {
  Counter counter;
  const Tokens text = generate({.tokens = 1000000, .temperature = 0.5F}, Tokens{0},
                               std::ref(counter), [](std::int32_t token) { return token < 3; });
  EXPECT_EQ(text, (Tokens{1, 2, 3}));
}

TEST(Generate, DependsOnTheSeedAlone) {
  const Logits flat(50, 0.0F);
  const auto run = [&](std::uint64_t seed, std::int64_t tokens) {
    return generate({.tokens = tokens, .temperature = 1.0F, .seed = seed}, Tokens{1},
                    [&](std::span<const std::int32_t>) { return std::span<const float>(flat); });
  };
  const Tokens text = run(1, 40);
  EXPECT_EQ(text, run(1, 40));
  EXPECT_NE(text, run(2, 40));
  EXPECT_EQ(Tokens(text.begin(), text.begin() + 10), run(1, 10));
  EXPECT_TRUE(run(1, 0).empty());
}

TEST(Generate, RejectsOptionsOutOfRange) {
  Counter counter;
  const auto expect_config_error = [&](const GenerateOptions& options, const Tokens& prompt) {
    try {
      generate(options, prompt, std::ref(counter));
      FAIL() << "expected an error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kConfig) << error.what();
    }
  };
  expect_config_error({}, {});
  expect_config_error({.tokens = -1}, {1});
  expect_config_error({.context_length = 0}, {1});
  expect_config_error({.temperature = -1.0F}, {1});
  expect_config_error({.temperature = std::nanf("")}, {1});
  expect_config_error({.top_k = -1}, {1});
  expect_config_error({.top_p = 0.0F}, {1});
  expect_config_error({.top_p = 1.1F}, {1});
}

TEST(Printable, KeepsText) {
  for (const std::string text : {"", "plain\n\ttext", "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80",
                                 "\xed\x9f\xbf\xf4\x8f\xbf\xbf"}) {
    EXPECT_EQ(printable(to_byte_tokens(text)), text);
  }
}

TEST(Printable, ReplacesWhatIsNoUtf8) {
  const std::string r = "\xef\xbf\xbd";
  const auto shown = [](std::string_view text) { return printable(to_byte_tokens(text)); };
  EXPECT_EQ(shown("a\xff"
                  "b\x80"),
            "a" + r + "b" + r);
  EXPECT_EQ(shown("\xc3"), r);  // cut short
  EXPECT_EQ(shown("\xe2\x82"), r + r);
  EXPECT_EQ(shown("\xc3z"), r + "z");
  EXPECT_EQ(shown("\xc0\xaf"), r + r);  // overlong '/'
  EXPECT_EQ(shown("\xe0\x80\xaf"), r + r + r);
  EXPECT_EQ(shown("\xed\xa0\x80"), r + r + r);          // a surrogate
  EXPECT_EQ(shown("\xf4\x90\x80\x80"), r + r + r + r);  // above U+10FFFF
}

TEST(Printable, EscapesWhatMovesTheCursor) {
  const auto shown = [](std::string_view text) { return printable(to_byte_tokens(text)); };
  EXPECT_EQ(shown("\x1b[2J\r"), "\\x1b[2J\\x0d");
  EXPECT_EQ(shown(std::string_view("\0\x7f", 2)), "\\x00\\x7f");
  EXPECT_EQ(shown("\xc2\x9b"), "\\x9b");          // the one-byte form of "\x1b["
  EXPECT_EQ(shown("\xe2\x80\xae"), "\\u{202e}");  // right-to-left override
}

TEST(Printable, NamesTokensThatAreNoBytes) {
  EXPECT_EQ(printable(Tokens{'a', 50256, -1, 0xc3, 300}), "a<50256><-1>\xef\xbf\xbd<300>");
}

}  // namespace
}  // namespace tessera::generate_test
