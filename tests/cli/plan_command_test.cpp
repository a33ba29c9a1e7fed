#include <gmock/gmock.h>

#include <algorithm>

#include "cli/program.h"
#include "tessera/sharding/account.h"
#include "tessera/sharding/schedule.h"
#include "tessera/sharding/schedule_json.h"
#include "tessera/sharding/validate.h"

namespace tessera {
namespace {

using test::ProgramResult;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class PlanCommand : public test::ProgramTest {};

TEST_F(PlanCommand, PlansALargeRunAtOnce) {
  const auto begin = std::chrono::steady_clock::now();
  const ProgramResult result =
      run({"plan", "--model", "gpt2-1558m", "--ranks", "64", "--strategy", "full_shard",
           "--micro-batch", "1", "--sequence-length", "1024"});
  const auto seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_LT(seconds.count(), 20.0);  // it takes 0.1 s; a machine may be busy
  EXPECT_THAT(result.out, AllOf(HasSubstr("1.56 G parameters"), HasSubstr("all gather"),
                                HasSubstr("reduce scatter"), HasSubstr("optimizer"),
                                HasSubstr("more actions")));
}

TEST_F(PlanCommand, ASweepHasTheMemoryOfEveryCombination) {
  const auto plan = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {"plan", "--model", "gpt2-tiny", "--micro-batch", "2"});
    return run(words);
  };
  const ProgramResult table = plan({"--sweep", "ranks=2,6 strategy=zero1,hybrid_shard replicas=4"});
  EXPECT_EQ(table.exit_code, 2);
  EXPECT_THAT(table.err, AllOf(HasSubstr("note: left out 2, zero1, 4; 2, hybrid_shard, 4: "),
                               HasSubstr("--sweep: no combination can be planned")));
  const ProgramResult some = plan({"--sweep", "ranks=2,4 strategy=no_shard,full_shard"});
  EXPECT_EQ(some.exit_code, 0) << some.err;
  EXPECT_THAT(some.out, AllOf(HasSubstr("ranks    strategy"), HasSubstr("1 x 4"),
                              HasSubstr("device"), HasSubstr("host"), HasSubstr("disk")));
  const auto runs = nlohmann::json::parse(
      plan({"--sweep", "ranks=2,4 strategy=no_shard,full_shard", "--format", "json"}).out)["runs"];
  ASSERT_EQ(runs.size(), 4U);
  for (const auto& row : runs) {
    const auto one = nlohmann::json::parse(
        plan({"--ranks", row["ranks"], "--strategy", row["strategy"], "--format", "json"}).out);
    EXPECT_EQ(row["peak_bytes"], one["peak_bytes"]) << row;
    EXPECT_EQ(row["device_bytes"], one["device_bytes"]) << row;
  }
  EXPECT_THAT(plan({"--sweep", "rank=2"}).err,
              HasSubstr("there is no setting 'rank'; 'tessera plan --help' lists them"));
}

TEST_F(PlanCommand, SaysWhatAGpuHoldsBesideItAndWhoRunsAttention) {
  const auto plan = [&](const std::string& device, const std::string& format) {
    return run({"plan", "--model", "gpt2-1558m", "--layers", "2", "--ranks", "8", "--precision",
                "bf16", "--micro-batch", "21", "--device", device, "--format", format});
  };
  const ProgramResult on_gpus = plan("cuda", "summary");
  EXPECT_EQ(on_gpus.exit_code, 0) << on_gpus.err;
  EXPECT_THAT(on_gpus.err, HasSubstr("attention's backward pass runs on our own kernels"));
  EXPECT_THAT(on_gpus.out, AllOf(HasSubstr("beside it on a GPU"), HasSubstr("memory pool: simul")));
  const auto json = nlohmann::json::parse(plan("cuda", "json").out);
  std::vector<std::string> items;
  for (const auto& [name, bytes] : json.at("gpu_overhead_bytes").items()) {
    EXPECT_GT(bytes.get<std::int64_t>(), 0) << name;
    items.push_back(name);
  }
  EXPECT_THAT(items, ::testing::UnorderedElementsAre("memory pool", "CUDA context", "kernels",
                                                     "CUDA graph", "NCCL"));
  const ProgramResult on_cpus = plan("cpu", "summary");
  EXPECT_EQ(on_cpus.exit_code, 0) << on_cpus.err;
  EXPECT_THAT(on_cpus.out, Not(HasSubstr("beside it on a GPU")));
  EXPECT_EQ(on_cpus.err, "");
}

// Sizes in range that no machine could hold, or 64 bits count: an answer at once.
TEST_F(PlanCommand, HugeSizesAreRefusedAtOnce) {
  const auto begin = std::chrono::steady_clock::now();
  const auto refused = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments{"plan", "--no-default-config"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const ProgramResult result = run(arguments);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    return result.err;
  };
  EXPECT_THAT(refused({"--width", "16777216"}),
              AllOf(HasSubstr("parameters"), HasSubstr("take a smaller width")));
  EXPECT_THAT(refused({"--micro-batch", "2147483647", "--sequence-length", "64"}),
              AllOf(HasSubstr("pieces of"), HasSubstr("smaller micro-batch")));
  EXPECT_THAT(refused({"--layers", "1000", "--accumulate", "65536"}),
              AllOf(HasSubstr("micro-steps"), HasSubstr("accumulate less")));
  EXPECT_THAT(refused({"--layers", "16777216"}), HasSubstr("--layers"));
  const ProgramResult large =
      run({"plan", "--no-default-config", "--width", "400000", "--format", "summary"});
  EXPECT_EQ(large.exit_code, 0) << large.err;
  const auto seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin);
  EXPECT_LT(seconds.count(), 20.0);  // all take 0.1 s; the machine may be busy
}

TEST_F(PlanCommand, ShowsEveryActionOnRequest) {
  const ProgramResult shorter = run({"plan", "--model", "gpt2-124m", "--ranks", "2"});
  const ProgramResult longer = run({"plan", "--model", "gpt2-124m", "--ranks", "2", "--actions"});
  EXPECT_THAT(shorter.out, HasSubstr("more actions"));
  EXPECT_THAT(longer.out, Not(HasSubstr("more actions")));
  EXPECT_GT(longer.out.size(), shorter.out.size());
  EXPECT_THAT(run({"plan", "--ranks", "2", "--format", "summary"}).out,
              AllOf(HasSubstr("peak of the sum"), Not(HasSubstr("| after"))));
}

TEST_F(PlanCommand, TheScheduleCanBeParsedAndIsValid) {
  const ProgramResult text = run({"plan", "--ranks", "4", "--format", "schedule"});
  const Schedule schedule = parse_schedule(text.out);
  EXPECT_TRUE(validate(schedule).empty());
  const ProgramResult json_run = run({"plan", "--ranks", "4", "--format", "json"});
  const auto document = nlohmann::ordered_json::parse(json_run.out);
  EXPECT_EQ(schedule_from_json(document["schedule"]), schedule);
  EXPECT_EQ(document["sent_bytes"]["all_gather"],
            account_traffic(schedule).sent_of(CollectiveKind::kAllGather));
  EXPECT_EQ(document["settings"]["ranks"], 4);
}

TEST_F(PlanCommand, WritesPassesThatAFileCanSay) {
  const auto csv = [&](const std::string& schedule, const std::string& ranks) {
    return run({"plan", "--layers", "8", "--ranks", ranks, "--pipeline", ranks, "--accumulate", "4",
                "--pipeline-schedule", schedule, "--format", "pipeline-csv"});
  };
  for (const char* const schedule : {"1f1b", "interleaved", "zb-h1", "zb-v"}) {
    const ProgramResult named = csv(schedule, "2");
    EXPECT_EQ(std::ranges::count(named.out, '\n'), 2) << named.err;
    const std::string path = write("passes.csv", named.out);
    EXPECT_EQ(csv(path, "2").out, named.out) << schedule;
    EXPECT_THAT(csv(path, "4").err, HasSubstr("--pipeline 2"));
  }
  EXPECT_EQ(csv("1f1b", "2").out,
            "0F0,0F1,,0B0,0F2,0B1,0F3,0B2,,0B3\n,1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3,\n");
  EXPECT_THAT(csv("2f2b", "2").err, HasSubstr("choose one of gpipe, 1f1b, interleaved"));
}

TEST_F(PlanCommand, HybridsHaveAReplicaPerNode) {
  const std::string config =
      write("fsdp.yaml",
            "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nnum_processes: 32\n"
            "fsdp_config:\n  fsdp_version: 1\n  fsdp_sharding_strategy: HYBRID_SHARD\n"
            "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n");
  const auto replicas = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"plan", "--no-default-config", "--format", "json"});
    const ProgramResult result = run(more);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return nlohmann::json::parse(result.out)["settings"]["replicas"];
  };
  const std::vector<std::string> hybrid{"--strategy", "hybrid_shard", "--ranks", "32"};
  EXPECT_EQ(replicas({hybrid[0], hybrid[1], hybrid[2], hybrid[3]}), 2);
  EXPECT_EQ(replicas({hybrid[0], hybrid[1], hybrid[2], hybrid[3], "--ranks-per-node", "8"}), 4);
  EXPECT_EQ(replicas({hybrid[0], hybrid[1], hybrid[2], hybrid[3], "--ranks-per-node", "8",
                      "--replicas", "16"}),
            16);
  EXPECT_EQ(replicas({"--config", config, "--ranks-per-node", "8"}), 4);
}

TEST_F(PlanCommand, SaysWhenAStrategyIsAnotherOneOnItsRanks) {
  const auto notes = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments{"plan", "--no-default-config", "--format", "schedule"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const ProgramResult result = run(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_TRUE(validate(parse_schedule(result.out)).empty());
    return result.err;
  };
  EXPECT_THAT(notes({"--ranks", "7", "--strategy", "hybrid_shard"}),
              HasSubstr("note: hybrid_shard with 1 replica of 7 ranks is full_shard"));
  EXPECT_THAT(notes({"--ranks", "2", "--replicas", "2", "--strategy", "full_shard"}),
              HasSubstr("note: full_shard with 2 replicas of 1 rank is no_shard"));
  EXPECT_EQ(notes({"--ranks", "9", "--strategy", "hybrid_shard"}), "");
  EXPECT_EQ(notes({"--ranks", "1"}), "");
  // A placement of one's own is what it says.
  EXPECT_EQ(notes({"--ranks", "2", "--replicas", "2", "--optimizer-placement", "replicate+shard"}),
            "");
}

TEST_F(PlanCommand, SaysWhenTheMemoryLimitIsTooLow) {
  const std::vector<std::string> sizes{
      "plan", "--no-default-config", "--layers", "3", "--width", "32", "--ranks",
      "4",    "--memory-limit"};
  const auto with = [&](const std::string& limit) {
    std::vector<std::string> arguments = sizes;
    arguments.push_back(limit);
    return run(arguments);
  };
  EXPECT_THAT(with("1KiB").err, HasSubstr("more than its limit of 1.00 KiB"));
  EXPECT_EQ(with("1GiB").err, "");
}

TEST_F(PlanCommand, PredictsWhatTrainMeasures) {
  const std::string config = write("config.json", R"({
    "layers": 2, "heads": 2, "width": 16, "context_length": 16, "ranks": 3, "strategy": "zero2",
    "steps": 3, "quiet": true, "data": ")" + write_text() +
                                                      R"(", "log": ")" + path("log.jsonl") + "\"}");
  const ProgramResult plan = run({"plan", "--config", config, "--format", "json"});
  ASSERT_EQ(plan.exit_code, 0) << plan.err;
  ASSERT_EQ(run({"train", "--config", config}).exit_code, 0);
  const auto planned = nlohmann::json::parse(plan.out);
  const auto summary = read_log("log.jsonl").back();
  EXPECT_EQ(planned["peak_bytes"], summary["peak_bytes"]["measured"]);
  EXPECT_EQ(planned["sent_bytes"]["reduce_scatter"].get<std::int64_t>() * 3,
            summary["sent_bytes"]["counted"]["reduce_scatter"].get<std::int64_t>());
}

TEST_F(PlanCommand, ShowsHowGradientsAreAddedUp) {
  const auto sums = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments{
        "plan", "--no-default-config", "--sums", "--layers",      "1", "--heads", "2", "--width",
        "16",   "--context-length",    "16",     "--micro-batch", "1", "--ranks", "2"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const ProgramResult result = run(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    const std::size_t legend = result.out.find("where s0, s1, ... are the contributions");
    EXPECT_NE(legend, result.out.npos) << "no legend";
    std::string without = result.out;
    return without.erase(legend, result.out.find("same bits  ") - legend);
  };
  EXPECT_EQ(sums({"--accumulate", "2", "--strategy", "no_shard"}),
            R"(gradients are added up as (hash c79e27f899f6e41b)
  (head+embedding s0..s2/2) x2/1
      1 tensor (wte.weight)
  (g s0..s2/2) x2/1
      15 tensors (wpe.weight, ...)
same bits  no_shard, zero1
others     zero2, shard_grad_op, full_shard, hybrid_shard, hybrid_shard_zero2,
           hybrid_full_optimizer
)");
  EXPECT_EQ(sums({"--strategy", "full_shard"}),
            R"(gradients are added up as (hash bd94a5980c6631e5)
  head+embedding s0..s1
      1 tensor (wte.weight)
  g s0..s1
      15 tensors (wpe.weight, ...)
same bits  no_shard, zero1, zero2, shard_grad_op, full_shard, hybrid_shard,
           hybrid_shard_zero2, hybrid_full_optimizer
)");
}

TEST_F(PlanCommand, ExplainNamesTheStrategiesWithTheSameBits) {
  const auto explained = [&](const std::string& more) {
    const ProgramResult result = run({"explain",
                                      write("ds.json", R"({"zero_optimization": {"stage": 3},
             "train_micro_batch_size_per_gpu": 1)" + more + "}"),
                                      "--ranks", "2"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  };
  EXPECT_THAT(explained(""),
              HasSubstr("\nSwitching between these strategies keeps the same bits: no_shard, "
                        "zero1,"));
  EXPECT_THAT(explained(R"(, "gradient_accumulation_steps": 2)"),
              HasSubstr("\nSwitching between these strategies keeps the same bits: zero2,"));
}

TEST_F(PlanCommand, RefusesWhatIsOnlyForTraining) {
  const ProgramResult result = run({"plan", "--data", "x"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("'--data' is a flag of 'tessera train', and without effect"));
}

}  // namespace
}  // namespace tessera
