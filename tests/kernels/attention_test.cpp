#include <limits>

#include "kernels/support.h"
#include "kernels/under_test.h"

namespace tessera::attention_test {
namespace {

struct Sizes {
  std::int64_t batch, length, heads, dim;
  std::int64_t window = 0;
  std::int64_t document = 0;  ///< length of documents, of sequence b longer by b; 0: one
  bool causal = true;
  AttentionScores scores{};

  /// Behind the last key that a query sees.
  std::int64_t keys_end(std::int64_t b, std::int64_t query) const {
    if (causal) return query + 1;
    return document == 0 ? length : std::min(length, start_of(b, query) + document + b);
  }

  std::int64_t start_of(std::int64_t b, std::int64_t place) const {
    return document == 0 ? 0 : place / (document + b) * (document + b);
  }
  /// The first key that a query sees.
  std::int64_t first_key(std::int64_t b, std::int64_t query) const {
    return std::max(start_of(b, query), window == 0 ? 0 : query - window + 1);
  }
  /// (B, L); none of one document.
  std::vector<std::int32_t> starts() const {
    std::vector<std::int32_t> all;
    for (std::int64_t i = 0; document > 0 && i < batch * length; ++i) {
      all.push_back(static_cast<std::int32_t>(start_of(i / length, i % length)));
    }
    return all;
  }
};

std::string name(const Sizes& s) {
  return concat("B ", s.batch, ", L ", s.length, ", H ", s.heads, ", D ", s.dim, ", window ",
                s.window, ", documents of ", s.document, s.causal ? "" : ", not causal", ", scale ",
                s.scores.scale, ", cap ", s.scores.soft_cap);
}

/// Indices into qkv (B, L, 3, H, D), out (B, L, H, D) and lse (B, H, L).
struct Index {
  Sizes s;
  std::size_t qkv(std::int64_t b, std::int64_t l, std::int64_t part, std::int64_t h,
                  std::int64_t d) const {
    return at((((b * s.length + l) * 3 + part) * s.heads + h) * s.dim + d);
  }
  std::size_t out(std::int64_t b, std::int64_t l, std::int64_t h, std::int64_t d) const {
    return at(((b * s.length + l) * s.heads + h) * s.dim + d);
  }
  std::size_t lse(std::int64_t b, std::int64_t h, std::int64_t l) const {
    return at((b * s.heads + h) * s.length + l);
  }
};

std::int64_t out_numel(const Sizes& s) { return s.batch * s.length * s.heads * s.dim; }

struct ForwardOracle {
  Doubles out, lse;
};

double scale_of(const Sizes& s) {
  return s.scores.scale == 0.0F ? 1.0 / std::sqrt(static_cast<double>(s.dim))
                                : static_cast<double>(s.scores.scale);
}

/// The probabilities of query l, and their log-denominator. Keys before its window have 0. Of each
/// score also its derivative by what was capped.
Doubles probabilities(const Doubles& qkv, const Index& i, std::int64_t b, std::int64_t h,
                      std::int64_t l, double& lse, Doubles& slopes) {
  Doubles p(at(i.s.keys_end(b, l)));
  slopes.assign(p.size(), 1.0);
  double maximum = -INFINITY;
  for (std::int64_t k = i.s.first_key(b, l); k < i.s.keys_end(b, l); ++k) {
    for (std::int64_t d = 0; d < i.s.dim; ++d) {
      p[at(k)] += qkv[i.qkv(b, l, 0, h, d)] * qkv[i.qkv(b, k, 1, h, d)];
    }
    p[at(k)] *= scale_of(i.s);
    if (const auto cap = static_cast<double>(i.s.scores.soft_cap); cap != 0.0) {
      const double t = std::tanh(p[at(k)] / cap);
      slopes[at(k)] = 1.0 - t * t;
      p[at(k)] = cap * t;
    }
    maximum = std::max(maximum, p[at(k)]);
  }
  double sum = 0.0;
  for (std::int64_t k = i.s.first_key(b, l); k < i.s.keys_end(b, l); ++k) {
    sum += p[at(k)] = std::exp(p[at(k)] - maximum);
  }
  for (double& value : p) value /= sum;
  lse = maximum + std::log(sum);
  return p;
}

/// Calls body(b, h, l) for every query.
template <typename Body>
void each_query(const Sizes& s, const Body& body) {
  for (std::int64_t b = 0; b < s.batch; ++b) {
    for (std::int64_t h = 0; h < s.heads; ++h) {
      for (std::int64_t l = 0; l < s.length; ++l) body(b, h, l);
    }
  }
}

ForwardOracle forward_oracle(const Doubles& qkv, const Sizes& s) {
  const Index i{s};
  ForwardOracle r{Doubles(at(out_numel(s))), Doubles(at(s.batch * s.heads * s.length))};
  each_query(s, [&](std::int64_t b, std::int64_t h, std::int64_t l) {
    Doubles slopes;
    const Doubles p = probabilities(qkv, i, b, h, l, r.lse[i.lse(b, h, l)], slopes);
    for (std::int64_t k = 0; k < s.keys_end(b, l); ++k) {
      for (std::int64_t d = 0; d < s.dim; ++d) {
        r.out[i.out(b, l, h, d)] += p[at(k)] * qkv[i.qkv(b, k, 2, h, d)];
      }
    }
  });
  return r;
}

/// d_qkv by the textbook formulas, from the probabilities in full, and from `out` as the kernel is
/// given it: rounded, which in fp16 costs as much as all else.
Doubles backward_oracle(const Doubles& qkv, const Doubles& out, const Doubles& d_out,
                        const Sizes& s) {
  const Index i{s};
  Doubles g(qkv.size());
  const double scale = scale_of(s);
  each_query(s, [&](std::int64_t b, std::int64_t h, std::int64_t l) {
    double lse = 0.0;
    Doubles slopes;
    const Doubles p = probabilities(qkv, i, b, h, l, lse, slopes);
    Doubles dp(p.size());
    double delta = 0.0;
    for (std::int64_t d = 0; d < s.dim; ++d) {
      delta += d_out[i.out(b, l, h, d)] * out[i.out(b, l, h, d)];
    }
    for (std::int64_t k = 0; k < s.keys_end(b, l); ++k) {
      for (std::int64_t d = 0; d < s.dim; ++d) {
        dp[at(k)] += d_out[i.out(b, l, h, d)] * qkv[i.qkv(b, k, 2, h, d)];
        g[i.qkv(b, k, 2, h, d)] += p[at(k)] * d_out[i.out(b, l, h, d)];
      }
    }
    for (std::int64_t k = 0; k < s.keys_end(b, l); ++k) {
      const double ds = p[at(k)] * (dp[at(k)] - delta) * slopes[at(k)] * scale;
      for (std::int64_t d = 0; d < s.dim; ++d) {
        g[i.qkv(b, l, 0, h, d)] += ds * qkv[i.qkv(b, k, 1, h, d)];
        g[i.qkv(b, k, 1, h, d)] += ds * qkv[i.qkv(b, l, 0, h, d)];
      }
    }
  });
  return g;
}

template <typename T>
std::vector<std::uint8_t> workspace_for(const Sizes& s) {
  // What is not the kernel's own must stay as it is: a guard follows.
  const auto bytes =
      attention_workspace_bytes(s.batch, s.length, s.heads, s.dim, dtype_of<T>(), team_threads());
  return std::vector<std::uint8_t>(at(bytes + 64), 0xa5);
}

void expect_guard(const std::vector<std::uint8_t>& workspace) {
  for (std::size_t i = workspace.size() - 64; i < workspace.size(); ++i) {
    ASSERT_EQ(workspace[i], 0xa5) << "the kernel wrote past its workspace";
  }
}

template <typename T>
struct Forward {
  std::vector<T> out;
  std::vector<float> lse;
};

TensorView starts_view(std::vector<std::int32_t>& starts, const Sizes& s) {
  return starts.empty() ? TensorView{}
                        : TensorView(starts.data(), DType::kInt32, Shape{s.batch, s.length});
}

template <typename T>
Forward<T> forward(std::vector<T> qkv, const Sizes& s) {
  Forward<T> r{std::vector<T>(at(out_numel(s))),
               std::vector<float>(at(s.batch * s.heads * s.length))};
  auto workspace = workspace_for<T>(s);
  auto starts = s.starts();
  StreamUnderTest stream;
  kernels_under_test().attention_forward(
      {.qkv = view_of(qkv, Shape{s.batch, s.length, 3, s.heads, s.dim}),
       .out = view_of(r.out, Shape{s.batch, s.length, s.heads, s.dim}),
       .lse = view_of(r.lse, Shape{s.batch, s.heads, s.length}),
       .workspace = view_of(workspace, 0, static_cast<std::int64_t>(workspace.size()) - 64),
       .window = s.window,
       .starts = starts_view(starts, s),
       .causal = s.causal,
       .scores = s.scores},
      stream);
  expect_guard(workspace);
  return r;
}

template <typename T>
std::vector<T> backward(std::vector<T> qkv, std::vector<T> d_out, const Sizes& s) {
  Forward<T> f = forward(qkv, s);
  std::vector<T> d_qkv(qkv.size());
  auto workspace = workspace_for<T>(s);
  const Shape out{s.batch, s.length, s.heads, s.dim};
  const Shape packed{s.batch, s.length, 3, s.heads, s.dim};
  auto starts = s.starts();
  StreamUnderTest stream;
  kernels_under_test().attention_backward(
      {.d_out = view_of(d_out, out),
       .qkv = view_of(qkv, packed),
       .out = view_of(f.out, out),
       .lse = view_of(f.lse, Shape{s.batch, s.heads, s.length}),
       .d_qkv = view_of(d_qkv, packed),
       .workspace = view_of(workspace, 0, static_cast<std::int64_t>(workspace.size()) - 64),
       .window = s.window,
       .starts = starts_view(starts, s),
       .causal = s.causal,
       .scores = s.scores},
      stream);
  expect_guard(workspace);
  return d_qkv;
}

/// fp32: sums of a few thousand terms and one exp. bf16: p and ds are rounded (2^-8 each, at
/// random) before the second products, the output once more: 2^-7 of the largest at most. fp16 is
/// rounded by 2^-11.
template <typename T>
constexpr double tolerance() {
  return std::is_same_v<T, float> ? 1e-5 : 2.0 * rounding<T>();
}

template <typename T>
void check(const Sizes& s) {
  SCOPED_TRACE(name(s));
  const auto qkv = random_values<T>(3 * out_numel(s), 1, 1.5F);
  const auto d_out = random_values<T>(out_numel(s), 2);
  const ForwardOracle expected = forward_oracle(to_doubles(qkv), s);
  const Forward<T> f = forward(qkv, s);
  expect_close(f.out, expected.out, tolerance<T>(), "out");
  expect_close(f.lse, expected.lse, 1e-5, "lse");
  const Doubles d_qkv = backward_oracle(to_doubles(qkv), to_doubles(f.out), to_doubles(d_out), s);
  expect_close(backward(qkv, d_out, s), d_qkv, tolerance<T>(), "d_qkv");
}

template <typename T>
class Attention : public testing::Test {};
using Types = testing::Types<float, bfloat16, float16>;
TYPED_TEST_SUITE(Attention, Types);

TYPED_TEST(Attention, FollowsTheFormula) {
  on_every_target([] {
    for (const Sizes& s : {Sizes{1, 1, 1, 1}, Sizes{2, 3, 2, 5}, Sizes{1, 17, 3, 16},
                           Sizes{1, 130, 2, 33}, Sizes{2, 257, 1, 8}}) {
      check<TypeParam>(s);
    }
  });
}

/// The emulator is slow, and CUDA's tiles are smaller than the CPU's.
std::vector<Sizes> sizes_across_blocks() {
  if (testing_cuda()) return {{1, 128, 1, 64}, {1, 257, 1, 3}, {1, 200, 2, 32}, {1, 65, 1, 256}};
  return {{1, 128, 1, 64}, {1, 512, 1, 4},   {1, 513, 1, 7}, {1, 1031, 1, 3},
          {1, 700, 2, 32}, {1, 140, 1, 256}, {3, 64, 5, 128}};
}

TYPED_TEST(Attention, CrossesBlocksOfKeysAndQueries) {
  for (const Sizes& s : sizes_across_blocks()) check<TypeParam>(s);
}

// Windows of a single key, inside of a tile, of whole tiles and beyond them; on CUDA by both kinds
// of kernels.
TYPED_TEST(Attention, TakesWindows) {
  const std::vector<Sizes> sizes =
      testing_cuda()
          ? std::vector<Sizes>{{1, 70, 1, 64, 1},   {1, 200, 1, 64, 33}, {1, 150, 1, 12, 64},
                               {1, 161, 1, 128, 5}, {1, 257, 1, 8, 128}, {1, 97, 1, 72, 96}}
          : std::vector<Sizes>{{1, 70, 2, 16, 1},  {2, 130, 1, 8, 7},    {1, 700, 1, 16, 64},
                               {1, 1100, 1, 4, 5}, {1, 1100, 1, 4, 512}, {1, 1100, 2, 4, 600},
                               {1, 64, 1, 4, 64},  {1, 65, 1, 4, 64}};
  for (const Sizes& s : sizes) check<TypeParam>(s);
}

// Documents of a place, shorter and longer than the blocks of keys and queries, with windows too.
TYPED_TEST(Attention, StaysWithinDocuments) {
  const std::vector<Sizes> sizes =
      testing_cuda() ? std::vector<Sizes>{{1, 70, 1, 64, 0, 1},    {2, 150, 1, 64, 0, 7},
                                          {1, 280, 1, 64, 0, 130}, {1, 161, 1, 128, 0, 70},
                                          {1, 200, 1, 64, 33, 90}, {2, 150, 1, 12, 0, 40},
                                          {1, 257, 1, 8, 50, 100}, {2, 64, 1, 64, 0, 64}}
                     : std::vector<Sizes>{{1, 70, 2, 16, 0, 1},    {2, 130, 1, 8, 0, 7},
                                          {2, 700, 1, 16, 0, 64},  {1, 1700, 1, 4, 0, 800},
                                          {2, 1100, 1, 4, 0, 530}, {1, 1100, 1, 4, 600, 1040},
                                          {2, 700, 1, 4, 33, 90},  {1, 64, 1, 4, 0, 64}};
  for (const Sizes& s : sizes) check<TypeParam>(s);
}

// Every query sees every key, also those in blocks after its own; of the last block some are none.
TYPED_TEST(Attention, SeesTheWholeSequenceIfItIsNotCausal) {
  std::vector<Sizes> sizes{{1, 1, 1, 1},   {2, 3, 2, 5},     {1, 17, 3, 16},
                           {1, 65, 2, 64}, {1, 130, 1, 33},  {1, 97, 2, 72},
                           {2, 64, 1, 64}, {1, 161, 1, 128}, {1, 257, 1, 8}};
  if (!testing_cuda()) {
    for (const Sizes& s : {Sizes{1, 700, 2, 16}, Sizes{1, 1031, 1, 3}, Sizes{1, 512, 1, 4}}) {
      sizes.push_back(s);
    }
  }
  for (Sizes s : sizes) {
    s.causal = false;
    check<TypeParam>(s);
  }
}

// Nothing beyond the own document is seen, before or behind: a sequence and its padding are two.
TYPED_TEST(Attention, SeesTheWholeDocumentIfItIsNotCausal) {
  const auto sizes = testing_cuda()
                         ? std::vector<Sizes>{{2, 70, 1, 16, 0, 1},  {2, 130, 1, 64, 0, 50},
                                              {1, 200, 1, 8, 0, 90}, {1, 300, 1, 64, 0, 140},
                                              {1, 97, 1, 72, 0, 33}, {1, 150, 1, 136, 0, 70},
                                              {1, 64, 1, 4, 0, 64}}
                         : std::vector<Sizes>{{1, 70, 2, 16, 0, 1},    {2, 130, 1, 8, 0, 7},
                                              {2, 700, 1, 16, 0, 64},  {1, 1700, 1, 4, 0, 800},
                                              {2, 1100, 1, 4, 0, 530}, {1, 64, 1, 4, 0, 64}};
  for (Sizes s : sizes) {
    s.causal = false;
    check<TypeParam>(s);
  }
}

// On CUDA this shows which kernels run: sums of two kinds of them differ.
TYPED_TEST(Attention, OneDocumentHasTheBitsOfNoneIfItIsNotCausal) {
  for (Sizes s : {Sizes{1, 70, 2, 64}, {1, 130, 1, 128}, {1, 70, 1, 136}}) {
    s.causal = false;
    const auto qkv = random_values<TypeParam>(3 * out_numel(s), 1);
    const auto d_out = random_values<TypeParam>(out_numel(s), 2);
    const auto out = forward(qkv, s).out, d_qkv = backward(qkv, d_out, s);
    s.document = s.length;
    EXPECT_TRUE(same_bits(forward(qkv, s).out, out)) << name(s);
    EXPECT_TRUE(same_bits(backward(qkv, d_out, s), d_qkv)) << name(s);
  }
}

// Caps that bend scores and caps that hardly do, with windows and documents, on CUDA by both kinds
// of kernels; a scale of the scores alone.
TYPED_TEST(Attention, CapsAndScalesScores) {
  std::vector<Sizes> sizes{{2, 3, 2, 5},    {1, 70, 1, 64},        {1, 97, 1, 72, 33},
                           {1, 97, 1, 256}, {2, 70, 1, 136, 40},   {2, 130, 1, 64, 0, 50},
                           {1, 70, 1, 33},  {2, 66, 1, 200, 9, 30}};
  if (!testing_cuda()) sizes.push_back({1, 1031, 1, 8, 600});
  for (Sizes s : sizes) {
    for (const float cap : {0.7F, 50.0F}) {
      s.scores.soft_cap = cap;
      check<TypeParam>(s);
    }
    s.scores = {.scale = 0.05F};
    check<TypeParam>(s);
    s.scores.soft_cap = 2.0F;
    check<TypeParam>(s);
  }
  Sizes whole{1, 70, 1, 64};
  whole.causal = false;
  whole.scores.soft_cap = 1.5F;
  check<TypeParam>(whole);
}

TEST(AttentionErrors, ScalesAndCapsAreNotNegative) {
  for (const AttentionScores& scores : {AttentionScores{.scale = -1.0F}, {.soft_cap = -1.0F}}) {
    Sizes s{1, 8, 1, 4};
    s.scores = scores;
    EXPECT_THROW(forward(random_values<float>(3 * out_numel(s), 1), s), Error);
  }
}

TEST(AttentionErrors, OnlyCausalAttentionHasWindows) {
  Sizes s{1, 8, 1, 4, 2};
  s.causal = false;
  EXPECT_THROW(forward(random_values<float>(3 * out_numel(s), 1), s), Error) << name(s);
}

TYPED_TEST(Attention, OneDocumentOfTheWholeSequenceChangesNoBit) {
  for (const Sizes& s : {Sizes{1, 150, 1, 64}, Sizes{2, 140, 1, 12}, Sizes{1, 150, 1, 64, 40}}) {
    const auto qkv = random_values<TypeParam>(3 * out_numel(s), 1);
    const auto d_out = random_values<TypeParam>(out_numel(s), 2);
    Sizes one = s;
    one.document = s.length;
    EXPECT_TRUE(same_bits(forward(qkv, one).out, forward(qkv, s).out)) << name(s);
    EXPECT_TRUE(same_bits(forward(qkv, one).lse, forward(qkv, s).lse)) << name(s);
    EXPECT_TRUE(same_bits(backward(qkv, d_out, one), backward(qkv, d_out, s))) << name(s);
  }
}

// Places read nothing of other documents.
TYPED_TEST(Attention, WhatOtherDocumentsHoldChangesNoBit) {
  const Sizes s{1, 150, 1, 64, 0, 50};
  const auto qkv = random_values<TypeParam>(3 * out_numel(s), 1);
  auto other = qkv;
  const std::int64_t row = 3 * s.heads * s.dim;
  for (std::int64_t e = 0; e < s.length * row; ++e) {
    if (s.start_of(0, e / row) != 50) other[at(e)] = TypeParam(as_float(other[at(e)]) + 3.0F);
  }
  const auto d_out = random_values<TypeParam>(out_numel(s), 2);
  const auto second = [&](const std::vector<TypeParam>& values, std::int64_t width) {
    return std::vector<TypeParam>(values.begin() + 50 * width, values.begin() + 100 * width);
  };
  EXPECT_TRUE(
      same_bits(second(forward(qkv, s).out, row / 3), second(forward(other, s).out, row / 3)));
  EXPECT_TRUE(
      same_bits(second(backward(qkv, d_out, s), row), second(backward(other, d_out, s), row)));
}

// Of documents as long as tiles, others are not even read: what is no number in them shows nowhere.
TYPED_TEST(Attention, SkipsTilesThatNoDocumentReachesOnCuda) {
  if (!testing_cuda()) GTEST_SKIP() << "blocks of CPUs are longer";
  const Sizes s{1, 384, 1, 64, 0, 128};
  auto qkv = random_values<TypeParam>(3 * out_numel(s), 1);
  auto d_out = random_values<TypeParam>(out_numel(s), 2);
  const std::int64_t row = s.heads * s.dim;
  for (std::int64_t e = 0; e < 3 * out_numel(s); ++e) {
    if (e / (3 * row) / 128 != 1) qkv[at(e)] = TypeParam(NAN);
  }
  for (std::int64_t e = 0; e < out_numel(s); ++e) {
    if (e / row / 128 != 1) d_out[at(e)] = TypeParam(NAN);
  }
  const auto expect_second_alone = [&](const std::vector<TypeParam>& values, std::int64_t width) {
    for (std::size_t e = 0; e < values.size(); ++e) {
      const bool second = static_cast<std::int64_t>(e) / width / 128 == 1;
      ASSERT_EQ(std::isnan(as_float(values[e])), !second) << e;
    }
  };
  expect_second_alone(forward(qkv, s).out, row);
  expect_second_alone(backward(qkv, d_out, s), 3 * row);
}

/// What the kernel for CUDA makes of a document that begins nowhere: the place has no number.
template <typename T>
void expect_nan_at_place_2(const std::vector<std::int32_t>& bad, std::int64_t dim) {
  const Sizes s{1, 4, 1, dim};
  auto starts = bad;
  auto qkv = random_values<T>(3 * out_numel(s), 1);
  std::vector<T> out(at(out_numel(s)));
  std::vector<float> lse(4);
  StreamUnderTest stream;
  kernels_under_test().attention_forward({.qkv = view_of(qkv, Shape{1, 4, 3, 1, dim}),
                                          .out = view_of(out, Shape{1, 4, 1, dim}),
                                          .lse = view_of(lse, Shape{1, 1, 4}),
                                          .starts = starts_view(starts, s)},
                                         stream);
  for (std::int64_t l = 0; l < 4; ++l) {
    EXPECT_EQ(std::isnan(lse[at(l)]), l == 2) << l;
    for (std::int64_t d = 0; d < dim; ++d) {
      EXPECT_EQ(std::isnan(as_float(out[at(l * dim + d)])), l == 2) << l << ' ' << d;
    }
  }
}

TEST(AttentionForward, RefusesDocumentsThatBeginNowhere) {
  if (testing_cuda()) {
    const std::int32_t lowest = std::numeric_limits<std::int32_t>::min();
    for (const std::int32_t bad : {1, -1, 3, 100, lowest}) {
      expect_nan_at_place_2<float>({0, 0, bad, 3}, 3);
      expect_nan_at_place_2<bfloat16>({0, 0, bad, 3}, 64);
    }
    return;
  }
  std::vector<std::int32_t> starts{0, 0, 1, 3};
  auto qkv = std::vector<float>(4 * 3), out = std::vector<float>(4), lse = out;
  std::vector<std::uint8_t> workspace(1 << 16);
  StreamUnderTest stream;
  EXPECT_THROW(kernels_under_test().attention_forward(
                   {.qkv = view_of(qkv, Shape{1, 4, 3, 1, 1}),
                    .out = view_of(out, Shape{1, 4, 1, 1}),
                    .lse = view_of(lse, Shape{1, 1, 4}),
                    .workspace = view_of(workspace),
                    .starts = TensorView(starts.data(), DType::kInt32, Shape{1, 4})},
                   stream),
               Error);
}

TYPED_TEST(Attention, AWindowOfTheWholeSequenceChangesNoBit) {
  const Sizes all{1, 100, 2, 16};
  const auto qkv = random_values<TypeParam>(3 * out_numel(all), 1);
  const auto d_out = random_values<TypeParam>(out_numel(all), 2);
  for (const std::int64_t window : {100, 101, 5000}) {
    Sizes windowed = all;
    windowed.window = window;
    EXPECT_TRUE(same_bits(forward(qkv, windowed).out, forward(qkv, all).out)) << window;
    EXPECT_TRUE(same_bits(backward(qkv, d_out, windowed), backward(qkv, d_out, all))) << window;
  }
}

// On CUDA, D decides about the kernel: multiples of 8 up to 256 go to tensor cores, padded to 64,
// 128 or 256; L about the last tile of queries (128 or 64) and of keys (16, 32 or 64).
TYPED_TEST(Attention, TakesEveryHeadSize) {
  for (const Sizes& s :
       {Sizes{2, 65, 2, 64}, Sizes{1, 200, 1, 64}, Sizes{1, 161, 1, 128}, Sizes{1, 97, 2, 72},
        Sizes{1, 64, 1, 40}, Sizes{2, 31, 1, 120}, Sizes{1, 70, 1, 136}, Sizes{1, 33, 1, 65},
        Sizes{2, 65, 2, 256}, Sizes{1, 130, 1, 248}, Sizes{1, 33, 1, 264}}) {
    check<TypeParam>(s);
  }
}

TYPED_TEST(Attention, TakesUnalignedViews) {
  const Sizes s{1, 37, 2, 64};
  const Shape packed{s.batch, s.length, 3, s.heads, s.dim};
  const Shape plain{s.batch, s.length, s.heads, s.dim};
  const auto qkv = random_values<TypeParam>(3 * out_numel(s), 1);
  const auto d_out = random_values<TypeParam>(out_numel(s), 2);
  const Forward<TypeParam> aligned = forward(qkv, s);
  const auto d_aligned = backward(qkv, d_out, s);
  // One element further in memory; the first stays as it is.
  const auto shifted = [](const std::vector<TypeParam>& values) {
    std::vector<TypeParam> copy{TypeParam(7.0F)};
    for (const TypeParam value : values) copy.push_back(value);
    return copy;
  };
  const auto view = [](std::vector<TypeParam>& values, const Shape& shape) {
    return TensorView(values.data() + 1, dtype_of<TypeParam>(), shape);
  };
  auto far_qkv = shifted(qkv), far_d_out = shifted(d_out), far_out = shifted(d_out),
       far_d_qkv = shifted(qkv);
  std::vector<float> lse(aligned.lse.size());
  auto workspace = workspace_for<TypeParam>(s);
  StreamUnderTest stream;
  kernels_under_test().attention_forward({.qkv = view(far_qkv, packed),
                                          .out = view(far_out, plain),
                                          .lse = view_of(lse, Shape{s.batch, s.heads, s.length}),
                                          .workspace = view_of(workspace)},
                                         stream);
  kernels_under_test().attention_backward({.d_out = view(far_d_out, plain),
                                           .qkv = view(far_qkv, packed),
                                           .out = view(far_out, plain),
                                           .lse = view_of(lse, Shape{s.batch, s.heads, s.length}),
                                           .d_qkv = view(far_d_qkv, packed),
                                           .workspace = view_of(workspace)},
                                          stream);
  EXPECT_EQ(as_float(far_out[0]), 7.0F);
  EXPECT_EQ(as_float(far_d_qkv[0]), 7.0F);
  const auto shifted_back = [](const std::vector<TypeParam>& values) {
    return std::vector<TypeParam>(values.begin() + 1, values.end());
  };
  expect_close(shifted_back(far_out), to_doubles(aligned.out), tolerance<TypeParam>(), "out");
  expect_close(lse, to_doubles(aligned.lse), 1e-5, "lse");
  expect_close(shifted_back(far_d_qkv), to_doubles(d_aligned), tolerance<TypeParam>(), "d_qkv");
}

TYPED_TEST(Attention, DoesNotDependOnTheThreads) {
  const std::vector<Sizes> sizes = testing_cuda()
                                       ? std::vector<Sizes>{{1, 150, 1, 64}, {2, 70, 2, 16}}
                                       : std::vector<Sizes>{{1, 300, 1, 32}, {2, 600, 3, 16}};
  for (const Sizes& s : sizes) {
    const auto qkv = random_values<TypeParam>(3 * out_numel(s), 1);
    const auto d_out = random_values<TypeParam>(out_numel(s), 2);
    run_on_any_threads([&] { return forward(qkv, s).out; });
    run_on_any_threads([&] { return forward(qkv, s).lse; });
    run_on_any_threads([&] { return backward(qkv, d_out, s); });
    Sizes whole = s;
    whole.causal = false;
    run_on_any_threads([&] { return forward(qkv, whole).out; });
    run_on_any_threads([&] { return backward(qkv, d_out, whole); });
  }
}

TYPED_TEST(Attention, TakesEmptySizes) {
  for (const Sizes& s : {Sizes{0, 4, 2, 8}, Sizes{2, 0, 2, 8}, Sizes{2, 4, 0, 8}}) {
    EXPECT_EQ(
        attention_workspace_bytes(s.batch, s.length, s.heads, s.dim, dtype_of<TypeParam>(), 3), 0);
    backward(std::vector<TypeParam>(), std::vector<TypeParam>(), s);
  }
}

TEST(AttentionForward, LargeScoresDoNotOverflow) {
  const Sizes s{1, testing_cuda() ? 150 : 600, 1, 16};
  const auto qkv = random_values<float>(3 * out_numel(s), 3, 30.0F);
  const ForwardOracle expected = forward_oracle(to_doubles(qkv), s);
  // Scores of some 4000 have errors of 1e-3 before the exponential.
  expect_close(forward(qkv, s).out, expected.out, 4e-3, "out");
}

TEST(AttentionForward, LaterKeysHaveNoEffect) {
  const Sizes s{1, 200, 2, 16};
  auto qkv = random_values<float>(3 * out_numel(s), 4);
  const auto before = forward(qkv, s).out;
  const std::int64_t row = 3 * s.heads * s.dim;
  for (std::int64_t e = 150 * row; e < 200 * row; ++e) qkv[at(e)] += 100.0F;
  const auto after = forward(qkv, s).out;
  const std::int64_t kept = 150 * s.heads * s.dim;
  EXPECT_EQ(std::memcmp(before.data(), after.data(), at(kept) * sizeof(float)), 0);
  EXPECT_NE(std::memcmp(before.data(), after.data(), after.size() * sizeof(float)), 0);
}

TEST(AttentionOracle, BackwardIsTheGradientOfForward) {
  for (const float cap : {0.0F, 0.8F}) {
    Sizes s{1, 4, 2, 3};
    s.scores.soft_cap = cap;
    const Doubles qkv = to_doubles(random_values<float>(3 * out_numel(s), 1));
    const Doubles d_out = to_doubles(random_values<float>(out_numel(s), 2));
    const Doubles expected = numeric_gradient(
        [&](const Doubles& v) { return dot(d_out, forward_oracle(v, s).out); }, qkv);
    const Doubles actual = backward_oracle(qkv, forward_oracle(qkv, s).out, d_out, s);
    for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(actual[i], expected[i], 1e-8);
  }
}

TEST(AttentionWorkspace, GrowsWithThreadsAndNotWithHeads) {
  const auto bytes = [](std::int64_t batch, std::int64_t length, std::int64_t heads, int threads) {
    return attention_workspace_bytes(batch, length, heads, 64, DType::kFloat32, threads);
  };
  EXPECT_EQ(bytes(8, 1024, 12, 4), 4 * bytes(1, 1024, 1, 1));
  EXPECT_EQ(bytes(8, 1024, 12, 0), 0);
  // Never the L x L scores: linear in the length from some length on.
  EXPECT_EQ(bytes(1, 65536, 1, 1) - bytes(1, 32768, 1, 1),
            bytes(1, 98304, 1, 1) - bytes(1, 65536, 1, 1));
}

TEST(AttentionErrors, SmallWorkspaceIsNamed) {
  std::vector<float> qkv(3 * 8 * 4), out(8 * 4), lse(8);
  std::vector<std::uint8_t> workspace(128);
  NoStream stream;
  EXPECT_THROW(cpu_kernels().attention_forward({.qkv = view_of(qkv, Shape{1, 8, 3, 1, 4}),
                                                .out = view_of(out, Shape{1, 8, 1, 4}),
                                                .lse = view_of(lse, Shape{1, 1, 8}),
                                                .workspace = view_of(workspace)},
                                               stream),
               Error);
}

TEST(AttentionErrors, ViewsThatAreNotContiguousOrOfAnotherDtypeAreNamed) {
  const Shape packed{1, 4, 3, 2, 8}, plain{1, 4, 2, 8};
  std::vector<float> qkv(2 * 192), d_qkv(2 * 192), out(2 * 64), d_out(2 * 64), lse(2 * 8);
  auto workspace = workspace_for<float>({1, 4, 2, 8});
  const AttentionForwardArgs forward{.qkv = view_of(qkv, packed),
                                     .out = view_of(out, plain),
                                     .lse = view_of(lse, Shape{1, 2, 4}),
                                     .workspace = view_of(workspace)};
  const auto f = kernels_under_test().attention_forward;
  using Forward = AttentionForwardArgs;
  expect_refused(f, forward, &Forward::qkv, with_gaps(forward.qkv), "attention: qkv ");
  TensorView doubles = forward.qkv;
  doubles.dtype = DType::kFloat64;
  expect_refused(f, forward, &Forward::qkv, doubles, "attention: unsupported dtype fp64");
  expect_flat_floats(f, forward, &Forward::out, "attention: out ");
  expect_flat_floats(f, forward, &Forward::lse, "attention: lse ");

  const AttentionBackwardArgs backward{.d_out = view_of(d_out, plain),
                                       .qkv = forward.qkv,
                                       .out = forward.out,
                                       .lse = forward.lse,
                                       .d_qkv = view_of(d_qkv, packed),
                                       .workspace = forward.workspace};
  const auto b = kernels_under_test().attention_backward;
  expect_flat_floats(b, backward, &AttentionBackwardArgs::d_out, "attention: d_out ");
  expect_flat_floats(b, backward, &AttentionBackwardArgs::d_qkv, "attention: d_qkv ");
}

}  // namespace
}  // namespace tessera::attention_test
