#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/tiny_model.h"
#include "temporary_folder.h"
#include "tessera/core/error.h"
#include "tessera/core/offload_path.h"
#include "tessera/trainer/trainer.h"

// Runs whose optimizer state is in the host's memory: --offload-optimizer.
namespace tessera::offload_run_test {
namespace {

using test::TemporaryFolder;
using test::tiny_model;
using test::TinyData;
using ::testing::HasSubstr;

TrainerOptions options_for(const std::string& strategy, int ranks, const std::string& offload) {
  TrainerOptions options;
  options.strategy = strategy;
  options.ranks = ranks;
  options.offload_optimizer = parse_offload(offload);
  options.steps = 6;
  options.micro_batch = 4;
  options.learning_rate.peak = 0.03;
  options.threads_per_rank = 1;
  return options;
}

TEST(OffloadedRun, TrainsWhereTheLimitIsBelowWhatItsStateNeedsOnTheDevice) {
  const Model model = tiny_model(4000);
  const TinyData data;
  TrainerOptions options = options_for("no_shard", 1, "host");
  const TrainingPlan offloaded = make_training_plan({model, data}, options);
  options.offload_optimizer = {};
  const TrainingPlan without = make_training_plan({model, data}, options);
  EXPECT_LT(offloaded.memory.total, without.memory.total * 2 / 3);
  const TrainingSummary expected = Trainer(model, data, options).train();

  options.memory_limit_bytes = offloaded.memory.total;
  EXPECT_THROW(Trainer(model, data, options), Error);
  options.offload_optimizer = {.host = 1.0};
  const TrainingSummary summary = Trainer(model, data, options).train();
  EXPECT_EQ(summary.parameters_sha256, expected.parameters_sha256);
  EXPECT_EQ(summary.measured_memory.total, offloaded.memory.total);
}

/// Many units of equal size.
Model deep_model() {
  Model model;
  model.name = "deep";
  model.layers.push_back(std::make_unique<test::DenseLayer>("first", test::kFeatures, 64, false));
  for (int i = 0; i < 16; ++i) {
    model.layers.push_back(std::make_unique<test::DenseLayer>(concat("h.", i), 64, 64, false));
  }
  model.layers.push_back(std::make_unique<test::DenseLayer>("last", 64, test::kClasses, true));
  model.flops_per_item = 6.0 * static_cast<double>(parameter_count(model));
  return model;
}

TEST(OffloadedRun, TakesTheGradientsMemoryOffTheDevice) {
  const Model model = deep_model();
  const TinyData data;
  for (const int accumulate : {1, 3}) {
    TrainerOptions options = options_for("zero2", 2, "host");
    options.accumulate = accumulate;
    options.learning_rate.peak = 0.01;
    const TrainingSummary expected = Trainer(model, data, options).train();
    options.offload_gradients = {.host = 1.0};
    const TrainingSummary summary = Trainer(model, data, options).train();
    EXPECT_EQ(summary.parameters_sha256, expected.parameters_sha256);
    EXPECT_EQ(summary.measured_memory, summary.predicted_memory);
    EXPECT_EQ(summary.measured_host_memory, summary.predicted_host_memory);
    EXPECT_EQ(summary.counted_traffic.front(), summary.predicted_traffic);
    EXPECT_EQ(summary.measured_memory.by_category[MemoryCategory::kGradients], 0);
    EXPECT_LT(summary.measured_memory.total, expected.measured_memory.total);
  }
}

/// Whether the disk tier may have files there.
bool is_on_disk(const std::string& folder) {
  try {
    check_offload_path(folder, 0);
    return true;
  } catch (const Error&) {
    return false;
  }
}

TEST(OffloadedRun, RefusesADiskThatWillNotDoWhenItIsPlanned) {
  const Model model = tiny_model();
  const TinyData data;
  TrainerOptions options = options_for("full_shard", 2, "disk");
  const auto refusal = [&] {
    try {
      Trainer(model, data, options).train();
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_THAT(refusal(), HasSubstr("`offload_path`"));
  options.offload_path = "/nowhere/to/be/found";
  EXPECT_THAT(refusal(), HasSubstr("'/nowhere/to/be/found'"));
  if (!is_on_disk("/dev/shm")) {
    options.offload_path = "/dev/shm";
    EXPECT_THAT(refusal(), HasSubstr("/dev/shm"));
  }
  options = options_for("full_shard", 2, "none");
  options.offload_parameters = {.disk = 1.0};
  EXPECT_THAT(refusal(), HasSubstr("`offload_path`"));
  options.offload_parameters = {};
  options.offload_gradients = {.disk = 1.0};
  EXPECT_THAT(refusal(), HasSubstr("gradients live for less than a step"));
}

TEST(OffloadedRun, TrainsOnAThirdOfTheMemoryWithTheSameBits) {
  const Model model = deep_model();
  const TinyData data;
  for (const std::string strategy : {"no_shard", "full_shard"}) {
    for (const bool overlap : {false, true}) {
      SCOPED_TRACE(concat(strategy, overlap ? ", overlapping" : ""));
      TrainerOptions options = options_for("no_shard", 2, "none");
      const TrainingSummary expected = Trainer(model, data, options).train();
      options.strategy = strategy;
      options.offload_parameters = parse_offload("host");
      if (overlap) options.overlap_steps = true;
      options.memory_limit_bytes = expected.measured_memory.total / 3;
      const TrainingSummary summary = Trainer(model, data, options).train();
      EXPECT_EQ(summary.parameters_sha256, expected.parameters_sha256);
      EXPECT_EQ(summary.measured_memory, summary.predicted_memory);
      EXPECT_EQ(summary.measured_host_memory, summary.predicted_host_memory);
      for (const Traffic& counted : summary.counted_traffic) {
        EXPECT_EQ(counted, summary.predicted_traffic);
      }
    }
  }
}

TEST(OffloadedRun, MeasuresWhatWasPredictedWithEvaluationsAndCheckpointsToo) {
  const Model model = tiny_model();
  const TinyData data;
  for (const bool overlap : {false, true}) {
    std::string hash;
    for (const std::string offload : {"none", "host", "host:0.5", "parameters", "zero2 parameters",
                                      "activations", "disk", "disk:0.5", "disk parameters"}) {
      SCOPED_TRACE(concat(offload, overlap ? ", overlapping" : ""));
      const TemporaryFolder folder;
      const bool disk = offload.starts_with("disk");
      if (disk && !is_on_disk(folder.path("."))) continue;
      const bool parameters = offload.ends_with("parameters"),
                 activations = offload == "activations";
      const bool shards = parameters && !offload.starts_with("zero2");
      TrainerOptions options = options_for(shards ? "full_shard" : "zero2", 2,
                                           parameters || activations ? "none" : offload);
      if (parameters) options.offload_parameters = parse_offload(disk ? "disk:0.5" : "host:0.5");
      if (activations) {
        options.offload_activations = ActivationOffload::kHost;
        options.policy = {.recompute = Recompute::kFull, .prefetch_host = 0};
      }
      if (disk) options.offload_path = folder.path(".");
      options.precision = DType::kBFloat16;
      options.evaluate_every = 2;
      options.evaluation_samples = 8;
      options.checkpoints = {.folder = folder.path("run"), .every = 4};
      if (overlap) options.overlap_steps = true;
      const Trainer trainer(model, data, options, &data);
      const TrainingSummary summary = trainer.train();
      if (hash.empty()) hash = summary.parameters_sha256;
      EXPECT_EQ(summary.parameters_sha256, hash);
      EXPECT_EQ(summary.measured_memory, summary.predicted_memory);
      EXPECT_EQ(summary.measured_host_memory, summary.predicted_host_memory);
      for (const Traffic& counted : summary.counted_traffic) {
        EXPECT_EQ(counted, summary.predicted_traffic);
      }
      EXPECT_EQ(summary.measured_disk_bytes, summary.predicted_disk_bytes);
      EXPECT_EQ(summary.measured_disk_bytes > 0, disk);
      EXPECT_EQ(summary.counted_traffic.front().from_disk_bytes > 0, disk);
      EXPECT_EQ(summary.predicted_host_memory.total > 0, offload != "none");
      EXPECT_EQ(summary.saves, 2);
    }
  }
}

TEST(OffloadedRun, IsWrittenAsNoneHostOrAShareOfIt) {
  for (const char* const text : {"none", "host", "host:0.5", "host:0.25", "disk", "disk:0.75"}) {
    EXPECT_EQ(to_string(parse_offload(text)), text);
  }
  EXPECT_EQ(to_string(parse_offload("host:1")), "host");
  for (const char* const text :
       {"", "cpu", "disk:", "disk:2", "host:", "host:0", "host:1.5", "host:x", "host:nan"}) {
    try {
      parse_offload(text);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kConfig);
      EXPECT_THAT(error.what(), HasSubstr("choose none"));
    }
  }
}

}  // namespace
}  // namespace tessera::offload_run_test
