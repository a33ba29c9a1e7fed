#include "tessera/trainer/parameter_hash.h"

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <numeric>
#include <vector>

namespace tessera::parameter_hash_test {
namespace {

std::vector<float> values_from(float first, std::size_t count) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), first);
  return values;
}

constexpr std::size_t kValues = 1000;
constexpr std::size_t kBytes = kValues * sizeof(float);

TEST(ParameterHash, IsThatOfAllAtOnceWhateverMayWait) {
  std::vector<FullParameter> all;
  for (int i = 0; i < 7; ++i) {
    all.push_back({"p", {1}, values_from(static_cast<float>(i), kValues * (1 + i % 3))});
  }
  const std::string expected = parameters_sha256(all);
  for (const std::size_t limit : {std::size_t{0}, kBytes, 2 * kBytes, 100 * kBytes}) {
    HostWork work;
    ParameterHash hash(&work, limit);
    for (const FullParameter& parameter : all) hash.add(parameter.values);
    EXPECT_EQ(hash.finish(), expected) << limit;
    EXPECT_LE(hash.most_waiting_bytes(), std::max(limit, 3 * kBytes));
    EXPECT_EQ(work.of(HostTask::kHash).done_bytes, static_cast<std::int64_t>(13 * kBytes));
  }
  EXPECT_EQ(ParameterHash().finish(), parameters_sha256({}));
  const ParameterHash unused;
}

/// The first parameter is not done before the second one has come.
TEST(ParameterHash, WorksWhileMoreIsGathered) {
  std::mutex mutex;
  std::condition_variable changed;
  bool second_is_there = false;
  HostWork work([&] {
    std::unique_lock lock(mutex);
    EXPECT_TRUE(changed.wait_for(lock, std::chrono::minutes(1), [&] { return second_is_there; }));
    return false;
  });
  ParameterHash hash(&work);
  hash.add(values_from(1.0F, kValues));
  hash.add(values_from(2.0F, kValues));
  {
    const std::lock_guard lock(mutex);
    second_is_there = true;
    changed.notify_all();
  }
  EXPECT_EQ(hash.finish(), parameters_sha256({{"a", {1}, values_from(1.0F, kValues)},
                                              {"b", {1}, values_from(2.0F, kValues)}}));
  EXPECT_EQ(hash.most_waiting_bytes(), 2 * kBytes);
}

}  // namespace
}  // namespace tessera::parameter_hash_test
