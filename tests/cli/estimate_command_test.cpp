#include <gmock/gmock.h>

#include "cli/program.h"

namespace tessera {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using testing::ProgramResult;

class EstimateCommand : public testing::ProgramTest {};

/// estimate_golden.json is from Accelerate's own function; see make_estimate_golden.py.
TEST_F(EstimateCommand, TheTableForLoadingIsAccelerates) {
  const std::string file = std::string(TESSERA_SOURCE_DIR) + "/tests/cli/estimate_golden.json";
  const json golden = json::parse(testing::read_file(file));
  ASSERT_EQ(golden["models"].size(), 4U);
  for (const auto& [name, dtypes] : golden["models"].items()) {
    SCOPED_TRACE(name);
    const ProgramResult result = run({"estimate-memory", name, "--json", "--strategies", "no_shard",
                                      "--ranks", "1", "--sequence-length", "8"});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const json ours = json::parse(result.out)["loading"];
    std::size_t compared = 0;
    for (const json& row : ours) {
      if (!dtypes.contains(row["dtype"])) continue;  // bfloat16
      const json& theirs = dtypes[row["dtype"].get<std::string>()];
      ++compared;
      EXPECT_EQ(row["largest_layer_bytes"], theirs["largest_layer_bytes"]) << row["dtype"];
      EXPECT_EQ(row["total_bytes"], theirs["total_bytes"]) << row["dtype"];
      const bool trainable = theirs["training_bytes"] != -1;
      EXPECT_EQ(row["training_bytes"], trainable ? theirs["training_bytes"] : json());
    }
    EXPECT_EQ(compared, dtypes.size());
  }
}

TEST_F(EstimateCommand, PrintsTheTableAndOneLineForEachStrategy) {
  const ProgramResult result =
      run({"estimate-memory", "gpt2", "--ranks", "8", "--strategies", "no_shard,full_shard"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("147 MiB"));
  EXPECT_THAT(result.out, HasSubstr("no_shard"));
  EXPECT_THAT(result.out, HasSubstr("full_shard"));
  EXPECT_EQ(run({"estimate-memory", "gpt3"}).exit_code, 2);
}

}  // namespace
}  // namespace tessera
