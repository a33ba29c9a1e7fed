#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "checkpoint/checkpointed_run.h"
#include "temporary_folder.h"
#include "tessera/checkpoint/checkpoint_folder.h"

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

}  // namespace
}  // namespace tessera::offloaded_state_test
