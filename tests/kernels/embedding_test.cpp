#include <cmath>
#include <limits>

#include "kernels/every_way.h"
#include "tessera/core/error.h"
#include "tessera/kernels/kernel_table.h"

namespace tessera::embedding_test {
namespace {

struct Sizes {
  std::int64_t batch, length, channels, vocab, positions;
  std::int64_t document = 0;  ///< length of documents, of sequence b longer by b; 0: one

  std::int64_t start_of(std::int64_t row) const {
    const std::int64_t of_sequence = document + row / length;
    return document == 0 ? 0 : row % length / of_sequence * of_sequence;
  }
  std::int64_t position(std::int64_t row) const { return row % length - start_of(row); }
};

/// (B, L); none of one document.
std::vector<std::int32_t> starts_of(const Sizes& s) {
  std::vector<std::int32_t> all;
  for (std::int64_t row = 0; s.document > 0 && row < s.batch * s.length; ++row) {
    all.push_back(static_cast<std::int32_t>(s.start_of(row)));
  }
  return all;
}

TensorView starts_view(std::vector<std::int32_t>& starts, const Sizes& s) {
  return starts.empty() ? TensorView{} : view_of(starts, Shape{s.batch, s.length});
}

const std::vector<Sizes> kCases{
    {1, 1, 1, 1, 1},        {2, 5, 7, 11, 9},      {3, 17, 33, 5, 17},
    {4, 64, 130, 401, 70},  {2, 129, 257, 3, 200}, {0, 5, 8, 10, 5},
    {3, 1501, 16, 2, 1501}, {2, 40, 7, 11, 45, 1}, {3, 130, 16, 5, 130, 33}};

std::vector<std::int32_t> random_tokens(const Sizes& s) {
  std::mt19937 generator(23);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(s.batch * s.length));
  for (auto& token : tokens)
    token = static_cast<std::int32_t>(static_cast<std::int64_t>(generator()) % s.vocab);
  return tokens;
}

/// Without positions the view is empty.
template <typename T>
TensorView table_of(std::vector<T>& values, bool given, std::int64_t rows, std::int64_t channels) {
  return given ? view_of(values, Shape{rows, channels}) : TensorView{};
}

template <typename T>
void check_forward(const Sizes& s, bool positions, float scale = 1.0F) {
  auto tokens = random_tokens(s);
  auto wte = random_values<T>(s.vocab * s.channels, 1);
  auto wpe = random_values<T>(s.positions * s.channels, 2);
  auto starts = starts_of(s);
  const auto result = run_every_way([&] {
    std::vector<T> x(tokens.size() * static_cast<std::size_t>(s.channels));
    StreamUnderTest stream;
    kernels_under_test().embedding_forward(
        {.tokens = view_of(tokens, Shape{s.batch, s.length}),
         .wte = view_of(wte, Shape{s.vocab, s.channels}),
         .wpe = table_of(wpe, positions, s.positions, s.channels),
         .x = view_of(x, Shape{s.batch, s.length, s.channels}),
         .starts = starts_view(starts, s),
         .scale = scale},
        stream);
    return x;
  });
  std::vector<T> expected;
  for (std::int64_t row = 0; row < s.batch * s.length; ++row) {
    for (std::int64_t c = 0; c < s.channels; ++c) {
      const std::int64_t token = tokens[static_cast<std::size_t>(row)];
      const T word = wte[static_cast<std::size_t>(token * s.channels + c)];
      const T position = wpe[static_cast<std::size_t>(s.position(row) * s.channels + c)];
      const float scaled = as_float(word) * scale;
      expected.push_back(T(positions ? scaled + as_float(position) : scaled));
    }
  }
  EXPECT_TRUE(same_bits(result, expected));
}

TEST(EmbeddingForward, AddsTheTwoRows) {
  for (const Sizes& s : kCases) {
    for (const bool positions : {true, false}) {
      check_forward<float>(s, positions);
      check_forward<bfloat16>(s, positions);
      check_forward<float16>(s, positions);
    }
  }
}

// With positions by a power of two, whose products are exact: elsewhere they are not rounded before
// they are added.
TEST(EmbeddingForward, ScalesWords) {
  for (const Sizes& s : kCases) {
    for (const bool positions : {true, false}) {
      const float scale = positions ? 4.0F : 59.75F;
      check_forward<float>(s, positions, scale);
      check_forward<bfloat16>(s, positions, scale);
      check_forward<float16>(s, positions, scale);
    }
  }
}

/// Adds row after row in fp32, rounding once at the end.
template <typename T, typename Out>
std::vector<Out> scatter_add(const std::vector<Out>& start, bool accumulate,
                             const std::vector<T>& dx, const std::vector<std::int64_t>& target_row,
                             std::int64_t channels, float scale = 1.0F) {
  std::vector<float> sums;
  for (const Out value : start) sums.push_back(accumulate ? as_float(value) : 0.0F);
  for (std::size_t row = 0; row < target_row.size(); ++row) {
    for (std::int64_t c = 0; c < channels; ++c) {
      sums[static_cast<std::size_t>(target_row[row] * channels + c)] +=
          scale *
          as_float(dx[row * static_cast<std::size_t>(channels) + static_cast<std::size_t>(c)]);
    }
  }
  std::vector<Out> result;
  for (const float sum : sums) result.emplace_back(sum);
  return result;
}

/// Which tables have a gradient; the others stay as they are.
struct Tables {
  bool words = true, positions = true;
};

template <typename T, typename Out>
void check_backward(const Sizes& s, bool accumulate_wte, bool accumulate_wpe, Tables given = {},
                    float scale = 1.0F) {
  auto tokens = random_tokens(s);
  auto dx = random_values<T>(s.batch * s.length * s.channels, 1);
  const auto dwte = random_values<Out>(s.vocab * s.channels, 2);
  const auto dwpe = random_values<Out>(s.positions * s.channels, 3);
  auto starts = starts_of(s);
  const auto result = run_every_way([&] {
    auto wte = dwte;
    auto wpe = dwpe;
    StreamUnderTest stream;
    kernels_under_test().embedding_backward(
        {.tokens = view_of(tokens, Shape{s.batch, s.length}),
         .dx = view_of(dx, Shape{s.batch, s.length, s.channels}),
         .dwte = table_of(wte, given.words, s.vocab, s.channels),
         .dwpe = table_of(wpe, given.positions, s.positions, s.channels),
         .accumulate_wte = accumulate_wte,
         .accumulate_wpe = accumulate_wpe,
         .starts = starts_view(starts, s),
         .scale = scale},
        stream);
    wte.insert(wte.end(), wpe.begin(), wpe.end());
    return wte;
  });
  std::vector<std::int64_t> token_rows(tokens.begin(), tokens.end());
  std::vector<std::int64_t> position_rows;
  for (std::int64_t row = 0; row < s.batch * s.length; ++row)
    position_rows.push_back(s.position(row));
  auto expected =
      given.words ? scatter_add(dwte, accumulate_wte, dx, token_rows, s.channels, scale) : dwte;
  const auto expected_wpe =
      given.positions ? scatter_add(dwpe, accumulate_wpe, dx, position_rows, s.channels) : dwpe;
  expected.insert(expected.end(), expected_wpe.begin(), expected_wpe.end());
  EXPECT_TRUE(same_bits(result, expected)) << s.vocab << " x " << s.channels;
}

TEST(EmbeddingBackward, ScalesTheGradientOfWordsAlone) {
  for (const Sizes& s : kCases) {
    for (const bool accumulate : {false, true}) {
      check_backward<float, float>(s, accumulate, accumulate, {}, 4.0F);
      check_backward<bfloat16, float>(s, accumulate, accumulate, {}, 0.25F);
    }
  }
}

TEST(EmbeddingBackward, AddsRowsInOrder) {
  for (const Sizes& s : kCases) {
    for (const bool accumulate_wte : {false, true}) {
      for (const bool accumulate_wpe : {false, true}) {
        if (testing_cuda() && accumulate_wte == accumulate_wpe) continue;  // tables apart: enough
        check_backward<float, float>(s, accumulate_wte, accumulate_wpe);
        check_backward<bfloat16, float>(s, accumulate_wte, accumulate_wpe);
        check_backward<bfloat16, bfloat16>(s, accumulate_wte, accumulate_wpe);
        check_backward<float16, float>(s, accumulate_wte, accumulate_wpe);
        check_backward<float16, float16>(s, accumulate_wte, accumulate_wpe);
      }
    }
  }
}

TEST(EmbeddingBackward, LeavesOutATable) {
  for (const Sizes& s : kCases) {
    check_backward<float, float>(s, false, false, {.positions = false});
    check_backward<bfloat16, float>(s, true, true, {.words = false});
    check_backward<float, float>(s, false, false, {.words = false, .positions = false});
  }
}

TEST(EmbeddingBackward, TakesVocabulariesBeyond16Bits) {
  check_backward<float, float>({2, 1031, 8, 70001, 1031}, false, false);
}

TEST(Embedding, TokensOutsideOfTheVocabularyMakeNanOnCuda) {
  if (!testing_cuda()) GTEST_SKIP() << "the CPU throws";
  // The last but one has its lowest byte in common with token 1.
  std::vector<std::int32_t> tokens{1, -1, 5, std::numeric_limits<std::int32_t>::min(), 0x100001, 1};
  std::vector<float> wte(10, 1.0F), wpe(12, 2.0F), x(12, 3.0F), dwte(10, 4.0F), dwpe(12, 5.0F);
  const TensorView token_view = view_of(tokens, Shape{1, 6});
  const TensorView x_view = view_of(x, Shape{1, 6, 2});
  StreamUnderTest stream;
  kernels_under_test().embedding_backward({.tokens = token_view,
                                           .dx = x_view,
                                           .dwte = view_of(dwte, Shape{5, 2}),
                                           .dwpe = view_of(dwpe, Shape{6, 2})},
                                          stream);
  EXPECT_EQ(dwte, (std::vector<float>{0, 0, 6, 6, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(dwpe, std::vector<float>(12, 3.0F));
  kernels_under_test().embedding_forward({.tokens = token_view,
                                          .wte = view_of(wte, Shape{5, 2}),
                                          .wpe = view_of(wpe, Shape{6, 2}),
                                          .x = x_view},
                                         stream);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const bool known = tokens[i / 2] == 1;
    EXPECT_TRUE(known ? x[i] == 3.0F : std::isnan(x[i])) << i << ": " << x[i];
  }
}

TEST(Embedding, RejectsTokensOutsideOfTheVocabulary) {
  if (testing_cuda()) GTEST_SKIP() << "kernels cannot throw";
  for (const std::int32_t bad : {-1, 5}) {
    std::vector<std::int32_t> tokens{0, bad};
    std::vector<float> wte(10), wpe(4), x(4);
    const TensorView token_view = view_of(tokens, Shape{1, 2});
    const TensorView wte_view = view_of(wte, Shape{5, 2}), wpe_view = view_of(wpe, Shape{2, 2});
    const TensorView x_view = view_of(x, Shape{1, 2, 2});
    StreamUnderTest stream;
    EXPECT_THROW(
        kernels_under_test().embedding_forward({token_view, wte_view, wpe_view, x_view}, stream),
        Error);
    EXPECT_THROW(
        kernels_under_test().embedding_backward({token_view, x_view, wte_view, wpe_view}, stream),
        Error);
  }
}

}  // namespace
}  // namespace tessera::embedding_test
