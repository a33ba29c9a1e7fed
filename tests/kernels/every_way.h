#pragma once

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "kernels/under_test.h"
#include "tessera/core/device.h"
#include "tessera/core/tensor.h"
#include "tessera/core/thread_team.h"
#include "tessera/kernels/philox.h"

// What the tests of the memory-bound kernels share: flat views, and running a kernel on every
// instruction set and thread count, which must not change a bit.
namespace tessera {

/// Kernels on the CPU run on the calling thread: this stream only has to exist.
class NoStream : public Stream {
 public:
  void submit(const Work&, std::function<void()> task) override { task(); }
  Event record() override { return {}; }
  void wait(const Event&) override {}
  void copy(void* destination, const void* source, std::size_t bytes) override {
    std::memcpy(destination, source, bytes);
  }
  void synchronize() override {}
  bool failed() const override { return false; }
};

/// The elements from `begin` on as one dimension.
template <typename T>
TensorView view_of(std::vector<T>& values, std::int64_t begin = 0, std::int64_t count = -1) {
  if (count < 0) count = static_cast<std::int64_t>(values.size()) - begin;
  return TensorView(values.data() + begin, dtype_of<T>(), Shape{count});
}

template <typename T>
TensorView view_of(std::vector<T>& values, Shape shape) {
  return TensorView(values.data(), dtype_of<T>(), shape);
}

/// A key as kernels of a step read it: for view_of.
inline std::vector<std::int64_t> words_of(RandomKey key) {
  std::vector<std::int64_t> words(kRandomKeyWords);
  store_random_key(key, words.data());
  return words;
}

/// Normal numbers, as T.
template <typename T>
std::vector<T> random_values(std::int64_t n, unsigned seed, float scale = 1.0F) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0F, scale);
  std::vector<T> values(static_cast<std::size_t>(n));
  for (T& value : values) value = T(normal(generator));
  return values;
}

inline float as_float(float value) { return value; }
inline float as_float(bfloat16 value) { return static_cast<float>(value); }
inline float as_float(float16 value) { return static_cast<float>(value); }

template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

/// Odd, prime and empty sizes, and the neighbours of vector lengths, warps, blocks and chunks.
inline const std::vector<std::int64_t> kSizes =
    testing_cuda() ? std::vector<std::int64_t>{0, 1, 3, 7, 8, 15, 17, 31, 33, 255, 1009, 4096, 9001}
                   : std::vector<std::int64_t>{0,  1,  3,  7,  8,   15,   16,    17,
                                               31, 63, 64, 65, 127, 1009, 16384, 40009};

/// The instruction sets that this machine has, of those whose bits must agree (the portable
/// baseline has no fused multiply-add).
inline std::vector<std::int64_t> vector_targets() {
  std::vector<std::int64_t> targets;
  for (const std::int64_t target :
       {std::int64_t{HWY_AVX3}, std::int64_t{HWY_AVX2}, std::int64_t{HWY_NEON}}) {
    if ((hwy::SupportedTargets() & target) != 0) targets.push_back(target);
  }
  return targets;
}

/// Runs `compute`, which returns a vector, twice; expects the same bits and returns them.
template <typename Compute>
auto run_twice(const Compute& compute) {
  const auto expected = compute();
  EXPECT_TRUE(same_bits(compute(), expected)) << "other bits when run again";
  return expected;
}

/// Runs `compute`, which returns a vector, on every instruction set with 1, 2, 3, 5 and again 5
/// threads (on CUDA: twice); expects the same bits and returns them.
template <typename Compute>
auto run_every_way(const Compute& compute) {
  if (testing_cuda()) return run_twice(compute);
  const auto expected = compute();
  for (const std::int64_t target : vector_targets()) {
    hwy::SetSupportedTargetsForTest(target);
    for (const int threads : {1, 2, 3, 5, 5}) {
      const TeamLimit limit(threads);
      EXPECT_TRUE(same_bits(compute(), expected))
          << "other bits with " << threads << " threads on " << hwy::TargetName(target);
    }
    hwy::SetSupportedTargetsForTest(0);
  }
  return expected;
}

}  // namespace tessera
