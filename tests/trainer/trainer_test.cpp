#include "tessera/trainer/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <chrono>
#include <stdexcept>
#include <thread>
#include <type_traits>

#include "support/small_run.h"
#include "support/threads_of_process.h"
#include "support/tiny_model.h"
#include "tessera/core/error.h"
#include "tessera/trainer/parameter_hash.h"

namespace tessera::trainer_test {
namespace {

using test::tiny_model;
using test::TinyData;
using ::testing::AllOf;
using ::testing::HasSubstr;

TrainerOptions options_for(const std::string& strategy, int ranks) {
  TrainerOptions options;
  options.strategy = strategy;
  options.ranks = ranks;
  options.steps = 12;
  options.micro_batch = 4;
  options.accumulate = 2;
  options.optimizer.clip_norm = 0.7;
  options.learning_rate.peak = 0.03;
  options.learning_rate.warmup_steps = 2;
  options.threads_per_rank = 1;
  options.timeout = std::chrono::seconds(60);
  return options;
}

struct Losses {
  TrainingSummary summary;
  std::vector<double> losses;
  std::vector<double> norms;
};

Losses train(const TrainerOptions& options) {
  const Model model = tiny_model();
  const TinyData data;
  Losses result;
  result.summary = Trainer(model, data, options).train([&](const StepRecord& record) {
    result.losses.push_back(record.loss);
    result.norms.push_back(record.gradient_norm);
    return true;
  });
  return result;
}

/// The Error that `body` throws.
template <typename Body>
Error error_of(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "nothing was thrown";
  return Error(ErrorCode::kInternal, "");
}

void expect_predictions_hold(const TrainingSummary& summary, const std::string& what) {
  EXPECT_EQ(summary.predicted_memory.total, summary.measured_memory.total) << what;
  for (int i = 0; i < kMemoryCategories; ++i) {
    const auto category = static_cast<MemoryCategory>(i);
    EXPECT_EQ(summary.predicted_memory.by_category[category],
              summary.measured_memory.by_category[category])
        << what << ", " << to_string(category);
  }
  for (std::size_t rank = 0; rank < summary.counted_traffic.size(); ++rank) {
    EXPECT_EQ(summary.predicted_traffic, summary.counted_traffic[rank]) << what << ", " << rank;
    EXPECT_EQ(summary.counted_traffic[rank].copied_bytes, 0) << what;
  }
}

TEST(Trainer, EveryStrategyGivesTheSameBits) {
  TrainerOptions options = options_for("no_shard", 4);
  options.accumulate = 1;
  const Losses oracle = train(options);
  EXPECT_LT(oracle.losses.back(), 0.5 * oracle.losses.front());
  EXPECT_EQ(oracle.summary.first_loss, oracle.losses.front());
  EXPECT_EQ(oracle.summary.last_loss, oracle.losses.back());
  for (const Strategy& strategy : strategies()) {
    options.strategy = strategy.name;
    const Losses run = train(options);
    EXPECT_EQ(run.losses, oracle.losses) << strategy.name;
    EXPECT_EQ(run.norms, oracle.norms) << strategy.name;
    EXPECT_EQ(run.summary.parameters_sha256, oracle.summary.parameters_sha256) << strategy.name;
  }
}

// Those that reduce once per step add a rank's micro-steps first, the others add over ranks first:
// each kind has its own bits.
TEST(Trainer, AccumulatingStrategiesAgreeWhereTheyAddInTheSameOrder) {
  const Losses once = train(options_for("no_shard", 4));
  const Losses every = train(options_for("full_shard", 4));
  for (const Strategy& strategy : strategies()) {
    const Losses run = train(options_for(strategy.name, 4));
    const bool reduces_once = strategy.placement.gradient.empty();
    EXPECT_EQ(run.losses, reduces_once ? once.losses : every.losses) << strategy.name;
  }
}

TEST(Trainer, PredictionsHoldForEveryStrategy) {
  for (const Strategy& strategy : strategies()) {
    for (const int accumulate : {1, 2}) {
      TrainerOptions options = options_for(strategy.name, 4);
      options.accumulate = accumulate;
      expect_predictions_hold(train(options).summary,
                              strategy.name + " x " + std::to_string(accumulate));
    }
  }
}

TEST(Trainer, OneRankThatAccumulatesIsTheOracleOfMany) {
  TrainerOptions one = options_for("full_shard", 1);
  one.accumulate = 6;
  const Losses oracle = train(one);
  const Losses three = train(options_for("full_shard", 3));
  EXPECT_EQ(three.losses, oracle.losses);
  EXPECT_EQ(three.summary.parameters_sha256, oracle.summary.parameters_sha256);
  expect_predictions_hold(oracle.summary, "one rank");
  expect_predictions_hold(three.summary, "three ranks");
}

TEST(Trainer, CheckedCollectivesChangeNothing) {
  TrainerOptions options = options_for("zero2", 3);
  const Losses plain = train(options);
  options.check_collectives = true;
  const Losses checked = train(options);
  EXPECT_EQ(plain.losses, checked.losses);
  expect_predictions_hold(checked.summary, "checked");
}

TEST(Trainer, RecordsEveryStep) {
  TrainerOptions options = options_for("full_shard", 2);
  options.time_actions = true;
  const Model model = tiny_model();
  const TinyData data;
  const Trainer trainer(model, data, options);
  std::int64_t step = 0;
  const TrainingSummary summary = trainer.train([&](const StepRecord& record) {
    EXPECT_EQ(record.step, ++step);
    EXPECT_EQ(record.learning_rate, trainer.plan().options.learning_rate.at(step - 1));
    EXPECT_EQ(record.tokens, 2 * 2 * 4);
    EXPECT_GT(record.seconds, 0.0);
    EXPECT_GT(record.tokens_per_second, 0.0);
    EXPECT_LE(record.peak_bytes, trainer.plan().memory.total);
    return true;
  });
  EXPECT_EQ(step, options.steps);
  EXPECT_EQ(summary.steps, options.steps);
  EXPECT_GT(summary.tokens_per_second, 0.0);
  EXPECT_EQ(summary.positions_per_second, summary.tokens_per_second) << "all have targets";
  ASSERT_TRUE(summary.timeline.has_value());
  EXPECT_GT(summary.timeline->compute_seconds, 0.0);
  EXPECT_LE(summary.timeline->exposed_seconds, summary.timeline->step_seconds);
}

TEST(Trainer, LearningRateSpansTheStepsUnlessToldOtherwise) {
  const Model model = tiny_model();
  const TinyData data;
  EXPECT_EQ(Trainer(model, data, {.steps = 40}).plan().options.learning_rate.total_steps, 40);
}

/// The parameters after `steps` steps of a run that was planned to be longer.
std::string hash_after(const TrainerOptions& options, std::int64_t steps) {
  const Model model = tiny_model();
  const TinyData data;
  return Trainer(model, data, options)
      .train([&](const StepRecord& record) { return record.step < steps; })
      .parameters_sha256;
}

TEST(Trainer, TheScheduledRateIsWhatTheOptimizerUses) {
  using Kind = LearningRateSchedule::Kind;
  TrainerOptions scheduled = options_for("full_shard", 2);
  const auto constant = [&](double rate) {
    TrainerOptions options = scheduled;
    options.learning_rate = {.kind = Kind::kConstant, .peak = rate};
    return options;
  };
  // The first step of the warm-up is one at half the peak, the second is not.
  const TrainerOptions half = constant(scheduled.learning_rate.peak / 2);
  EXPECT_EQ(hash_after(scheduled, 1), hash_after(half, 1));
  EXPECT_NE(hash_after(scheduled, 2), hash_after(half, 2));
  EXPECT_NE(hash_after(scheduled, 1), hash_after(constant(scheduled.learning_rate.peak), 1));
  // Schedules that part after the third step give parameters that do.
  TrainerOptions other = scheduled;
  scheduled.learning_rate.kind = Kind::kConstant;
  other.learning_rate.kind = Kind::kLinear;
  EXPECT_EQ(hash_after(scheduled, 3), hash_after(other, 3));
  EXPECT_NE(hash_after(scheduled, 4), hash_after(other, 4));
}

TEST(Trainer, TwiceIsTheSameRun) {
  const Model model = tiny_model();
  const TinyData data;
  const Trainer trainer(model, data, options_for("full_shard", 2));
  EXPECT_EQ(trainer.train().parameters_sha256, trainer.train().parameters_sha256);
}

TEST(Trainer, ReturnsTheParametersOnRequest) {
  TrainerOptions options = options_for("full_shard", 3);
  EXPECT_TRUE(train(options).summary.parameters.empty());
  options.gather_parameters = true;
  const TrainingSummary summary = train(options).summary;
  std::vector<std::string> names;
  for (const FullParameter& p : summary.parameters) {
    names.push_back(p.name);
    EXPECT_EQ(p.shape.numel(), static_cast<std::int64_t>(p.values.size()));
  }
  EXPECT_THAT(names, ::testing::ElementsAre("first.weight", "first.bias", "second.weight",
                                            "second.bias", "last.weight", "last.bias"));
  EXPECT_EQ(parameters_sha256(summary.parameters), summary.parameters_sha256);
}

TEST(Trainer, LeavesOutTheHashOnRequest) {
  TrainerOptions options = options_for("full_shard", 3);
  const Losses hashed = train(options);
  options.hash_parameters = false;
  const Losses run = train(options);
  EXPECT_EQ(run.losses, hashed.losses);
  EXPECT_EQ(run.summary.parameters_sha256, "");
  options.gather_parameters = true;
  const TrainingSummary summary = train(options).summary;
  EXPECT_EQ(summary.parameters_sha256, "");
  EXPECT_EQ(parameters_sha256(summary.parameters), hashed.summary.parameters_sha256);
}

TEST(Trainer, HasNoThreadsButItsLanesAndTheirTeams) {
  const GptConfig gpt{
      .vocab_size = 4096, .context_length = 16, .layers = 1, .heads = 2, .width = 128};
  const Model model = make_gpt(gpt);
  const test::RandomTokens data(gpt.context_length, gpt.vocab_size, false);
  TrainerOptions options = options_for("no_shard", 1);
  options.threads_per_rank = 2;
  options.steps = 3;
  std::thread([] {}).join();  // with the first, ThreadSanitizer starts one of its own
  const int before = test::threads_of_process();
  constexpr int kLauncherRankAndLane = 3;
  Trainer(model, data, options).train([&](const StepRecord&) {
    // The lane's helper, and the rank's, which has set up the state.
    EXPECT_TRUE(test::process_has_threads(before + kLauncherRankAndLane + 2));
    return true;
  });
}

TEST(Trainer, StopsAfterTheStepThatTheCallbackSays) {
  const Model model = tiny_model();
  const TinyData data;
  const Trainer trainer(model, data, options_for("full_shard", 3));
  const TrainingSummary summary =
      trainer.train([](const StepRecord& record) { return record.step < 5; });
  EXPECT_EQ(summary.steps, 5);
  expect_predictions_hold(summary, "stopped");
}

TEST(Trainer, WhatTheCallbackThrowsComesOutAsItIs) {
  struct Own : std::runtime_error {
    using runtime_error::runtime_error;
  };
  const Model model = tiny_model();
  const TinyData data;
  const Trainer trainer(model, data, options_for("zero2", 3));
  const auto run = [&] {
    trainer.train([](const StepRecord& record) -> bool {
      if (record.step == 2) throw Own("mine");
      return true;
    });
  };
  EXPECT_THROW(run(), Own);
}

TEST(Trainer, ARankThatThrowsInAStepIsNamedAndEndsAllOthers) {
  const Model model = tiny_model();
  for (const char* strategy : {"no_shard", "zero1", "full_shard"}) {
    TinyData data;
    // 3 ranks x 2 micro-steps x 4 samples: sample 40 is in the second step.
    data.before_sample = [](std::int64_t sample) {
      if (sample == 40) throw Error(ErrorCode::kIo, "the disk is gone");
    };
    const Trainer trainer(model, data, options_for(strategy, 3));
    const auto begin = std::chrono::steady_clock::now();
    const Error error = error_of([&] { trainer.train(); });
    EXPECT_EQ(error.code(), ErrorCode::kIo) << strategy;
    // Micro-steps are outermost: samples 36..47 are the second micro-step's, 40..43 rank 1's.
    EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 1: "), HasSubstr("the disk is gone")));
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20)) << strategy;
  }
}

TEST(Trainer, WhatABatchSourceThrowsIsToldAsItsOwn) {
  struct DiskError : std::runtime_error {
    using std::runtime_error::runtime_error;
  };
  const Model model = tiny_model();
  TinyData data;
  // 3 ranks x 2 micro-steps x 4 samples: sample 105 is in the fifth step, and rank 2's.
  data.before_sample = [](std::int64_t sample) {
    if (sample == 105) throw DiskError("shard 7 is not there");
  };
  const Trainer trainer(model, data, options_for("full_shard", 3));
  const Error error = error_of([&] { trainer.train(); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);  // no bug of Tessera's
  EXPECT_STREQ(error.what(),
               "rank 2: the batch source failed at step 5, samples 104 to 107: shard 7 is not "
               "there");
  // And the exception itself is at the bottom.
  const auto bottom = [](const std::exception& top, const auto& self) -> std::string {
    try {
      std::rethrow_if_nested(top);
    } catch (const DiskError& own) {
      return own.what();
    } catch (const std::exception& nested) {
      return self(nested, self);
    }
    return "";
  };
  try {
    trainer.train();
  } catch (const std::exception& top) {
    EXPECT_EQ(bottom(top, bottom), "shard 7 is not there");
  }

  data.before_sample = [](std::int64_t) { throw 7; };
  EXPECT_THAT(error_of([&] { trainer.train(); }).what(),
              HasSubstr("the batch source failed at step 1, samples"));
}

// It keeps references: a temporary model would be gone before it trains.
template <typename M, typename Data>
constexpr bool kTrains = std::is_constructible_v<Trainer, M, Data, TrainerOptions>;
static_assert(kTrains<Model&, TinyData&> && kTrains<const Model&, const TinyData&>);
static_assert(!kTrains<Model, TinyData&> && !kTrains<const Model, const BatchSource&>);
static_assert(!kTrains<Model&, TinyData> && !kTrains<const Model&, const TinyData>);
static_assert(!kTrains<Model, TinyData>);

TEST(Trainer, DivergenceEndsTheRunUnlessAllowed) {
  const Model model = tiny_model();
  TinyData data;
  data.poison = true;
  TrainerOptions options = options_for("full_shard", 2);
  const Error error = error_of([&] { Trainer(model, data, options).train(); });
  EXPECT_THAT(error.what(), AllOf(HasSubstr("step 1 has loss nan"), HasSubstr("learning rate")));
  options.allow_non_finite = true;
  EXPECT_EQ(Trainer(model, data, options).train().steps, options.steps);
}

/// Marks the targets of some samples, and may miscount.
class MarkedData : public TinyData {
 public:
  std::function<std::int32_t(std::int64_t sample, std::int32_t target)> mark;
  std::int64_t miscount = 0;
  std::int64_t fill(std::int64_t first, std::int64_t micro_batch, TensorView inputs,
                    TensorView targets) const override {
    TinyData::fill(first, micro_batch, inputs, targets);
    std::int64_t counted = miscount;
    for (std::int64_t i = 0; i < micro_batch; ++i) {
      std::int32_t& target = targets.as<std::int32_t>()[i];
      if (mark) target = mark(first + i, target);
      counted += target == -1 || target == -100 ? 0 : 1;
    }
    return counted;
  }
};

/// 3 ranks x 2 micro-steps x 4 samples: samples 24 to 47 are the second step's, and of those rank 1
/// has 28 to 31 and 40 to 43.
Error error_of_data(const MarkedData& data) {
  const Model model = tiny_model();
  return error_of([&] { Trainer(model, data, options_for("zero2", 3)).train(); });
}

TEST(Trainer, AStepWithoutTargetsEndsTheRun) {
  const Model model = tiny_model();
  MarkedData data;
  data.mark = [](std::int64_t sample, std::int32_t target) {
    return sample >= 24 && sample < 48 ? -1 : target;
  };
  std::int64_t told = 0;
  const Error error = error_of([&] {
    Trainer(model, data, options_for("zero2", 3)).train([&](const StepRecord& record) {
      told = record.step;
      return true;
    });
  });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.what(), HasSubstr("step 2 has no target that counts"));
  EXPECT_EQ(told, 1);  // no loss of 0 is reported
}

TEST(Trainer, AWrongCountOfTargetsNamesTheBatch) {
  MarkedData data;
  data.miscount = 1;
  const Error error = error_of_data(data);
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.what(), HasSubstr("BatchSource::fill returned 5 for samples"));
  EXPECT_THAT(error.what(), HasSubstr("(step 1, micro-step 1), but 4 of their 4 targets count"));
}

TEST(Trainer, TargetsOfPyTorchAreIgnoredLikeOurs) {
  const Model model = tiny_model();
  const auto hash = [&](std::int32_t ignored) {
    MarkedData data;
    data.mark = [ignored](std::int64_t sample, std::int32_t target) {
      return sample % 3 == 0 ? ignored : target;
    };
    return Trainer(model, data, options_for("zero2", 3)).train().parameters_sha256;
  };
  EXPECT_EQ(hash(-100), hash(-1));
}

TEST(Trainer, OtherNegativeTargetsNameTheSample) {
  MarkedData data;
  data.mark = [](std::int64_t sample, std::int32_t target) { return sample == 41 ? -2 : target; };
  EXPECT_THAT(error_of_data(data).what(),
              AllOf(HasSubstr("rank 1: target 1 of samples 40 to 43 is -2"), HasSubstr("-100")));
}

// What is kept of a step would be megabytes after so many.
TEST(Trainer, MemoryDoesNotGrowWithTheSteps) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers have a heap of their own";
#endif
  constexpr std::int64_t kFirst = 2000, kLast = 22000;
  const Model model = tiny_model();
  const TinyData data;
  TrainerOptions options = options_for("full_shard", 1);
  options.steps = kLast;
  options.accumulate = 1;
  options.time_actions = true;
  std::size_t first = 0, last = 0;
  Trainer(model, data, options).train([&](const StepRecord& record) {
    if (record.step == kFirst) first = mallinfo2().uordblks + mallinfo2().hblkhd;
    if (record.step == kLast) last = mallinfo2().uordblks + mallinfo2().hblkhd;
    return true;
  });
  EXPECT_LT(last, first + (kLast - kFirst));  // less than a byte for each step
}

TEST(Trainer, TheSummaryLeavesOutTheFirstStepWhereThereAreThree) {
  for (const std::int64_t steps : {1, 2, 3, 6}) {
    TrainerOptions options = options_for("full_shard", 2);
    options.steps = steps;
    options.learning_rate.warmup_steps = 0;
    options.time_actions = true;
    const Model model = tiny_model();
    const TinyData data;
    double seconds = 0.0, tokens = 0.0, exposed = 0.0;
    const TrainingSummary summary =
        Trainer(model, data, options).train([&](const StepRecord& record) {
          if (steps >= 3 && record.step == 1) return true;
          seconds += record.seconds;
          tokens += static_cast<double>(record.tokens);
          exposed += record.exposed_seconds.value();
          return true;
        });
    const auto counted = static_cast<double>(steps >= 3 ? steps - 1 : steps);
    EXPECT_NEAR(summary.tokens_per_second, tokens / seconds, 1e-6 * tokens / seconds) << steps;
    EXPECT_NEAR(summary.timeline.value().exposed_seconds, exposed / counted, 1e-9) << steps;
  }
}

TEST(Trainer, RefusesOptionsThatCannotWork) {
  const Model model = tiny_model();
  const TinyData data;
  const auto refusal = [&](const std::function<void(TrainerOptions&)>& change) {
    TrainerOptions options = options_for("full_shard", 4);
    change(options);
    const Error error = error_of([&] { Trainer(model, data, options); });
    EXPECT_EQ(error.code(), ErrorCode::kConfig) << error.what();
    return std::string(error.what());
  };
  EXPECT_THAT(refusal([](auto& o) { o.ranks = 0; }),
              HasSubstr("ranks: 0 is out of range; allowed: 1 to"));
  EXPECT_THAT(refusal([](auto& o) { o.steps = 0; }),
              HasSubstr("steps: 0 is out of range; allowed: at least 1"));
  EXPECT_THAT(refusal([](auto& o) { o.micro_batch = -1; }),
              HasSubstr("micro_batch: -1 is out of range"));
  EXPECT_THAT(refusal([](auto& o) { o.accumulate = 0; }),
              HasSubstr("accumulate: 0 is out of range"));
  EXPECT_THAT(refusal([](auto& o) { o.policy.prefetch_forward = -1; }),
              HasSubstr("prefetch_forward"));
  EXPECT_THAT(refusal([](auto& o) { o.precision = DType::kInt32; }),
              HasSubstr("allowed: fp32, bf16"));
  EXPECT_THAT(refusal([](auto& o) { o.optimizer.stochastic_rounding = true; }),
              HasSubstr("leave `optimizer.stochastic_rounding` out"));
  EXPECT_THAT(refusal([](auto& o) { o.reduce_dtype = DType::kBFloat16; }),
              HasSubstr("leave `reduce_dtype` out"));
  EXPECT_THAT(refusal([](auto& o) { o.optimizer.hyperparameters["beta2"] = 1.0; }),
              HasSubstr("beta2: 1.0 is out of range"));
  EXPECT_THAT(refusal([](auto& o) { o.learning_rate.peak = -1; }),
              HasSubstr("learning_rate: -1.0"));
  EXPECT_THAT(refusal([](auto& o) { o.replicas = 8; }), HasSubstr("replicas"));
  EXPECT_THAT(refusal([](auto& o) { o.replicas = 3; }), HasSubstr("replicas"));
  EXPECT_THAT(refusal([](auto& o) { o.strategy = "full_shart"; }), HasSubstr("full_shard"));
  EXPECT_THAT(refusal([](auto& o) {
                o.placement = Placement{{Axis::kShard}, {}, {}};
              }),
              HasSubstr("shard"));
}

TEST(Trainer, RefusesARunAboveTheMemoryLimitAndSaysWhatWouldFit) {
  const Model model = tiny_model(4000);
  const TinyData data;
  TrainerOptions options = options_for("no_shard", 4);
  const auto total = [&](const std::string& strategy) {
    TrainerOptions other = options;
    other.strategy = strategy;
    return make_training_plan({model, data}, other).memory.total;
  };
  ASSERT_LT(total("zero2"), total("zero1"));
  options.memory_limit_bytes = total("zero2");
  const Error error = error_of([&] { Trainer(model, data, options); });
  EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("optimizer "), HasSubstr("limit"),
                                  HasSubstr("this would fit: `strategy` zero2")));
  options.strategy = "zero2";
  EXPECT_EQ(Trainer(model, data, options).train().steps, options.steps);  // and it does
}

TEST(Trainer, RefusesARunAboveWhatTheMachineHas) {
  const Model model = tiny_model(4000);
  const TinyData data;
  const TrainingPlan plan = make_training_plan({model, data}, options_for("zero1", 4));
  EXPECT_NO_THROW(require_memory(plan, plan.memory.total * 4));
  const Error error = error_of([&] { require_memory(plan, plan.memory.total * 4 - 4); });
  EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
  EXPECT_THAT(error.what(), HasSubstr("this machine has free"));
  const Error hopeless = error_of([&] { require_memory(plan, 1000); });
  EXPECT_THAT(hopeless.what(), HasSubstr("no strategy, recomputation, micro-batch or lower"));

  TrainerOptions limited = options_for("zero1", 4);
  limited.memory_limit_bytes = 1000;
  const Error each = error_of([&] { Trainer(model, data, limited); });
  EXPECT_THAT(each.what(), AllOf(HasSubstr("no strategy, recomputation or micro-batch would fit"),
                                 HasSubstr("add ranks")));
}

TEST(Trainer, SaysWithHowManyRanksARunWouldFit) {
  const Model model = tiny_model(40);
  const TinyData data;
  TrainerOptions options = options_for("full_shard", 6);
  options.policy.recompute = Recompute::kFull;
  options.accumulate = 2;
  TrainerOptions fewer = options;
  fewer.ranks = 3;
  fewer.accumulate = 4;
  const std::int64_t free = make_training_plan({model, data}, fewer).memory.total * 3;
  const TrainingPlan plan = make_training_plan({model, data}, options);
  ASSERT_GT(plan.memory.total * 6, free);
  const Error error = error_of([&] { require_memory(plan, free); });
  EXPECT_THAT(error.what(), HasSubstr("this would fit: `ranks` 3 `accumulate` 4"));
}

TEST(Trainer, SaysWithWhichMicroBatchARunWouldFit) {
  const Model model = tiny_model(64);
  const TinyData data;
  TrainerOptions options = options_for("full_shard", 1);
  options.policy.recompute = Recompute::kFull;
  options.micro_batch = 15;
  options.accumulate = 1;
  TrainerOptions smaller = options;
  smaller.micro_batch = 5;
  smaller.accumulate = 3;
  options.memory_limit_bytes = make_training_plan({model, data}, smaller).memory.total;
  const Error error = error_of([&] { Trainer(model, data, options); });
  EXPECT_THAT(error.what(), HasSubstr("this would fit: `micro_batch` 5 `accumulate` 3"));
}

TEST(TrainingPlan, MoreRanksThanElements) {
  Model model;
  model.layers.push_back(
      std::make_unique<test::DenseLayer>("only", test::kFeatures, test::kClasses, true));
  const TinyData data;
  const Trainer trainer(model, data, options_for("full_shard", 7));
  expect_predictions_hold(trainer.train(), "7 ranks");
}

}  // namespace
}  // namespace tessera::trainer_test
