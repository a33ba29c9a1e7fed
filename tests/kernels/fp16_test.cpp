#include <bit>
#include <cmath>
#include <random>

#include "kernels/support.h"
#include "tessera/kernels/optimizer.h"

// fp16 as elements: conversions on every instruction set against tessera::float16, which
// tests/core/dtype_test.cpp holds to the standard; and that CUDA's kernels refuse to mix it with
// bf16.
namespace tessera::fp16_test {
namespace {

/// Expects the same bits, but of NaNs, of which GPUs have one alone.
template <typename T>
void expect_same(std::vector<T> actual, const std::vector<T>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; testing_cuda() && i < actual.size(); ++i) {
    if (!std::isnan(as_float(expected[i]))) continue;
    EXPECT_TRUE(std::isnan(as_float(actual[i]))) << i;
    actual[i] = expected[i];
  }
  EXPECT_TRUE(same_bits(actual, expected));
}

template <typename From, typename To>
std::vector<To> cast_of(std::vector<From> from) {
  std::vector<To> to(from.size());
  StreamUnderTest stream;
  kernels_under_test().cast({.src = view_of(from), .dst = view_of(to)}, stream);
  return to;
}

TEST(Fp16, EveryValueWidensAsItsType) {
  std::vector<float16> all(65536);
  std::vector<float> expected;
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i].bits = static_cast<std::uint16_t>(i);
    expected.push_back(static_cast<float>(all[i]));
  }
  on_every_target([&] {
    expect_same(cast_of<float16, float>(all), expected);
    // Fewer than a vector has lanes, for the masked loads.
    for (const std::ptrdiff_t begin : {0x0001, 0x03fd, 0x7bfb, 0x7c01, 0xfdff}) {
      const std::vector<float16> few(all.begin() + begin, all.begin() + begin + 7);
      const std::vector<float> wide(expected.begin() + begin, expected.begin() + begin + 7);
      SCOPED_TRACE(begin);
      expect_same(cast_of<float16, float>(few), wide);
    }
  });
}

/// Every fp16, the numbers half-way between neighbours, and their neighbours in fp32; NaNs; random
/// words.
std::vector<float> words_around_fp16() {
  std::vector<float> words;
  for (std::uint32_t i = 0; i <= 0xffffU; ++i) {
    float16 value, next;
    value.bits = static_cast<std::uint16_t>(i);
    next.bits = static_cast<std::uint16_t>(i + 1);
    const float low = static_cast<float>(value), high = static_cast<float>(next);
    const float middle = low + (high - low) / 2.0F;
    for (const float word : {low, middle}) {
      words.insert(words.end(),
                   {word, std::nextafter(word, INFINITY), std::nextafter(word, -INFINITY)});
    }
  }
  for (const float word : {65504.0F, 65519.996F, 65520.0F, 65536.0F, 1e30F, INFINITY, 0x1p-25F,
                           0x1.000002p-25F, 0x1p-26F, 1e-30F, 1e-45F}) {
    words.insert(words.end(), {word, -word});
  }
  for (const std::uint32_t nan : {0x7f800001U, 0x7fc00000U, 0xffabcdefU, 0x7f802000U}) {
    words.push_back(std::bit_cast<float>(nan));
  }
  std::mt19937 generator(1);
  for (int i = 0; i < 100000; ++i) {
    words.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(generator())));
  }
  return words;
}

TEST(Fp16, RoundsAsItsType) {
  const std::vector<float> words = words_around_fp16();
  std::vector<float16> expected;
  for (const float word : words) expected.emplace_back(word);
  on_every_target([&] {
    expect_same(cast_of<float, float16>(words), expected);
    const std::vector<float> few(words.end() - 5, words.end());
    expect_same(cast_of<float, float16>(few),
                std::vector<float16>(expected.end() - 5, expected.end()));
  });
}

/// Expects an Error that names both types.
template <typename Call>
void expect_mixture_refused(const Call& call) {
  StreamUnderTest stream;
  try {
    call(kernels_under_test(), stream);
    ADD_FAILURE() << "was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    const std::string what = error.what();
    EXPECT_NE(what.find("fp16"), std::string::npos) << what;
    EXPECT_NE(what.find("bf16"), std::string::npos) << what;
    EXPECT_NE(what.find("no kernel of a GPU mixes"), std::string::npos) << what;
  }
}

TEST(Fp16, IsNotMixedWithBf16ByCuda) {
  if (!testing_cuda()) GTEST_SKIP() << "the CPU's kernels take any two types";
  std::vector<float16> half(64);
  std::vector<bfloat16> other(64);
  std::vector<float> master(64), scale(1), scalars(kOptimizerScalars);
  const Optimizer& sgd = find_optimizer("sgd");
  const std::vector<TensorView> states(sgd.states.size());
  const std::vector<OptimizerSegment> all{{0, 64, 0.0F}};
  expect_mixture_refused([&](const KernelTable& k, Stream& s) {
    k.cast({.src = view_of(half), .dst = view_of(other)}, s);
  });
  expect_mixture_refused([&](const KernelTable& k, Stream& s) {
    k.add({.src = view_of(other), .dst = view_of(half)}, s);
  });
  expect_mixture_refused([&](const KernelTable& k, Stream& s) {
    const std::vector<TensorView> sources{view_of(half), view_of(other)};
    k.ordered_sum({.sources = sources, .dst = view_of(master)}, s);
  });
  expect_mixture_refused([&](const KernelTable& k, Stream& s) {
    k.optimizer_step({.optimizer = &sgd,
                      .master = view_of(master),
                      .gradient = view_of(other),
                      .states = states,
                      .parameter = view_of(half),
                      .segments = all,
                      .scalars = view_of(scalars),
                      .gradient_scale = view_of(scale)},
                     s);
  });
}

}  // namespace
}  // namespace tessera::fp16_test
