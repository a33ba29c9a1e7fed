#include <gmock/gmock.h>

#include <algorithm>
#include <cstdlib>
#include <map>

#include "cli/program.h"

namespace tessera {
namespace {

using test::ProgramResult;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kFile =
    "distributed_type: FSDP\n"
    "fsdp_config:\n"
    "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
    "  fsdp_reshard_after_forward: SHARD_GRAD_OP\n"
    "num_processes: 2\n"
    "rdzv_backend: c10d\n";

class ExplainCommand : public test::ProgramTest {
 protected:
  void SetUp() override {
    ProgramTest::SetUp();
    setenv("HF_HOME", path("hf").c_str(), 1);  // no file of the person who runs the test
  }
};

TEST_F(ExplainCommand, TellsEveryKeyEverySourceAndEveryDifference) {
  const std::string file = write("a.yaml", kFile);
  const ProgramResult result = run({"explain", file, "--micro-batch", "3"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("settings of Accelerate"), HasSubstr(file + ":4  fsdp_config.fsdp_"),
                    HasSubstr("-> strategy = shard_grad_op"),
                    HasSubstr("Accelerate runs FULL_SHARD with fsdp_version 1"),
                    HasSubstr("Accelerate's launcher ignores the key in a file"),
                    HasSubstr("command line")));
}

TEST_F(ExplainCommand, TellsTheSameInJson) {
  const std::string file = write("a.yaml", kFile);
  const ProgramResult result = run({"explain", file, "--json", "--ranks", "4"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json["files"][0]["dialect"], "Accelerate");
  EXPECT_EQ(json["settings"]["ranks"]["value"], 4);
  EXPECT_EQ(json["settings"]["ranks"]["source"], "command line");
  EXPECT_EQ(json["settings"]["strategy"]["source"], file + ":4");
  EXPECT_EQ(json["settings"]["replicas"]["source"], "derived");
  EXPECT_EQ(json["settings"]["seed"]["source"], "default");
  bool found = false;
  for (const auto& entry : json["files"][0]["entries"]) {
    if (entry["key"] != "rdzv_backend") continue;
    EXPECT_EQ(entry["line"], 6);
    EXPECT_EQ(entry["value"], "c10d");
    EXPECT_EQ(entry["outcome"], "no effect");
    found = true;
  }
  EXPECT_TRUE(found);
}

TEST_F(ExplainCommand, WrongFilesAreUsageErrors) {
  for (const char* command : {"explain", "plan", "train"}) {
    const std::string file = write("a.yaml", "distributed_type: FSDP\nnum_proceses: 2\n");
    std::vector<std::string> arguments{command};
    if (std::string(command) != "explain") arguments.emplace_back("--config");
    arguments.push_back(file);
    const ProgramResult result = run(arguments);
    EXPECT_EQ(result.exit_code, 2) << command;
    EXPECT_EQ(result.err, "tessera: error: " + file +
                              ":2: num_proceses: unknown key; did you mean 'num_processes'?\n");
  }
  EXPECT_EQ(run({"explain"}).exit_code, 2);
  EXPECT_THAT(run({"explain"}).err, HasSubstr("nothing to explain"));
}

constexpr const char* kRefused =
    "distributed_type: FSDP\n"
    "num_processes: 2\n"
    "main_proces_port: 1\n"
    "fsdp_config:\n"
    "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
    "  fsdp_offload_params: true\n"
    "  fsdp_activation_checkpointing: true\n";

TEST_F(ExplainCommand, TellsEveryKeyOfARefusedFile) {
  const std::string file = write("a.yaml", kRefused);
  const ProgramResult result = run({"explain", file});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, AllOf(HasSubstr("2 keys need a change"), HasSubstr(file + ":3: main_pro"),
                                HasSubstr(file + ":6: fsdp_config.fsdp_offload_params")));
  EXPECT_THAT(
      result.out,
      AllOf(HasSubstr("main_proces_port: 1\n      -> refused: unknown key; did you mean 'main_"),
            HasSubstr("-> refused: 'true' asks for keeping the state in the host's memory"),
            HasSubstr("use more ranks"), HasSubstr("-> wrap = layer"),
            HasSubstr("-> recompute = full"), HasSubstr("-> ranks = 2")));
  EXPECT_THAT(result.out, Not(HasSubstr("effective settings")));
}

TEST_F(ExplainCommand, TellsARefusedFileInJson) {
  const std::string file = write("a.yaml", kRefused);
  const ProgramResult result = run({"explain", file, "--json"});
  EXPECT_EQ(result.exit_code, 2);
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_TRUE(json["settings"].is_null());
  std::map<std::string, std::string> outcomes;
  for (const auto& entry : json["files"][0]["entries"]) {
    outcomes[entry["key"]] = entry["outcome"];
    if (entry["key"] == "main_proces_port") {
      EXPECT_EQ(entry["line"], 3);
      EXPECT_THAT(entry["note"].get<std::string>(), HasSubstr("did you mean"));
    }
  }
  EXPECT_EQ(outcomes.at("main_proces_port"), "refused");
  EXPECT_EQ(outcomes.at("fsdp_config.fsdp_offload_params"), "refused");
  EXPECT_EQ(outcomes.at("fsdp_config.fsdp_activation_checkpointing"), "honoured");
  EXPECT_EQ(outcomes.at("num_processes"), "honoured");
}

TEST_F(ExplainCommand, AKeyThatDependsOnARefusedOneIsNotJudged) {
  const ProgramResult result =
      run({"explain", write("a.yaml", "distributed_type: FSPD\nnum_processes: 2\n")});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.out, HasSubstr("num_processes: 2\n      -> not judged"));
}

TEST_F(ExplainCommand, TrainsWithAForeignFileAndSaysWhatItTranslated) {
  const std::string file = write("a.yaml", kFile);
  const ProgramResult result =
      train({"--config", file, "--data", write_text(), "--steps", "2", "--log", path("log.jsonl")});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("note: " + file + ":4: fsdp_config.fsdp_reshard"),
                                HasSubstr("note: " + file + ":6: rdzv_backend")));
  EXPECT_EQ(read_log("log.jsonl").at(0)["strategy"], "shard_grad_op");
  if (read_log("log.jsonl").at(0)["device"] != "cuda") {
    EXPECT_THAT(result.out, HasSubstr(file + ":1: distributed_type: FSDP asks for GPUs; there is "
                                             "none, so the run is on the CPU"));
  }
  EXPECT_EQ(read_log("log.jsonl").at(0)["ranks"], 2);
}

TEST_F(ExplainCommand, TheDefaultFileIsNeverUsedInSilence) {
  std::filesystem::create_directories(path("hf/accelerate"));
  const std::string file = write("hf/accelerate/default_config.yaml", kFile);
  const ProgramResult used = run({"plan", "--format", "json", "--layers", "2"});
  ASSERT_EQ(used.exit_code, 0) << used.err;
  EXPECT_THAT(used.err, HasSubstr("note: settings of " + file));
  EXPECT_EQ(nlohmann::json::parse(used.out)["settings"]["ranks"], 2);

  const ProgramResult flags = run({"plan", "--format", "json", "--ranks", "4"});
  ASSERT_EQ(flags.exit_code, 0) << flags.err;
  EXPECT_EQ(nlohmann::json::parse(flags.out)["settings"]["ranks"], 4);
  EXPECT_EQ(nlohmann::json::parse(flags.out)["settings"]["strategy"], "shard_grad_op");

  // Always said, even where everything else is quiet.
  const ProgramResult quiet = train({"--data", write_text(), "--steps", "1", "--quiet"});
  EXPECT_EQ(quiet.exit_code, 0) << quiet.err;
  EXPECT_EQ(std::count(quiet.err.begin(), quiet.err.end(), '\n'), 1) << quiet.err;
  EXPECT_THAT(quiet.err, HasSubstr(file));

  const ProgramResult off = run({"plan", "--format", "json", "--no-default-config"});
  EXPECT_EQ(nlohmann::json::parse(off.out)["settings"]["ranks"], 1);
  EXPECT_EQ(off.err, "");
  const std::string own = write("own.json", "{\"ranks\": 3}");
  const ProgramResult other = run({"plan", "--format", "json", "--config", own});
  EXPECT_EQ(nlohmann::json::parse(other.out)["settings"]["ranks"], 3);
  EXPECT_EQ(other.err, "");
}

}  // namespace
}  // namespace tessera
