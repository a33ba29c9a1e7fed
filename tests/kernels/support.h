#pragma once

#include <gtest/gtest.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/every_way.h"
#include "tessera/core/error.h"
#include "tessera/kernels/kernel_table.h"

// What the tests of kernels that round (GEMM, normalisation, GELU, attention) share: oracles in
// double, comparisons with a stated bound, and running on every instruction set of the machine.
namespace tessera {

using Doubles = std::vector<double>;

inline std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

template <typename T>
Doubles to_doubles(const std::vector<T>& values) {
  Doubles result;
  result.reserve(values.size());
  for (const T value : values) result.push_back(static_cast<double>(as_float(value)));
  return result;
}

template <typename T>
std::vector<T> from_doubles(const Doubles& values) {
  std::vector<T> result;
  result.reserve(values.size());
  for (const double value : values) result.push_back(T(static_cast<float>(value)));
  return result;
}

/// Half a unit in the last place of T, relative: what one rounding costs.
template <typename T>
constexpr double rounding() {
  if (std::is_same_v<T, float16>) return 0x1p-11;
  return std::is_same_v<T, float> ? 0x1p-24 : 0x1p-8;
}

/// And absolute, where T is subnormal; of fp32 and bf16 next to nothing.
template <typename T>
constexpr double least_rounding() {
  return std::is_same_v<T, float16> ? 0x1.002p-25 : 0.0;
}

/// What rounding about `value` to T costs.
template <typename T>
double half_unit(double value) {
  return rounding<T>() * std::abs(value) * 1.01 + least_rounding<T>();
}

/// Expects |actual - expected| <= bound[i] everywhere, and no NaN; reports the worst element.
template <typename T>
void expect_within(const std::vector<T>& actual, const Doubles& expected, const Doubles& bound,
                   const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  double worst = 0.0;
  std::size_t where = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double error = std::abs(static_cast<double>(as_float(actual[i])) - expected[i]);
    const double ratio = std::isnan(error) ? INFINITY : error / bound[i];
    if (ratio > worst) {
      worst = ratio;
      where = i;
    }
  }
  if (worst <= 1.0) return;
  ADD_FAILURE() << what << ": element " << where << " of " << actual.size() << " is "
                << as_float(actual[where]) << ", wanted " << expected[where] << " within "
                << bound[where];
}

/// The same with one bound for all: `tolerance` times the largest magnitude expected.
template <typename T>
void expect_close(const std::vector<T>& actual, const Doubles& expected, double tolerance,
                  const std::string& what) {
  double scale = 1e-30;
  for (const double value : expected) scale = std::max(scale, std::abs(value));
  expect_within(actual, expected, Doubles(expected.size(), tolerance * scale), what);
}

/// Calls `body` once per instruction set that the machine and the binary have, the portable
/// baseline included (on CUDA: once).
template <typename Body>
void on_every_target(const Body& body) {
  if (testing_cuda()) return body();
  std::vector<std::int64_t> targets = vector_targets();
  targets.push_back(HWY_STATIC_TARGET);
  for (const std::int64_t target : targets) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    body();
    hwy::SetSupportedTargetsForTest(0);
  }
}

/// Runs `compute`, which returns a vector, with 1, 2, 3, 5 and again 5 threads (on CUDA:
/// twice); expects the same bits and returns them.
template <typename Compute>
auto run_on_any_threads(const Compute& compute) {
  if (testing_cuda()) return run_twice(compute);
  const auto expected = [&] {
    const TeamLimit one(1);
    return compute();
  }();
  for (const int threads : {2, 3, 5, 5}) {
    const TeamLimit limit(threads);
    EXPECT_TRUE(same_bits(compute(), expected)) << "other bits with " << threads << " threads";
  }
  return expected;
}

/// Every second element in memory: not contiguous.
inline TensorView with_gaps(TensorView view) {
  for (std::int64_t& stride : view.strides) stride *= 2;
  return view;
}

/// Calls `kernel` with `args`, but `wrong` for the view `member`; expects an Error of a message
/// that begins with `named`.
template <typename Args>
void expect_refused(const KernelFunction<Args>& kernel, Args args, TensorView Args::*member,
                    const TensorView& wrong, const std::string& named) {
  args.*member = wrong;
  StreamUnderTest stream;
  try {
    kernel(args, stream);
    ADD_FAILURE() << named << ": was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(std::string(error.what()).substr(0, named.size()), named) << error.what();
  }
}

/// Expects that `member` is refused with gaps and as fp64: either reaches to twice its memory,
/// which must be there to be copied to a device.
template <typename Args>
void expect_flat_floats(const KernelFunction<Args>& kernel, const Args& args,
                        TensorView Args::*member, const std::string& named) {
  TensorView doubles = args.*member;
  doubles.dtype = DType::kFloat64;
  expect_refused(kernel, args, member, with_gaps(args.*member), named);
  expect_refused(kernel, args, member, doubles, named);
}

/// d f / d x by central differences, where `f` is a scalar function of a vector.
template <typename Function>
Doubles numeric_gradient(const Function& f, Doubles x, double step = 1e-5) {
  Doubles gradient(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double center = x[i];
    x[i] = center + step;
    const double above = f(x);
    x[i] = center - step;
    const double below = f(x);
    x[i] = center;
    gradient[i] = (above - below) / (2.0 * step);
  }
  return gradient;
}

inline double dot(const Doubles& a, const Doubles& b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace tessera
