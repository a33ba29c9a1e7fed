#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "collectives/under_test.h"
#include "tessera/collectives/process_group.h"
#include "tessera/core/error.h"

namespace tessera::test {

inline constexpr int kWorldSizes[] = {1, 2, 3, 4, 7};
inline constexpr std::int64_t kNumels[] = {0, 1, 4, 100, 1000, 10007};

/// How a rank ended: no code means well.
struct Outcome {
  std::optional<ErrorCode> code;
  std::string what;
};

/// What a rank's function gets: its end of the group and two lanes.
struct RankContext {
  ProcessGroup& group;
  Stream& stream;
  Stream& second_stream;

  int rank() const { return group.rank(); }
  int size() const { return group.size(); }
};

/// A vector in memory that the device under test reaches, too.
template <typename T>
struct DeviceAllocator {
  using value_type = T;
  DeviceAllocator() = default;
  template <typename U>
  DeviceAllocator(const DeviceAllocator<U>&) {}  // NOLINT: as allocators convert
  T* allocate(std::size_t n) { return static_cast<T*>(test::allocate(n * sizeof(T))); }
  void deallocate(T* address, std::size_t n) { test::deallocate(address, n * sizeof(T)); }
  bool operator==(const DeviceAllocator&) const = default;
};
template <typename T>
using Vector = std::vector<T, DeviceAllocator<T>>;

/// Sleeps a random time before one task in four.
inline std::function<void()> random_delays(unsigned seed) {
  auto random = std::make_shared<std::minstd_rand>(seed);
  return [random] {
    const auto draw = (*random)() % 400;
    if (draw < 100) std::this_thread::sleep_for(std::chrono::microseconds(draw));
  };
}

/// Runs `body` once per rank, each on a host thread of its own with two streams, and synchronizes
/// both. (A body whose buffers are its own locals synchronizes before it returns.)
/// `make_delay(lane)` is put before each task of a lane.
inline std::vector<Outcome> run_ranks(
    Groups& groups, const std::function<void(RankContext)>& body,
    const std::function<std::function<void()>(unsigned)>& make_delay = nullptr) {
  std::vector<Outcome> outcomes(groups.size());
  std::vector<std::thread> threads;
  if (make_delay) delay_device(std::chrono::microseconds(100));
  for (std::size_t r = 0; r < groups.size(); ++r) {
    threads.emplace_back([&, r] {
      const auto options = [&](unsigned lane) {
        StreamOptions result{.name = "rank " + std::to_string(r)};
        if (make_delay) result.before_task = make_delay(static_cast<unsigned>(r) * 2 + lane);
        return result;
      };
      const auto stream = device_under_test().create_stream(options(0));
      const auto second_stream = device_under_test().create_stream(options(1));
      try {
        body({*groups[r], *stream, *second_stream});
        stream->synchronize();
        second_stream->synchronize();
      } catch (const Error& error) {
        outcomes[r] = {.code = error.code(), .what = error.what()};
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  delay_device(std::chrono::microseconds(0));
  return outcomes;
}

/// run_ranks for bodies that must succeed everywhere.
inline void expect_success(
    Groups& groups, const std::function<void(RankContext)>& body,
    const std::function<std::function<void()>(unsigned)>& make_delay = nullptr) {
  const std::vector<Outcome> outcomes = run_ranks(groups, body, make_delay);
  for (std::size_t r = 0; r < outcomes.size(); ++r) {
    EXPECT_FALSE(outcomes[r].code.has_value()) << "rank " << r << ": " << outcomes[r].what;
  }
}

template <typename T>
TensorView view_of(Vector<T>& data) {
  return TensorView(data.data(), dtype_of<T>(), Shape{static_cast<std::int64_t>(data.size())});
}

/// Element i of rank `rank`: a small integer, so that every sum of a few is exact in any dtype,
/// even in bf16 (at most 7 * 16 < 256).
template <typename T>
T exact_value(int rank, std::int64_t i) {
  return static_cast<T>(static_cast<float>((i * 7 + rank * 5) % 17));
}

/// Element i of rank `rank`: magnitudes from 1e-3 to 1e3 and both signs, so that sums depend on
/// their order.
template <typename T>
T random_value(int rank, std::int64_t i) {
  // The finalizer of SplitMix64: every bit depends on every bit.
  auto bits = static_cast<std::uint64_t>(rank * 1000003 + i) * 0x9e3779b97f4a7c15ULL;
  bits = (bits ^ (bits >> 30U)) * 0xbf58476d1ce4e5b9ULL;
  bits = (bits ^ (bits >> 27U)) * 0x94d049bb133111ebULL;
  bits ^= bits >> 31U;
  const float mantissa = 1.0F + static_cast<float>(bits & 0x7fffffU) / 8388608.0F;
  const float scale = std::exp2(static_cast<float>(static_cast<int>((bits >> 24U) % 21) - 10));
  return static_cast<T>((bits >> 63U) == 0 ? mantissa * scale : -mantissa * scale);
}

template <typename T>
using ValueOf = T (*)(int rank, std::int64_t i);

template <typename T>
Vector<T> values(ValueOf<T> value, int rank, std::int64_t numel) {
  Vector<T> result;
  result.reserve(static_cast<std::size_t>(numel));
  for (std::int64_t i = 0; i < numel; ++i) result.push_back(value(rank, i));
  return result;
}

/// The sum over ranks, in rank order, one element after the other: fp32 accumulation for fp32 and
/// bf16, fp64 for fp64. `first` comes before rank 0 if not null.
template <typename In, typename Out>
Vector<Out> ordered_sum_oracle(ValueOf<In> value, int ranks, std::int64_t begin, std::int64_t end,
                               const Vector<Out>* first) {
  using Wide = std::conditional_t<sizeof(In) == 8, In, float>;
  Vector<Out> result;
  for (std::int64_t i = begin; i < end; ++i) {
    Wide sum{};
    if (first != nullptr) sum = static_cast<Wide>((*first)[static_cast<std::size_t>(i - begin)]);
    for (int r = 0; r < ranks; ++r) {
      const auto term = static_cast<Wide>(value(r, i));
      sum = r == 0 && first == nullptr ? term : sum + term;
    }
    result.push_back(static_cast<Out>(sum));
  }
  return result;
}

/// Equal bits, and where they first differ.
template <typename T>
void expect_same_bits(const Vector<T>& actual, const Vector<T>& expected, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    ASSERT_EQ(std::memcmp(&actual[i], &expected[i], sizeof(T)), 0)
        << what << ": element " << i << " is " << static_cast<double>(static_cast<float>(actual[i]))
        << ", expected " << static_cast<double>(static_cast<float>(expected[i]));
  }
}

inline std::string describe(int size, std::int64_t numel, int rank) {
  return "size " + std::to_string(size) + ", numel " + std::to_string(numel) + ", rank " +
         std::to_string(rank);
}

}  // namespace tessera::test
