#include <gmock/gmock.h>

#include <cstdlib>
#include <map>

#include "cli/program.h"
#include "cuda/cuda_run.h"
#include "emulator_blas/fake_cublaslt.h"
#include "temporary_folder.h"
#include "tessera/kernels/gemm_table.h"
#include "tessera/lab/calibrate.h"
#include "tessera/lab/kernel_calls.h"
#include "tessera/lab/step_times.h"
#include "tessera/sharding/operation.h"
#include "tessera/trainer/training_plan.h"

// tessera calibrate, and runs by the table that it writes. GPU and cuBLASLt are emulated.
namespace tessera {
namespace {

using nlohmann::json;
using test::ProgramResult;
using test::read_file;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

class Calibrate : public test::ProgramTest {
 protected:
  void SetUp() override {
    ProgramTest::SetUp();
    setenv("TESSERA_CUDA_MODULE", TESSERA_EMULATED_MODULE, 1);
    setenv("LD_LIBRARY_PATH", TESSERA_NO_DRIVER, 1);
    // Milliseconds: algorithm 5 is the fastest of a product, and no epilogue is worth it.
    setenv("FAKE_CUBLASLT_DURATIONS",
           "600000 600000 600000 600000 600000 60000 600000 600000 "
           "9999999 9999999 9999999 9999999 9999999 9999999 9999999 9999999",
           1);
  }
  void TearDown() override {
    for (const char* name : {"TESSERA_CUDA_MODULE", "LD_LIBRARY_PATH", "FAKE_CUBLASLT_DURATIONS"}) {
      unsetenv(name);
    }
    ProgramTest::TearDown();
  }

  ProgramResult calibrate(const std::vector<std::string>& more = {},
                          const std::function<void(pid_t)>& while_running = {}) const {
    std::vector<std::string> words{"calibrate", "--gemm-table", path("t.json")};
    for (const char* word : {"--layers", "2", "--heads", "2", "--width", "16", "--context-length",
                             "16", "--micro-batch", "2", "--precision", "bf16"}) {
      words.emplace_back(word);
    }
    words.insert(words.end(), more.begin(), more.end());
    return run(words, while_running);
  }
  ProgramResult train_by_table(const std::string& log,
                               const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words{"--data", path("data.txt"), "--steps", "3",     "--precision",
                                   "bf16",   "--device",       "cuda",    "--log", path(log)};
    words.insert(words.end(), more.begin(), more.end());
    return train(words);
  }
  json table() const { return json::parse(read_file(path("t.json"))); }
  json summary(const std::string& log) const { return read_log(log).back(); }
};

TEST_F(Calibrate, WritesATableByWhichRunsGiveTheSameBits) {
  write_text();
  const ProgramResult first = calibrate();
  ASSERT_EQ(first.exit_code, 0) << first.err;
  int apart = 0;
  const json rows = table()["gemms"];
  for (const json& row : rows) {
    const bool with_epilogue = row["epilogue"] != "none" && row["epilogue"] != "bias";
    if (with_epilogue) {
      EXPECT_EQ(row["way"], "separate") << row;
    }
    // A bias and a residual cost as much either way, so that the work of this machine decides.
    if (row["epilogue"] == "none" && row["residual_stride"] == 0) {
      EXPECT_EQ(row["way"], "fused") << row;
    }
    EXPECT_LE(row["microseconds"].get<double>(), row["heuristic_microseconds"].get<double>())
        << row;
    apart += with_epilogue ? 1 : 0;
  }
  EXPECT_GE(apart, 3) << "GELU and its derivative";
  const std::string written = read_file(path("t.json"));
  const ProgramResult second = calibrate();
  ASSERT_EQ(second.exit_code, 0) << second.err;
  EXPECT_THAT(second.out, HasSubstr("0 GEMMs to time"));
  EXPECT_EQ(read_file(path("t.json")), written);

  const std::vector<std::string> by_table{"--gemm-table", path("t.json")};
  for (const char* log : {"a.jsonl", "b.jsonl"}) {
    const ProgramResult run = train_by_table(log, by_table);
    ASSERT_EQ(run.exit_code, 0) << run.err;
  }
  ASSERT_EQ(train_by_table("c.jsonl").exit_code, 0);
  EXPECT_EQ(summary("a.jsonl")["parameters_sha256"], summary("b.jsonl")["parameters_sha256"]);
  EXPECT_NE(summary("a.jsonl")["parameters_sha256"], summary("c.jsonl")["parameters_sha256"])
      << "the heuristic's algorithms add in another order";
}

TEST_F(Calibrate, ATableOfAnotherLibraryIsRefusedByAllWhoReadIt) {
  write_text();
  unsetenv("FAKE_CUBLASLT_DURATIONS");
  ASSERT_EQ(calibrate().exit_code, 0);
  json stale = table();
  stale["machine"]["cublaslt"] = "12.9.1";
  write("t.json", stale.dump());
  const ProgramResult trained = train_by_table("a.jsonl", {"--gemm-table", path("t.json")});
  const ProgramResult calibrated = calibrate();
  for (const ProgramResult& result : {trained, calibrated}) {
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, AllOf(HasSubstr("cuBLASLt 12.9.1"), HasSubstr("cuBLASLt 13.1.0")));
  }
}

TEST_F(Calibrate, WhatIsDoneStaysWhenItIsInterrupted) {
  const ProgramResult result = calibrate({}, [&](pid_t pid) {
    while (read_file(path("stdout")).find("\n2/") == std::string::npos && kill(pid, 0) == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    kill(pid, SIGINT);
  });
  EXPECT_EQ(result.exit_code, 128 + SIGINT) << result.err;
  EXPECT_THAT(result.out, HasSubstr("stopped after "));
  const std::size_t done = table()["gemms"].size();
  EXPECT_GE(done, 2U);
  const ProgramResult rest = calibrate();
  EXPECT_EQ(rest.exit_code, 0) << rest.err;
  EXPECT_THAT(rest.out, HasSubstr(std::to_string(done) + " in "));
  EXPECT_GT(table()["gemms"].size(), done);
}

/// Runs with a table of all GEMMs of their plan, in this process.
TEST(CalibratedRun, LooksForNoAlgorithms) {
  const Model model =
      make_gpt({.vocab_size = 32, .context_length = 8, .layers = 2, .heads = 2, .width = 16});
  const test::CountingTokens data;
  const test::TemporaryFolder folder;
  const auto device = make_cuda_device();
  GemmCalibration calibration(*device);
  GemmTable table{.machine = gemm_machine(*device)};  // of all these runs
  for (const DType precision : {DType::kFloat32, DType::kBFloat16}) {
    for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
      SCOPED_TRACE(concat(to_string(precision), ", recompute ", to_string(recompute)));
      TrainerOptions options = test::cuda_options("full_shard", 1);
      options.precision = precision;
      options.policy.recompute = recompute;
      options.accumulate = 2;
      options.evaluation_samples = 2;
      const TrainingPlan plan = make_training_plan({model, data, &data}, options);
      const std::vector<GemmArgs> gemms = record_gemms(plan);
      const std::vector<GemmArgs> missing = calibration.missing(gemms, table);
      EXPECT_LT(missing.size(), gemms.size()) << "blocks have the same ones";
      for (const GemmArgs& gemm : missing) calibration.time(gemm, table);
      options.gemm_table = folder.write("t.json", to_text(table));
      const std::int64_t before = fake_cublaslt::heuristics();
      const Trainer trainer(model, data, options, &data);
      const TrainingSummary first = trainer.train();
      EXPECT_EQ(fake_cublaslt::heuristics(), before);
      EXPECT_EQ(trainer.train().parameters_sha256, first.parameters_sha256);
    }
  }
}

// Algorithms add in different orders: the run's record names the table, and so does a resume.
TEST(CalibratedRun, IsRecordedWithItsTable) {
  const Model model =
      make_gpt({.vocab_size = 32, .context_length = 8, .layers = 1, .heads = 2, .width = 16});
  const test::CountingTokens data;
  const test::TemporaryFolder folder;
  const auto device = make_cuda_device();
  TrainerOptions options = test::cuda_options("full_shard", 1);
  options.checkpoints.folder = folder.path("checkpoints");
  options.steps = 2;
  const auto notes_with = [&](const std::string& table) {
    options.gemm_table = table;
    const Trainer trainer(model, data, options);
    std::string notes;
    for (const std::string& note : trainer.plan().notes) notes += note + "\n";
    trainer.train();
    return notes;
  };
  GemmTable table{.machine = gemm_machine(*device)};
  EXPECT_THAT(notes_with(folder.write("a.json", to_text(table))), HasSubstr("says (hash "));
  options.checkpoints.resume = "latest";
  options.steps = 3;
  EXPECT_THAT(notes_with(folder.write("moved.json", to_text(table))),
              Not(HasSubstr("gemm_table was")));
  GemmCalibration calibration(*device);
  calibration.time(record_gemms(make_training_plan({model, data}, options)).front(), table);
  options.steps = 4;
  EXPECT_THAT(notes_with(folder.write("other.json", to_text(table))),
              ContainsRegex("since the checkpoint: .*gemm_table was hash [0-9a-f]+ and is hash "));
  options.steps = 5;
  EXPECT_THAT(notes_with(""), ContainsRegex("gemm_table was hash [0-9a-f]+ and is not there"));
}

// Kernels that the host launches one by one are timed by events, and the step as a graph.
TEST(CalibratedGpu, TimesTheKernelsOfStepsByEvents) {
  const Model model = test::counting_gpt();
  const test::CountingTokens source;
  const ModelLayout layout = make_layout(model, {}, 1);
  const Schedule schedule =
      plan(layout, {.mesh = make_mesh(1, 1), .placement = find_strategy("no_shard").placement});
  const ExecutorOptions options{.micro_batch = 2, .device = DeviceKind::kCuda};
  const HardwareProfile profile = find_profile("h100-sxm");
  const StepTimes times = time_steps({.program = {&schedule, &source},
                                      .layout = layout,
                                      .model = model,
                                      .options = options,
                                      .seconds = 0.0},
                                     profile);
  std::map<std::pair<std::string, std::string>, double> expected, seen;
  const auto recorded = record_kernels({&schedule, &source}, layout, model, options);
  for (std::size_t i = 0; i < recorded.size(); ++i) {
    for (const KernelCall& call : recorded[i]) {
      expected[{std::string(schedule.actions[i].operation->name), step_name(call)}] += 1.0;
    }
  }
  double inside = 0.0;
  for (const StepTimes::Kernel& kernel : times.kernels) {
    seen[{kernel.operation, kernel.kernel}] += kernel.calls;
    inside += kernel.calls * kernel.seconds;
  }
  EXPECT_EQ(seen, expected);
  EXPECT_GT(inside, 0.0);
  EXPECT_GT(times.step, 0.0);
  EXPECT_EQ(times.gap, 0.0) << "between kernels of a graph";
}

// Emulated kernels take as long as they take: the profile is whole, its times mean nothing.
TEST(CalibratedGpu, HasAProfileThatPredictsSteps) {
  const auto device = make_cuda_device();
  int announced = 0;
  const CalibrationOptions options{
      .name = "emulated",
      .machine = "an emulated GPU",
      .memory_bytes = 1e9,
      .seconds = 1e-6,
      .coarseness = 8,
      .progress = [&](const CalibrationProgress&) { return ++announced > 0; }};
  const HardwareProfile profile = calibrate_gpu(*device, options, find_profile("h100-sxm"));
  EXPECT_GT(announced, 50);
  EXPECT_EQ(to_text(parse_profile(to_text(profile), "gpu.json")), to_text(profile));
  EXPECT_EQ(profile.device, "cuda");
  EXPECT_EQ(profile.cores.value, 0.0);
  EXPECT_GT(profile.copy_out.value, 0.0);
  EXPECT_GE(profile.handover.value, 0.0);
  EXPECT_THAT(profile.node.bandwidth.source, HasSubstr("not measured here; h100-sxm"));
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    const std::string name(to_string(dtype));
    EXPECT_GT(profile.peak.at(name).value, 0.0);
    for (const char* kernel : {"gemm nt, bias", "gemm nn", "gemm tn", "attention_forward",
                               "attention_backward", "layer_norm_forward", "adamw"}) {
      ASSERT_NE(profile.find(kernel, name, 1), nullptr) << kernel << " in " << name;
      for (const KernelRates::Point& point : profile.find(kernel, name, 1)->points) {
        EXPECT_GT(point.per_second, 0.0) << kernel << " in " << name;
      }
    }
  }
}

TEST_F(Calibrate, SaysWhatItNeeds) {
  write_text();
  EXPECT_THAT(run({"calibrate", "--device", "cuda"}).err, HasSubstr("--gemm-table"));
  EXPECT_THAT(calibrate({"--device", "cpu"}).err, HasSubstr("only a GPU"));
  EXPECT_THAT(train_by_table("a.jsonl", {"--gemm-table", "/nowhere/t.json"}).err,
              HasSubstr("/nowhere/t.json"));
}

}  // namespace
}  // namespace tessera
