#include <gmock/gmock.h>

#include <map>
#include <regex>

#include "cli/program.h"
#include "tessera/sharding/strategies.h"

// `tessera test` in one process: every strategy runs as itself, and what users set does not make a
// healthy machine look broken.
namespace tessera {
namespace {

using test::ProgramResult;
using ::testing::HasSubstr;

class SelfTest : public test::ProgramTest {
 protected:
  ProgramResult test(std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"test", "--device", "cpu", "--no-default-config"});
    return run(flags);
  }
};

/// What each strategy took of memory, as the lines "ok  NAME...: ..., with X per rank" tell.
std::map<std::string, std::string> memory_by_strategy(const std::string& output) {
  const std::regex line(R"(ok\s+(\w+)[^:]*: .*with ([0-9.]+ \w+) per rank)");
  std::map<std::string, std::string> memory;
  for (std::sregex_iterator found(output.begin(), output.end(), line), end; found != end; ++found) {
    memory[(*found)[1].str()] = (*found)[2].str();
  }
  return memory;
}

TEST_F(SelfTest, ComparesStrategiesThatDiffer) {
  const ProgramResult result = test({"--ranks", "4"});
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.out, HasSubstr("every strategy gives the same bits"));
  auto memory = memory_by_strategy(result.out);
  EXPECT_EQ(memory.size(), strategies().size()) << result.out;
  // Were one strategy trained under all their names, all would take the same.
  const std::vector<std::string> neighbours{"no_shard",
                                            "zero1",
                                            "zero2",
                                            "shard_grad_op",
                                            "full_shard",
                                            "hybrid_shard",
                                            "hybrid_full_optimizer"};
  for (std::size_t i = 1; i < neighbours.size(); ++i) {
    EXPECT_NE(memory[neighbours[i - 1]], memory[neighbours[i]]) << neighbours[i];
  }
}

TEST_F(SelfTest, SpeaksForTheStrategiesThatWereRun) {
  const ProgramResult result = test({"--ranks", "2"});
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.out, HasSubstr("--  hybrid_shard: needs several replicas"));
  EXPECT_THAT(result.out, HasSubstr("every strategy that was run gives the same bits"));
}

TEST_F(SelfTest, SettingsThatChangeTheOrderOfSumsFailNoMachine) {
  const std::string file = write("ds.json",
                                 R"({"train_micro_batch_size_per_gpu": 1,
                                     "gradient_accumulation_steps": 4})");
  for (const std::vector<std::string>& flags :
       {std::vector<std::string>{"--ranks", "2", "--config", file},
        std::vector<std::string>{"--ranks", "4", "--reduction-order", "hierarchical"},
        std::vector<std::string>{"--ranks", "2", "--precision", "bf16", "--reduce-dtype", "bf16"},
        std::vector<std::string>{"--ranks", "2", "--strategy", "hybrid_shard", "--replicas",
                                 "2"}}) {
    const ProgramResult result = test(flags);
    EXPECT_EQ(result.exit_code, 0) << flags.back() << "\n" << result.out << result.err;
  }
}

}  // namespace
}  // namespace tessera
