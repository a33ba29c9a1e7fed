#include "tessera/trainer/agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <map>

#include "support/tiny_model.h"
#include "temporary_folder.h"
#include "tessera/collectives/listening_socket.h"
#include "tessera/core/error.h"
#include "tessera/kernels/optimizer.h"
#include "tessera/trainer/launch.h"
#include "tessera/trainer/trainer.h"
#include "tessera/trainer/trainer_settings.h"

// Processes that compare what they were started with; here all are threads of one.
namespace tessera {
namespace {

using test::tiny_model;
using test::TinyData;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

/// Joins `processes` worlds of `each` ranks and returns what `body` throws in each of them, or "".
std::vector<std::string> run_processes(
    int processes, int each, const std::function<void(const std::shared_ptr<World>&)>& body) {
  const int listener = listen_at(kLoopback, 0).socket;
  const int port = port_of_listener(listener);
  std::vector<std::string> errors(static_cast<std::size_t>(processes));
  launch_ranks(processes, [&](int process) {
    try {
      const std::shared_ptr<World> world =
          make_socket_world({.process = process,
                             .processes = processes,
                             .address = "127.0.0.1",
                             .port = port,
                             .listener = process == 0 ? listener : -1},
                            {.local_ranks = each, .timeout = std::chrono::seconds(60)});
      body(world);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kConfig) << error.what();
      errors[static_cast<std::size_t>(process)] = error.what();
    }
  });
  return errors;
}

/// The one error of processes that say `values`, or "" if they agree.
std::string disagreement(const std::vector<std::vector<NamedText>>& values, int each) {
  const auto errors = run_processes(
      static_cast<int>(values.size()), each, [&](const std::shared_ptr<World>& world) {
        require_agreement(*world, values[static_cast<std::size_t>(world->process())]);
      });
  for (const std::string& error : errors) EXPECT_EQ(error, errors.front());
  return errors.front();
}

TEST(Agreement, OfAllIsSilent) {
  const std::vector<NamedText> values{{"--seed", "1"}, {"--steps", "20"}};
  EXPECT_EQ(disagreement({values, values, values}, 2), "");
  EXPECT_EQ(disagreement({{}, {}}, 1), "");
}

TEST(Agreement, ADifferenceNamesSettingValuesAndRanks) {
  EXPECT_EQ(
      disagreement({{{"--seed", "1"}, {"--steps", "20"}}, {{"--seed", "2"}, {"--steps", "20"}}}, 4),
      "the processes of this run disagree: --seed is 1 on ranks 0-3 and 2 on ranks 4-7; give "
      "all of them the same program, settings and data");
  EXPECT_THAT(disagreement({{{"a", "x"}}, {{"a", "y"}}, {{"a", "x"}}}, 1),
              HasSubstr("a is x on ranks 0, 2 and y on rank 1;"));
}

TEST(Agreement, WhatOneDoesNotSayIsADifference) {
  EXPECT_THAT(disagreement({{{"a", "x"}}, {{"a", "x"}, {"b", "y"}}}, 1),
              HasSubstr("b is not known on rank 0 and y on rank 1;"));
}

TEST(Agreement, ManyDifferencesAreCounted) {
  std::vector<std::vector<NamedText>> values(6);
  for (std::size_t p = 0; p < values.size(); ++p) {
    for (int i = 0; i < 9; ++i) {
      values[p].push_back({"s" + std::to_string(i), std::to_string(p)});
    }
  }
  EXPECT_THAT(disagreement(values, 1),
              AllOf(HasSubstr("s0 is 0 on rank 0, 1 on rank 1, 2 on rank 2, 3 on rank 3, and 2 "
                              "other values; s1"),
                    HasSubstr("; and 3 more; give"), Not(HasSubstr("s6"))));
}

TEST(Agreement, TextsOfAnyLengthArrive) {
  run_processes(3, 2, [](const std::shared_ptr<World>& world) {
    const auto process = static_cast<std::size_t>(world->process());
    const auto texts = gather_texts(*world, std::string(process * 10000, 'x'));
    ASSERT_EQ(texts.size(), 3U);
    for (std::size_t p = 0; p < 3; ++p) EXPECT_EQ(texts[p], std::string(p * 10000, 'x'));
  });
}

/// Of every setting of a Trainer another value than the test below has.
const std::map<std::string, std::string> kOthers{
    {"ranks", "4"},
    {"strategy", "zero2"},
    {"trainable_strategy", "zero1"},
    {"replicas", "2"},
    {"parameter_placement", "none"},
    {"gradient_placement", "replicate+shard"},
    {"optimizer_placement", "replicate+shard"},
    {"reshard_after_forward", "false"},
    {"reduction_order", "hierarchical"},
    {"wrap", "none"},
    {"pipeline", "2"},
    {"pipeline_schedule", "gpipe"},
    {"virtual_stages", "2"},
    {"pipeline_split", "1,3"},
    {"layers_per_virtual_stage", "1"},
    {"first_rank_layers", "1"},
    {"last_rank_layers", "1"},
    {"pipeline_prefetch", "2"},
    {"tied_apart", "true"},
    {"offload_optimizer", "host"},
    {"offload_parameters", "host"},
    {"offload_activations", "host"},
    {"offload_gradients", "host"},
    {"prefetch_host", "2"},
    {"prefetch_disk", "1"},
    {"prefetch_forward", "2"},
    {"prefetch_backward", "2"},
    {"steps", "7"},
    {"micro_batch", "3"},
    {"accumulate", "2"},
    {"accumulate_unsharded", "true"},
    {"recompute", "full"},
    {"precision", "bf16"},
    {"reduce_dtype", "bf16"},
    {"fp8_recipe", "delayed"},
    {"fp8_history", "16"},
    {"fp8_history_rule", "most-recent"},
    {"fp8_margin", "1"},
    {"fp8_format", "e4m3"},
    {"fp8_scales", "exact"},
    {"fp8_products", "forward"},
    {"fp8_bf16_blocks", "1,0"},
    {"gather_format", "bf16"},
    {"fp8_scale_units", "2"},
    {"fp8_fast_accumulation", "true"},
    {"seed", "5"},
    {"loss_scale", "1024"},
    {"loss_scale_dialect", "megatron"},
    {"loss_scale_initial", "1024"},
    {"loss_scale_growth_factor", "4"},
    {"loss_scale_backoff_factor", "0.25"},
    {"loss_scale_window", "10"},
    {"loss_scale_minimum", "2"},
    {"loss_scale_hysteresis", "3"},
    {"loss_scale_consecutive_hysteresis", "true"},
    {"learning_rate", "0.5"},
    {"minimum_learning_rate", "0.0002"},
    {"learning_rate_schedule", "linear"},
    {"warmup_steps", "1"},
    {"decay_steps", "1"},
    {"weight_decay", "0.5"},
    {"beta1", "0.5"},
    {"beta2", "0.5"},
    {"epsilon", "0.5"},
    {"optimizer", "sgd"},
    {"learning_rate_groups", "*.weight=0.5"},
    {"momentum", "0.5"},
    {"nesterov", "true"},
    {"epsilon1", "1e-20"},
    {"epsilon2", "0.5"},
    {"clip_threshold", "0.5"},
    {"decay_rate", "0.5"},
    {"scale_parameter", "true"},
    {"relative_step", "true"},
    {"warmup_init", "true"},
    {"eval_every", "5"},
    {"patience", "3"},
    {"min_improvement", "0.5"},
    {"clip_norm", "0.5"},
    {"stochastic_rounding", "true"},
    {"device", "cuda"},
    {"group", "nccl"},
    {"deterministic_collectives", "true"},
    {"attention", "own"},
    {"deterministic_attention", "false"},
    {"optimizer_blocks", "64"},
    {"cuda_graph", "false"},
    {"threads_per_rank", "17"},
    {"check_collectives", "true"},
    {"time_actions", "true"},
    {"trace", "trace.json"},
    {"trace_steps", "2-3"},
    {"overlap_steps", "true"},
    {"save", "here"},
    {"save_every", "2"},
    {"save_total_limit", "2"},
    {"save_best", "true"},
    {"save_async", "false"},
    {"save_failures", "tolerate"},
    {"resume", "there"},
    {"allow_other_data", "true"},
    {"allow_other_optimizer", "true"},
    {"allow_other_model", "true"},
    {"stop_after", "1"},
    {"allow_non_finite", "true"},
    {"parameters_hash", "false"},
};

/// Of those that only a dynamic loss scale has, and not by every dialect's rules.
void scale_loss(Settings& config, const std::string& name) {
  if (!name.starts_with("loss_scale_")) return;
  config.set_text("loss_scale", "dynamic");
  const bool has_hysteresis = name.ends_with("hysteresis") || name == "loss_scale_minimum";
  config.set_text("loss_scale_dialect", has_hysteresis ? "deepspeed" : "torch");
}

bool is_of_adafactor(const std::string& name) {
  return std::ranges::any_of(
      find_optimizer("adafactor").hyperparameters,
      [&](const Hyperparameter& hyperparameter) { return hyperparameter.name == name; });
}

// Whoever adds a setting decides here whether processes may give it differently.
TEST(Agreement, EverySettingOfATrainerIsComparedOrMayDiffer) {
  const auto identity = [](const std::string& name, const std::string& value) {
    Settings config(trainer_settings());
    config.set_text("ranks", "8");
    config.set_text("device", "cpu");
    config.set_text("precision", name == "precision" ? "fp32" : "bf16");
    const bool is_of_fp8 = name.starts_with("fp8_") || name == "gather_format";
    if (is_of_fp8) config.set_text("precision", "fp8");
    const bool is_of_histories = name.starts_with("fp8_history") || name == "fp8_margin";
    if (is_of_histories) config.set_text("fp8_recipe", "delayed");
    if (name == "momentum" || name == "nesterov") config.set_text("optimizer", "sgd");
    if (name == "nesterov") config.set_text("momentum", "0.5");
    if (is_of_adafactor(name)) config.set_text("optimizer", "adafactor");
    if (name == "warmup_init") config.set_text("relative_step", "true");
    if (name == "offload_activations") config.set_text("recompute", "full");
    scale_loss(config, name);
    if (!value.empty()) {
      config.set_text(name, value);
      // It cannot stand alone.
      if (name == "gradient_placement") config.set_text("optimizer_placement", value);
      if (name == "pipeline_split") config.set_text("pipeline", "2");
    }
    return std::pair(identity_of_options(trainer_options(config)), identity_of_settings(config));
  };
  for (const Setting& setting : trainer_settings()) {
    SCOPED_TRACE(setting.name);
    if (setting.choices.size() == 1) continue;  // there is no other value
    if (setting.must_agree == MustAgree::kNone) {
      EXPECT_EQ(kOthers.count(setting.name), 0U);
      continue;
    }
    ASSERT_EQ(kOthers.count(setting.name), 1U) << "neither may it differ nor is it tried here";
    const auto usual = identity(setting.name, "");
    const auto other = identity(setting.name, kOthers.at(setting.name));
    EXPECT_NE(usual.first, other.first);
    EXPECT_NE(usual.second, other.second);
  }
}

/// Which may lie elsewhere for each of them.
TEST(Agreement, TheContentOfATableOfGemmsIsComparedOnGpus) {
  const test::TemporaryFolder folder;
  const auto identity = [&](const std::string& name, const std::string& content,
                            DeviceChoice device) {
    TrainerOptions options = resolved({.ranks = 2});
    options.device = device;
    options.gemm_table = folder.write(name, content);
    return identity_of_options(options);
  };
  const auto first = identity("a", "one", DeviceChoice::kCuda);
  EXPECT_EQ(identity("b", "one", DeviceChoice::kCuda), first);
  EXPECT_NE(identity("a", "other", DeviceChoice::kCuda), first);
  EXPECT_EQ(identity("a", "one", DeviceChoice::kCpu), identity("a", "other", DeviceChoice::kCpu));
}

TEST(Agreement, ThreadsAreComparedOnTheCpuOnly) {
  const auto identity = [](const char* device, const char* threads) {
    Settings config(trainer_settings());
    config.set_text("device", device);
    config.set_text("threads_per_rank", threads);
    return identity_of_settings(config);
  };
  EXPECT_NE(identity("cpu", "1"), identity("cpu", "2"));
  EXPECT_EQ(identity("cuda", "1"), identity("cuda", "2"));
}

TEST(Agreement, ANumberIsTheSameHoweverItIsWritten) {
  const auto identity = [](const char* rate) {
    Settings config(trainer_settings());
    config.set_text("learning_rate", rate);
    return identity_of_settings(config);
  };
  EXPECT_EQ(identity("1"), identity("1.0"));
  EXPECT_EQ(identity("0.001"), identity("1e-3"));
}

/// Data that other programs make: without an identity, and for process 1 with another sample.
class OwnData : public TinyData {
 public:
  explicit OwnData(std::int64_t other_sample = -1) : other_sample_(other_sample) {}
  std::int64_t fill(std::int64_t first, std::int64_t micro_batch, TensorView inputs,
                    TensorView targets) const override {
    const std::int64_t counted = TinyData::fill(first, micro_batch, inputs, targets);
    for (std::int64_t i = 0; i < micro_batch; ++i) {
      if (first + i == other_sample_) inputs.as<float>()[i * test::kFeatures] += 1.0F;
    }
    return counted;
  }

 private:
  std::int64_t other_sample_;
};

/// What a Trainer says in each of two processes, the second of which has something else.
struct Different {
  std::int64_t width = 13;
  std::int64_t other_sample = -1;
  std::function<void(TrainerOptions&)> options{};
};

std::string error_of_trainers(const Different& second) {
  const auto errors = run_processes(2, 2, [&](const std::shared_ptr<World>& world) {
    const Different different = world->process() == 1 ? second : Different{};
    const Model model = tiny_model(different.width);
    const OwnData data(different.other_sample);
    TrainerOptions options{.strategy = "zero2", .ranks = 4, .steps = 3, .threads_per_rank = 1};
    options.world = world;
    if (different.options) different.options(options);
    Trainer(model, data, options).train();
  });
  EXPECT_EQ(errors[0], errors[1]);
  return errors[0];
}

TEST(Agreement, TrainersCompareOptionsModelAndData) {
  EXPECT_EQ(error_of_trainers({}), "");
  EXPECT_THAT(error_of_trainers({.options = [](TrainerOptions& o) { o.seed = 7; }}),
              HasSubstr("disagree: seed is 0 on ranks 0-1 and 7 on ranks 2-3; "));
  EXPECT_THAT(error_of_trainers({.width = 14}), HasSubstr("disagree: the model is "));
  EXPECT_THAT(error_of_trainers({.other_sample = 0}), HasSubstr("disagree: the data is "));
}

TEST(Agreement, OtherStepsWaitForNoTimeout) {
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THAT(error_of_trainers({.options = [](TrainerOptions& o) { o.steps = 9; }}),
              HasSubstr("steps is 3 on ranks 0-1 and 9 on ranks 2-3"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
}

// The other process has agreed already when this one cannot go on.
TEST(Agreement, AProcessThatFailsBeforeEndsTheOthers) {
  const Model model = tiny_model();
  std::array<std::string, 2> errors;
  const int listener = listen_at(kLoopback, 0).socket;
  const int port = port_of_listener(listener);
  launch_ranks(2, [&](int process) {
    TinyData data;
    if (process == 1)
      data.before_sample = [](std::int64_t) { throw Error(ErrorCode::kIo, "gone"); };
    try {
      TrainerOptions options{.ranks = 2, .steps = 3, .threads_per_rank = 1};
      options.world = make_socket_world({.process = process,
                                         .processes = 2,
                                         .address = "127.0.0.1",
                                         .port = port,
                                         .listener = process == 0 ? listener : -1},
                                        {.timeout = std::chrono::seconds(60)});
      Trainer(model, data, options).train();
    } catch (const Error& error) {
      errors[static_cast<std::size_t>(process)] = error.what();
    }
  });
  EXPECT_EQ(errors[1], "gone");
  EXPECT_THAT(errors[0], HasSubstr("rank 1 failed: gone"));
}

TEST(Agreement, TheProgramIsAlwaysTheSame) {
  EXPECT_EQ(identity_of_program(), identity_of_program());
  EXPECT_THAT(identity_of_program().value, ::testing::ContainsRegex("^build [0-9a-f]{16}"));
}

}  // namespace
}  // namespace tessera
