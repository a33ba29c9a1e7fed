#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "checkpoint/checkpointed_run.h"
#include "temporary_folder.h"
#include "tessera/checkpoint/checkpoint_folder.h"
#include "tessera/core/offload_path.h"

// A checkpoint does not tell where the state was.
namespace tessera::offloaded_state_test {
namespace {

using test::Numbers;
using test::TemporaryFolder;
using test::Variant;

constexpr std::int64_t kSteps = 5;
constexpr std::int64_t kSavedAt = 2;

/// The bytes of every file with tensors below `folder`.
std::map<std::string, std::string> files_of(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.path().extension() != ".safetensors") continue;
    std::ostringstream bytes;
    bytes << std::ifstream(entry.path(), std::ios::binary).rdbuf();
    files[entry.path().lexically_relative(folder)] = bytes.str();
  }
  return files;
}

TEST(OffloadedState, IsSavedAsTheSameBytesAndLoadedToWhicheverTier) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const bool at_random : {false, true}) {
      if (at_random && dtype == DType::kFloat32) continue;
      const Variant variant{
          .strategy = "zero2", .ranks = 2, .precision = dtype, .stochastic_rounding = at_random};
      const TrainerOptions options = test::options_of(variant, kSteps);
      const Numbers whole = test::train_numbers(options, kSavedAt);
      std::map<std::string, std::string> first;
      for (const double saved : {0.0, 1.0, 0.5}) {
        const TemporaryFolder folder;
        TrainerOptions begin = options;
        begin.offload_optimizer.host = saved;
        begin.checkpoints.folder = folder.path("run");
        begin.stop_after = kSavedAt;
        test::train_numbers(begin);
        const auto files = files_of(folder.path("run"));
        EXPECT_EQ(files.size(), 2U);
        if (first.empty()) first = files;
        EXPECT_TRUE(files == first) << saved;
        for (const double loaded : {0.0, 1.0, 0.5}) {
          SCOPED_TRACE(concat(to_string(dtype), ", ", saved, " -> ", loaded));
          TrainerOptions rest = options;
          rest.offload_optimizer.host = loaded;
          rest.checkpoints.resume = folder.path("run");
          EXPECT_EQ(test::train_numbers(rest, kSavedAt), whole);
        }
      }
    }
  }
}

/// Where state is: the optimizer's, and the parameters.
struct Tiers {
  Offload optimizer{}, parameters{};
};

void offload(TrainerOptions& options, const Tiers& tiers, const std::string& path) {
  options.offload_optimizer = tiers.optimizer;
  options.offload_parameters = tiers.parameters;
  options.offload_path = path;
}

std::string to_string(const Tiers& tiers) {
  return concat(to_string(tiers.optimizer), " and ", to_string(tiers.parameters));
}

TEST(OffloadedState, OnDiskIsSavedAndLoadedAsAnyOther) {
  const TemporaryFolder disk;
  try {
    check_offload_path(disk.path("."), 0);
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  for (const auto& [dtype, optimizer] : {std::pair{DType::kFloat32, "adamw"},
                                         {DType::kBFloat16, "adamw"},
                                         {DType::kBFloat16, "adamw8bit"}}) {
    const TrainerOptions options = test::options_of(
        {.strategy = "full_shard", .ranks = 2, .precision = dtype, .optimizer = optimizer}, kSteps);
    const Numbers whole = test::train_numbers(options, kSavedAt);
    std::map<std::string, std::string> first;
    for (const Tiers& saved : {Tiers{},
                               {.optimizer = {.disk = 1.0}},
                               {.optimizer = {.disk = 0.5}, .parameters = {.disk = 1.0}}}) {
      const TemporaryFolder folder;
      TrainerOptions begin = options;
      offload(begin, saved, disk.path("."));
      begin.checkpoints.folder = folder.path("run");
      begin.stop_after = kSavedAt;
      test::train_numbers(begin);
      const auto files = files_of(folder.path("run"));
      if (first.empty()) first = files;
      EXPECT_TRUE(files == first) << to_string(saved);
      for (const Tiers& loaded : {Tiers{.optimizer = {.host = 1.0}, .parameters = {.disk = 0.5}},
                                  {.optimizer = {.disk = 1.0}, .parameters = {.disk = 1.0}},
                                  {.optimizer = {.disk = 0.5}, .parameters = {.host = 1.0}}}) {
        SCOPED_TRACE(concat(to_string(dtype), ", ", to_string(saved), " -> ", to_string(loaded)));
        TrainerOptions rest = options;
        offload(rest, loaded, disk.path("."));
        rest.checkpoints.resume = folder.path("run");
        EXPECT_EQ(test::train_numbers(rest, kSavedAt), whole);
      }
    }
  }
}

}  // namespace
}  // namespace tessera::offloaded_state_test
