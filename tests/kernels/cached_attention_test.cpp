#include <cmath>

#include "kernels/support.h"
#include "kernels/under_test.h"

namespace tessera::cached_attention_test {
namespace {

struct Sizes {
  std::int64_t rows, length, heads, kv_heads, width;
  std::int64_t window = 0;
  std::int64_t room = 0;  ///< of each head's keys, behind the length
  AttentionScores scores{};

  std::int64_t group() const { return heads / kv_heads; }
  std::int64_t capacity() const { return length + room; }
};

std::string name(const Sizes& s) {
  return concat("N ", s.rows, ", S ", s.length, ", H ", s.heads, ", K ", s.kv_heads, ", D ",
                s.width, ", window ", s.window, ", scale ", s.scores.scale, ", cap ",
                s.scores.soft_cap);
}

template <typename T>
struct Problem {
  explicit Problem(const Sizes& sizes)
      : s(sizes),
        qkv(random_values<T>(s.rows * 3 * s.heads * s.width, 1)),
        keys(random_values<T>(s.kv_heads * s.capacity() * s.width, 2)),
        values(random_values<T>(s.kv_heads * s.capacity() * s.width, 3)) {
    // Heads repeat keys and values for each query that they serve.
    for (std::int64_t row = 0; row < s.rows; ++row) {
      for (std::int64_t h = 0; h < 3 * s.heads; ++h) {
        const std::int64_t first = h < s.heads ? h : h - (h % s.heads) % s.group();
        for (std::int64_t d = 0; d < s.width; ++d) {
          qkv[at((row * 3 * s.heads + h) * s.width + d)] =
              qkv[at((row * 3 * s.heads + first) * s.width + d)];
        }
      }
    }
  }

  std::int64_t cached(std::int64_t head, std::int64_t position, std::int64_t d) const {
    return (head * s.capacity() + position) * s.width + d;
  }
  T packed(std::int64_t row, std::int64_t part, std::int64_t h, std::int64_t d) const {
    return qkv[at(((row * 3 + part) * s.heads + h) * s.width + d)];
  }
  /// With the rows' keys and values where they belong.
  void store() {
    for (std::int64_t row = 0; row < s.rows; ++row) {
      for (std::int64_t h = 0; h < s.kv_heads; ++h) {
        for (std::int64_t d = 0; d < s.width; ++d) {
          const auto to = at(cached(h, s.length - s.rows + row, d));
          keys[to] = packed(row, 1, h * s.group(), d);
          values[to] = packed(row, 2, h * s.group(), d);
        }
      }
    }
  }

  Sizes s;
  std::vector<T> qkv, keys, values;
};

/// Of the caches as they are after the call.
template <typename T>
Doubles oracle(const Problem<T>& p) {
  const Sizes& s = p.s;
  Doubles out(at(s.rows * s.heads * s.width));
  for (std::int64_t row = 0; row < s.rows; ++row) {
    for (std::int64_t h = 0; h < s.heads; ++h) {
      const std::int64_t end = s.length - s.rows + row + 1, head = h / s.group();
      const std::int64_t begin = s.window == 0 ? 0 : std::max<std::int64_t>(0, end - s.window);
      Doubles scores;
      double maximum = -INFINITY, sum = 0.0;
      for (std::int64_t k = begin; k < end; ++k) {
        double score = 0.0;
        for (std::int64_t d = 0; d < s.width; ++d) {
          score += static_cast<double>(as_float(p.packed(row, 0, h, d))) *
                   static_cast<double>(as_float(p.keys[at(p.cached(head, k, d))]));
        }
        score *= static_cast<double>(s.scores.scale_of(s.width));
        const auto cap = static_cast<double>(s.scores.soft_cap);
        scores.push_back(cap == 0.0 ? score : cap * std::tanh(score / cap));
        maximum = std::max(maximum, scores.back());
      }
      for (double& score : scores) sum += score = std::exp(score - maximum);
      for (std::int64_t k = begin; k < end; ++k) {
        for (std::int64_t d = 0; d < s.width; ++d) {
          out[at((row * s.heads + h) * s.width + d)] +=
              scores[at(k - begin)] / sum *
              static_cast<double>(as_float(p.values[at(p.cached(head, k, d))]));
        }
      }
    }
  }
  return out;
}

/// Leaves the caches as the kernel does.
template <typename T>
std::vector<T> attend(Problem<T>& p, bool wants_out = true) {
  const Sizes& s = p.s;
  std::vector<T> out(at(wants_out ? s.rows * s.heads * s.width : 0));
  const auto cache = [&](std::vector<T>& all) {
    return view_of(all, Shape{s.kv_heads, s.capacity(), s.width}).narrow(1, 0, s.length);
  };
  StreamUnderTest stream;
  kernels_under_test().cached_attention(
      {.qkv = view_of(p.qkv, Shape{s.rows, 3, s.heads, s.width}),
       .keys = cache(p.keys),
       .values = cache(p.values),
       .out = wants_out ? view_of(out, Shape{s.rows, s.heads, s.width}) : TensorView(),
       .window = s.window,
       .scores = s.scores},
      stream);
  return out;
}

template <typename T>
void check(const Sizes& s) {
  SCOPED_TRACE(name(s));
  Problem<T> p(s), expected(s);
  expected.store();
  const std::vector<T> out = attend(p);
  EXPECT_TRUE(same_bits(p.keys, expected.keys) && same_bits(p.values, expected.values));
  expect_close(out, oracle(expected), 2e-6 + rounding<T>(), "out");
  Problem<T> stored(s);
  EXPECT_TRUE(attend(stored, false).empty());
  EXPECT_TRUE(same_bits(stored.keys, expected.keys) && same_bits(stored.values, expected.values));
}

const std::vector<Sizes> kCases{{1, 1, 1, 1, 1},
                                {1, 2, 2, 1, 8},
                                {1, 300, 4, 2, 64},
                                {1, 1030, 2, 2, 16, 0, 5},
                                {7, 20, 6, 3, 40, 0, 3},
                                {5, 5, 4, 1, 12},
                                {1, 70, 2, 1, 128, 9},
                                {9, 40, 2, 2, 33, 4, 2},
                                {2, 19, 2, 1, 512, 0, 1},
                                {3, 300, 3, 3, 65, 270},
                                {3, 300, 4, 2, 256, 70, 0, {.soft_cap = 0.7F}},
                                {2, 40, 2, 1, 24, 0, 0, {.scale = 0.3F, .soft_cap = 50.0F}}};

TEST(CachedAttention, FollowsTheFormula) {
  on_every_target([] {
    for (const Sizes& s : kCases) {
      check<float>(s);
      check<bfloat16>(s);
      check<float16>(s);
    }
  });
}

TEST(CachedAttention, BitsDoNotDependOnTheOtherRows) {
  const Sizes all{6, 290, 4, 2, 24, 0, 2};
  Problem<float> together(all);
  const std::vector<float> expected = attend(together);
  Problem<float> p(all);
  for (std::int64_t row = 0; row < all.rows; ++row) {
    Sizes s = all;
    s.rows = 1;
    s.length = all.length - all.rows + row + 1;
    s.room = all.capacity() - s.length;
    Problem<float> one(s);
    const auto numel = static_cast<std::ptrdiff_t>(3 * s.heads * s.width);
    one.qkv.assign(p.qkv.begin() + row * numel, p.qkv.begin() + (row + 1) * numel);
    one.keys = p.keys;
    one.values = p.values;
    const std::vector<float> out = attend(one);
    const auto begin = expected.begin() + row * static_cast<std::ptrdiff_t>(out.size());
    EXPECT_TRUE(
        same_bits(out, std::vector<float>(begin, begin + static_cast<std::ptrdiff_t>(out.size()))))
        << "row " << row;
    p.keys = one.keys;
    p.values = one.values;
  }
}

TEST(CachedAttention, BitsDoNotDependOnTheNumberOfThreads) {
  const Problem<bfloat16> p({5, 600, 6, 2, 48});
  run_on_any_threads([&] {
    Problem<bfloat16> copy = p;
    return attend(copy);
  });
}

TEST(CachedAttention, TakesNoRows) { check<float>({0, 3, 2, 1, 8}); }

TEST(CachedAttentionErrors, WhatDoesNotFitIsNamed) {
  std::vector<float> qkv(2 * 3 * 4 * 8), cache(2 * 5 * 8), out(2 * 4 * 8);
  const CachedAttentionArgs args{.qkv = view_of(qkv, Shape{2, 3, 4, 8}),
                                 .keys = view_of(cache, Shape{2, 5, 8}),
                                 .values = view_of(cache, Shape{2, 5, 8}),
                                 .out = view_of(out, Shape{2, 4, 8})};
  StreamUnderTest stream;
  const auto run = [&](auto change) {
    CachedAttentionArgs changed = args;
    change(changed);
    kernels_under_test().cached_attention(changed, stream);
  };
  run([](CachedAttentionArgs&) {});
  EXPECT_THROW(run([&](auto& a) { a.keys = view_of(cache, Shape{1, 5, 16}); }), Error);
  EXPECT_THROW(run([&](auto& a) { a.values = view_of(cache, Shape{2, 4, 8}); }), Error);
  EXPECT_THROW(run([&](auto& a) { a.keys = a.values = a.keys.narrow(1, 0, 1); }), Error);
  EXPECT_THROW(run([&](auto& a) { a.out = view_of(out, Shape{4, 2, 8}); }), Error);
  EXPECT_THROW(run([&](auto& a) { a.window = -1; }), Error);
}

}  // namespace
}  // namespace tessera::cached_attention_test
