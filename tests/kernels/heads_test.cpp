#include "kernels/support.h"
#include "support/extent.h"

namespace tessera::heads_test {
namespace {

struct Sizes {
  std::int64_t batch, length, heads, kv_heads, width, angles;
  bool norms = false;
  std::int64_t document = 0;  ///< length of documents; 0: one in each sequence
  float offset = 0.0F;        ///< of the gammas

  std::int64_t start_of(std::int64_t row) const {
    return document == 0 ? 0 : row % length / document * document;
  }
  /// (B, L); none of one document.
  std::vector<std::int32_t> starts() const {
    std::vector<std::int32_t> all;
    for (std::int64_t row = 0; document > 0 && row < rows(); ++row) {
      all.push_back(static_cast<std::int32_t>(start_of(row)));
    }
    return all;
  }
  std::int64_t packed_heads() const { return heads + 2 * kv_heads; }
  std::int64_t rows() const { return batch * length; }
  std::int64_t packed() const { return rows() * packed_heads() * width; }
  std::int64_t qkv() const { return rows() * 3 * heads * width; }
};

std::string name(const Sizes& s) {
  return concat("B ", s.batch, ", L ", s.length, ", H ", s.heads, ", K ", s.kv_heads, ", D ",
                s.width, ", ", s.angles, " angles", s.norms ? ", norms" : "", ", documents of ",
                s.document);
}

constexpr float kAmplitude = 1.25F;
constexpr double kEpsilon = 1e-5;

/// From a turn per token down to almost none.
std::vector<float> frequencies_of(const Sizes& s) {
  std::vector<float> all;
  for (std::int64_t i = 0; i < s.angles; ++i) {
    const double exponent = static_cast<double>(i) / static_cast<double>(s.angles);
    all.push_back(static_cast<float>(std::pow(1e4, -exponent)));
  }
  return all;
}

/// Calls body(row, head of packed, the heads of qkv that it becomes).
template <typename Body>
void each_head(const Sizes& s, const Body& body) {
  const std::int64_t group = s.heads / s.kv_heads;
  for (std::int64_t row = 0; row < s.rows(); ++row) {
    for (std::int64_t h = 0; h < s.packed_heads(); ++h) {
      std::vector<std::int64_t> copies;
      if (h < s.heads) copies = {h};
      for (std::int64_t g = 0; h >= s.heads && g < group; ++g) {
        copies.push_back(s.heads + (h - s.heads) * group + g);
      }
      body(row, h, copies);
    }
  }
}

struct Inputs {
  Doubles packed, q_gamma, k_gamma;
};

/// The head normalised if it is, with its rstd.
Doubles head_of(const Inputs& in, const Sizes& s, std::int64_t row, std::int64_t h, double& rstd) {
  Doubles x(at(s.width));
  double squares = 0.0;
  for (std::int64_t i = 0; i < s.width; ++i) {
    x[at(i)] = in.packed[at((row * s.packed_heads() + h) * s.width + i)];
    squares += x[at(i)] * x[at(i)];
  }
  rstd = 1.0 / std::sqrt(squares / static_cast<double>(s.width) + kEpsilon);
  const bool is_value = h >= s.heads + s.kv_heads;
  for (std::int64_t i = 0; s.norms && !is_value && i < s.width; ++i) {
    x[at(i)] *= rstd * (h < s.heads ? in.q_gamma : in.k_gamma)[at(i)];
  }
  return x;
}

/// cos and sin of an angle that is a product of fp32 numbers rounded to fp32.
void turn(Doubles& x, const Sizes& s, std::int64_t row, double direction) {
  const std::vector<float> frequencies = frequencies_of(s);
  for (std::int64_t i = 0; i < s.angles; ++i) {
    const auto angle = static_cast<double>(static_cast<float>(row % s.length - s.start_of(row)) *
                                           frequencies[at(i)]);
    const double c = kAmplitude * std::cos(angle), n = direction * kAmplitude * std::sin(angle);
    const double a = x[at(i)], b = x[at(i + s.angles)];
    x[at(i)] = c * a - n * b;
    x[at(i + s.angles)] = c * b + n * a;
  }
}

Doubles forward_oracle(const Inputs& in, const Sizes& s) {
  Doubles qkv(at(s.qkv()));
  each_head(s, [&](std::int64_t row, std::int64_t h, const std::vector<std::int64_t>& copies) {
    double rstd = 0.0;
    Doubles x = head_of(in, s, row, h, rstd);
    if (h < s.heads + s.kv_heads) turn(x, s, row, 1.0);
    for (const std::int64_t copy : copies) {
      std::copy(x.begin(), x.end(), qkv.begin() + (row * 3 * s.heads + copy) * s.width);
    }
  });
  return qkv;
}

Inputs backward_oracle(const Inputs& in, const Doubles& d_qkv, const Sizes& s) {
  Inputs g{Doubles(in.packed.size()), Doubles(in.q_gamma.size()), Doubles(in.k_gamma.size())};
  each_head(s, [&](std::int64_t row, std::int64_t h, const std::vector<std::int64_t>& copies) {
    Doubles d(at(s.width));
    for (const std::int64_t copy : copies) {
      for (std::int64_t i = 0; i < s.width; ++i)
        d[at(i)] += d_qkv[at((row * 3 * s.heads + copy) * s.width + i)];
    }
    const bool turns = h < s.heads + s.kv_heads;
    if (turns) turn(d, s, row, -1.0);
    const std::int64_t begin = (row * s.packed_heads() + h) * s.width;
    if (s.norms && turns) {
      double rstd = 0.0, mean = 0.0;
      head_of(in, s, row, h, rstd);
      const Doubles& gamma = h < s.heads ? in.q_gamma : in.k_gamma;
      Doubles& dgamma = h < s.heads ? g.q_gamma : g.k_gamma;
      for (std::int64_t i = 0; i < s.width; ++i) {
        const double n = in.packed[at(begin + i)] * rstd;
        mean += d[at(i)] * gamma[at(i)] * n / static_cast<double>(s.width);
        dgamma[at(i)] += d[at(i)] * n;
      }
      for (std::int64_t i = 0; i < s.width; ++i) {
        const double n = in.packed[at(begin + i)] * rstd;
        d[at(i)] = rstd * (d[at(i)] * gamma[at(i)] - n * mean);
      }
    }
    std::copy(d.begin(), d.end(), g.packed.begin() + begin);
  });
  return g;
}

template <typename T>
struct Problem {
  explicit Problem(const Sizes& sizes)
      : s(sizes),
        packed(random_values<T>(s.packed(), 1)),
        q_gamma(random_values<T>(s.norms ? s.width : 0, 2)),
        k_gamma(random_values<T>(s.norms ? s.width : 0, 3)),
        d_qkv(random_values<T>(s.qkv(), 4)) {}

  Inputs exact() const { return {to_doubles(packed), with_offset(q_gamma), with_offset(k_gamma)}; }
  Doubles with_offset(const std::vector<T>& gamma) const {
    Doubles values = to_doubles(gamma);
    for (double& value : values) value += static_cast<double>(s.offset);
    return values;
  }
  Shape packed_shape() const { return {s.batch, s.length, s.packed_heads(), s.width}; }
  Shape qkv_shape() const { return {s.batch, s.length, 3, s.heads, s.width}; }

  Sizes s;
  std::vector<T> packed, q_gamma, k_gamma, d_qkv;
};

template <typename T>
TensorView gamma_view(std::vector<T>& gamma) {
  return gamma.empty() ? TensorView{} : view_of(gamma);
}

TensorView starts_view(std::vector<std::int32_t>& starts, const Sizes& s) {
  return starts.empty() ? TensorView{} : view_of(starts, Shape{s.batch, s.length});
}

template <typename T>
std::vector<T> forward(Problem<T> p) {
  auto starts = p.s.starts();
  std::vector<T> qkv(at(p.s.qkv()));
  const std::vector<float> frequencies = frequencies_of(p.s);
  StreamUnderTest stream;
  kernels_under_test().heads_forward({.packed = view_of(p.packed, p.packed_shape()),
                                      .qkv = view_of(qkv, p.qkv_shape()),
                                      .q_gamma = gamma_view(p.q_gamma),
                                      .k_gamma = gamma_view(p.k_gamma),
                                      .frequencies = frequencies,
                                      .amplitude = kAmplitude,
                                      .epsilon = static_cast<float>(kEpsilon),
                                      .starts = starts_view(starts, p.s),
                                      .gamma_offset = p.s.offset},
                                     stream);
  return qkv;
}

template <typename T, typename D>
struct Gradients {
  std::vector<T> packed;
  std::vector<D> q_gamma, k_gamma;
};

template <typename D, typename T>
Gradients<T, D> backward(Problem<T> p, bool accumulate, bool in_place) {
  Gradients<T, D> g{std::vector<T>(p.packed.size()),
                    random_values<D>(static_cast<std::int64_t>(p.q_gamma.size()), 5),
                    random_values<D>(static_cast<std::int64_t>(p.k_gamma.size()), 6)};
  const std::vector<float> frequencies = frequencies_of(p.s);
  auto starts = p.s.starts();
  StreamUnderTest stream;
  kernels_under_test().heads_backward(
      {.d_qkv = view_of(p.d_qkv, p.qkv_shape()),
       .packed = p.s.norms ? view_of(p.packed, p.packed_shape()) : TensorView{},
       .d_packed = view_of(in_place ? p.packed : g.packed, p.packed_shape()),
       .q_gamma = gamma_view(p.q_gamma),
       .k_gamma = gamma_view(p.k_gamma),
       .dq_gamma = gamma_view(g.q_gamma),
       .dk_gamma = gamma_view(g.k_gamma),
       .frequencies = frequencies,
       .amplitude = kAmplitude,
       .epsilon = static_cast<float>(kEpsilon),
       .accumulate_parameters = accumulate,
       .starts = starts_view(starts, p.s),
       .gamma_offset = p.s.offset},
      stream);
  if (in_place) g.packed = p.packed;
  return g;
}

template <typename D>
Doubles plus(Doubles a, const std::vector<D>& b, bool accumulate) {
  for (std::size_t i = 0; accumulate && i < a.size(); ++i) {
    a[i] += static_cast<double>(as_float(b[i]));
  }
  return a;
}

template <typename T, typename D>
void check(const Sizes& s, bool accumulate) {
  SCOPED_TRACE(name(s));
  const Problem<T> p(s);
  const Inputs exact = p.exact();
  // Sine and cosine are good to 2e-7.
  expect_close(forward(p), forward_oracle(exact, s), 1e-6 + rounding<T>(), "qkv");
  const Inputs expected = backward_oracle(exact, to_doubles(p.d_qkv), s);
  const auto g = backward<D>(p, accumulate, false);
  expect_close(g.packed, expected.packed, 2e-6 + rounding<T>(), "d_packed");
  const auto width = static_cast<std::int64_t>(p.q_gamma.size());
  expect_close(g.q_gamma, plus(expected.q_gamma, random_values<D>(width, 5), accumulate),
               4e-6 + rounding<D>(), "dq_gamma");
  expect_close(g.k_gamma, plus(expected.k_gamma, random_values<D>(width, 6), accumulate),
               4e-6 + rounding<D>(), "dk_gamma");
  const auto aliased = backward<D>(p, accumulate, true);
  EXPECT_TRUE(same_bits(aliased.packed, g.packed) && same_bits(aliased.q_gamma, g.q_gamma))
      << "in place";
}

const std::vector<Sizes> kCases{{1, 1, 1, 1, 2, 1},           {2, 5, 4, 2, 8, 4},
                                {1, 33, 6, 3, 16, 6},         {1, 7, 4, 1, 12, 3},
                                {3, 19, 2, 2, 64, 32},        {1, 3, 9, 9, 40, 0},
                                {1, 2, 8, 4, 512, 256},       {2, 21, 2, 1, 8, 4, false, 7},
                                {1, 9, 2, 2, 16, 6, false, 1}};

TEST(Heads, FollowTheFormula) {
  on_every_target([] {
    for (Sizes s : kCases) {
      for (const bool norms : {false, true}) {
        s.norms = norms;
        s.offset = norms && s.heads % 2 == 0 ? 1.0F : 0.0F;
        check<float, float>(s, !norms);
        check<bfloat16, float>(s, norms);
        check<bfloat16, bfloat16>(s, !norms);
        if (test::kSanitized) continue;  // sees in fp16 what it sees in bf16
        check<float16, float>(s, !norms);
        check<float16, float16>(s, norms);
      }
    }
  });
}

TEST(Heads, TurnFarPositionsExactly) {
  // The last position's angle is beyond 2^16; fp32 has 1/128 of a radian to a unit there.
  const Sizes s{1, 70000, 1, 1, 2, 1};
  Problem<float> p(s);
  if (testing_cuda()) GTEST_SKIP() << "too long for the emulator";
  expect_close(forward(p), forward_oracle(p.exact(), s), 1e-6, "qkv");
}

TEST(Heads, BeginAtAPosition) {
  const Sizes s{1, 9, 4, 2, 16, 6, true};
  Problem<float> p(s);
  const std::vector<float> whole = forward(p);
  const std::vector<float> frequencies = frequencies_of(s);
  const std::int64_t first = 4, row = s.packed() / s.rows(), out = s.qkv() / s.rows();
  std::vector<float> qkv(at((s.length - first) * out));
  StreamUnderTest stream;
  kernels_under_test().heads_forward(
      {.packed = TensorView(p.packed.data() + first * row, DType::kFloat32,
                            Shape{1, s.length - first, s.packed_heads(), s.width}),
       .qkv = view_of(qkv, Shape{1, s.length - first, 3, s.heads, s.width}),
       .q_gamma = view_of(p.q_gamma),
       .k_gamma = view_of(p.k_gamma),
       .frequencies = frequencies,
       .amplitude = kAmplitude,
       .epsilon = static_cast<float>(kEpsilon),
       .first_position = first},
      stream);
  EXPECT_TRUE(same_bits(qkv, std::vector<float>(whole.begin() + first * out, whole.end())));
}

TEST(Heads, DoNotDependOnTheThreads) {
  const Problem<float> p({2, 600, 4, 2, 16, 8, true});
  run_on_any_threads([&] { return forward(p); });
  run_on_any_threads([&] { return backward<float>(p, true, false).packed; });
  run_on_any_threads([&] { return backward<float>(p, true, false).q_gamma; });
  run_on_any_threads([&] { return backward<float>(p, true, false).k_gamma; });
}

TEST(Heads, TakeEmptyBatches) {
  EXPECT_TRUE(forward(Problem<float>({0, 4, 2, 1, 8, 4})).empty());
  EXPECT_EQ(backward<float>(Problem<float>({0, 4, 2, 1, 8, 4, true}), false, false).q_gamma,
            std::vector<float>(8, 0.0F));
}

TEST(HeadsOracle, BackwardIsTheGradientOfForward) {
  const Sizes s{1, 3, 2, 1, 4, 1, true};
  const Problem<float> p(s);
  const Inputs exact = p.exact();
  const Doubles d_qkv = to_doubles(p.d_qkv);
  const Inputs g = backward_oracle(exact, d_qkv, s);
  const auto check_slope = [&](Doubles Inputs::*member) {
    const Doubles expected = numeric_gradient(
        [&](const Doubles& v) {
          Inputs moved = exact;
          moved.*member = v;
          return dot(d_qkv, forward_oracle(moved, s));
        },
        exact.*member);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_NEAR((g.*member)[i], expected[i], 1e-6);
    }
  };
  check_slope(&Inputs::packed);
  check_slope(&Inputs::q_gamma);
  check_slope(&Inputs::k_gamma);
}

TEST(HeadsErrors, WhatDoesNotFitIsNamed) {
  std::vector<float> packed(64), qkv(96), gamma(4);
  const std::vector<float> frequencies(3);
  const HeadsForwardArgs args{.packed = view_of(packed, Shape{1, 4, 4, 4}),
                              .qkv = view_of(qkv, Shape{1, 4, 3, 2, 4}),
                              .frequencies = std::span(frequencies).first(2)};
  StreamUnderTest stream;
  const auto run = [&](auto change) {
    HeadsForwardArgs changed = args;
    change(changed);
    kernels_under_test().heads_forward(changed, stream);
  };
  run([](HeadsForwardArgs&) {});
  EXPECT_THROW(run([&](auto& a) { a.frequencies = frequencies; }), Error);
  EXPECT_THROW(run([&](auto& a) { a.q_gamma = view_of(gamma); }), Error);
  EXPECT_THROW(run([&](auto& a) { a.packed = view_of(packed, Shape{1, 4, 2, 8}); }), Error);
  EXPECT_THROW(run([&](auto& a) { a.qkv = view_of(qkv, Shape{1, 8, 3, 1, 4}); }), Error);
}

}  // namespace
}  // namespace tessera::heads_test
