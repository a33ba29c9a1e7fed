#include <gmock/gmock.h>

#include "kernels/every_way.h"
#include "tessera/core/error.h"
#include "tessera/kernels/kernel_table.h"

namespace tessera {
namespace {

/// Sources of either dtype, fp32 or `Half`, and what a loop over them gives.
template <typename Half>
struct SourcesOf {
  std::vector<std::vector<float>> floats;
  std::vector<std::vector<Half>> halves;
  std::vector<TensorView> views;

  /// Source s is of Half if a bit of `mix` is set: bit s of the first 32, shifted by one for each
  /// further 32.
  SourcesOf(int count, unsigned mix, std::int64_t n) {
    floats.reserve(static_cast<std::size_t>(count));
    halves.reserve(static_cast<std::size_t>(count));
    for (int s = 0; s < count; ++s) {
      const auto seed = static_cast<unsigned>(s) + 1;
      if ((mix >> ((s + s / 32) % 32) & 1U) != 0) {
        views.push_back(view_of(halves.emplace_back(random_values<Half>(n, seed))));
      } else {
        views.push_back(view_of(floats.emplace_back(random_values<float>(n, seed))));
      }
    }
  }

  static float at(const TensorView& view, std::int64_t i) {
    return view.dtype == DType::kFloat32 ? view.as<float>()[i] : as_float(view.as<Half>()[i]);
  }

  template <typename T>
  std::vector<T> sum(const std::vector<T>* start, std::int64_t n) const {
    std::vector<T> result;
    for (std::int64_t i = 0; i < n; ++i) {
      volatile float total =
          start != nullptr ? as_float((*start)[static_cast<std::size_t>(i)]) : at(views[0], i);
      for (std::size_t s = start != nullptr ? 0 : 1; s < views.size(); ++s)
        total = total + at(views[s], i);
      result.push_back(T(total));
    }
    return result;
  }
};

using Sources = SourcesOf<bfloat16>;

template <typename T, typename Half = bfloat16>
void check_sum(int count, unsigned mix, std::int64_t n, bool accumulate) {
  SCOPED_TRACE(concat(count, " sources, mix ", mix, ", n ", n, accumulate ? ", accumulate" : ""));
  const SourcesOf<Half> sources(count, mix, n);
  const std::vector<T> start = random_values<T>(n, 99);
  const auto result = run_every_way([&] {
    std::vector<T> dst = start;
    StreamUnderTest stream;
    kernels_under_test().ordered_sum(
        {.sources = sources.views, .dst = view_of(dst), .accumulate = accumulate}, stream);
    return dst;
  });
  EXPECT_TRUE(same_bits(result, sources.template sum<T>(accumulate ? &start : nullptr, n)));
}

TEST(OrderedSum, EqualsTheSequentialLoop) {
  for (const std::int64_t n : kSizes) {
    for (const int count : {1, 2, 3, 7}) {
      for (const bool accumulate : {false, true}) {
        check_sum<float>(count, 0, n, accumulate);
        check_sum<bfloat16>(count, 0x7f, n, accumulate);
        check_sum<float>(count, 0x55, n, accumulate);
        check_sum<bfloat16>(count, 0x2a, n, accumulate);
        check_sum<float, float16>(count, 0x7f, n, accumulate);
        check_sum<float16, float16>(count, 0x55, n, accumulate);
      }
    }
  }
}

TEST(OrderedSum, TakesManySources) { check_sum<float>(70, 0x1248, 1009, false); }

TEST(OrderedSum, RefusesMoreSourcesThanAKernelHasParameters) {
  if (!testing_cuda()) GTEST_SKIP() << "the CPU takes any number";
  std::vector<float> one{1.0F}, dst(1);
  StreamUnderTest stream;
  const auto sum_of = [&](std::size_t count) {
    const std::vector<TensorView> sources(count, view_of(one));
    kernels_under_test().ordered_sum({.sources = sources, .dst = view_of(dst)}, stream);
  };
  sum_of(512);
  EXPECT_EQ(dst[0], 512.0F);
  try {
    sum_of(513);
    FAIL() << "513 sources were taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.what(), testing::HasSubstr("513 sources"));
  }
}

TEST(OrderedSum, LargeTensorsAreWrittenAroundTheCacheWithTheSameBits) {
  // A little above 32 MiB of fp32.
  const std::int64_t n = testing_cuda() ? 100003 : (std::int64_t{8} << 20) + 1009;
  Sources sources(2, 2, n);
  std::vector<float> dst(static_cast<std::size_t>(n));
  // Begins and ends inside of cache lines.
  const std::vector<TensorView> parts{sources.views[0].narrow(0, 0, n - 5),
                                      sources.views[1].narrow(0, 0, n - 5)};
  const auto result = run_every_way([&] {
    std::fill(dst.begin(), dst.end(), -1.0F);
    StreamUnderTest stream;
    kernels_under_test().ordered_sum({.sources = parts, .dst = view_of(dst, 3, n - 5)}, stream);
    return dst;
  });
  auto expected = sources.sum<float>(nullptr, n);
  expected.insert(expected.begin(), 3, -1.0F);
  expected.resize(static_cast<std::size_t>(n) - 2);
  expected.insert(expected.end(), 2, -1.0F);
  EXPECT_TRUE(same_bits(result, expected));
}

TEST(OrderedSum, AdditionsAreNotReordered) {
  std::vector<float> big{1e8F}, small{1.0F}, minus{-1e8F}, dst{7.0F};
  const std::vector<TensorView> sources{view_of(big), view_of(small), view_of(minus)};
  StreamUnderTest stream;
  kernels_under_test().ordered_sum({.sources = sources, .dst = view_of(dst)}, stream);
  EXPECT_EQ(dst[0], 0.0F);
}

TEST(OrderedSum, WritesOverOneOfItsSources) {
  Sources sources(3, 0, 40009);
  const auto expected = sources.sum<float>(nullptr, 40009);
  StreamUnderTest stream;
  kernels_under_test().ordered_sum({.sources = sources.views, .dst = sources.views[2]}, stream);
  EXPECT_TRUE(same_bits(sources.floats[2], expected));
}

TEST(OrderedSum, DoesNotDependOnThePositionInTheCall) {
  const std::int64_t n = 1009;
  Sources sources(3, 2, n);
  const auto expected = sources.sum<bfloat16>(nullptr, n);
  for (const std::int64_t cut : {1, 5, 16, 33, 1008}) {
    std::vector<bfloat16> dst(static_cast<std::size_t>(n));
    for (const auto& [begin, count] : {std::pair{std::int64_t{0}, cut}, std::pair{cut, n - cut}}) {
      std::vector<TensorView> parts;
      for (const TensorView& view : sources.views) parts.push_back(view.narrow(0, begin, count));
      StreamUnderTest stream;
      kernels_under_test().ordered_sum({.sources = parts, .dst = view_of(dst, begin, count)},
                                       stream);
    }
    EXPECT_TRUE(same_bits(dst, expected)) << "cut at " << cut;
  }
}

TEST(OrderedSum, RejectsWhatDoesNotFit) {
  std::vector<float> three(3), four(4);
  std::vector<std::int32_t> integers(3);
  const std::vector<TensorView> wrong_size{view_of(four)};
  const std::vector<TensorView> wrong_dtype{view_of(integers)};
  StreamUnderTest stream;
  EXPECT_THROW(
      kernels_under_test().ordered_sum({.sources = wrong_size, .dst = view_of(three)}, stream),
      Error);
  EXPECT_THROW(
      kernels_under_test().ordered_sum({.sources = wrong_dtype, .dst = view_of(three)}, stream),
      Error);
  EXPECT_THROW(kernels_under_test().ordered_sum({.sources = {}, .dst = view_of(three)}, stream),
               Error);
}

}  // namespace
}  // namespace tessera
