#include "tessera/trainer/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <stdexcept>
#include <thread>

#include "support/small_run.h"
#include "support/tiny_model.h"
#include "tessera/core/error.h"
#include "tessera/trainer/parameter_hash.h"
#include "tessera/trainer/trainer.h"

// Training under the caller's own loop, and evaluations in between.
namespace tessera::session_test {
namespace {

using test::tiny_model;
using test::TinyData;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::int64_t kSteps = 8;

/// A step of 16 samples on 1, 2 or 4 ranks; 10 samples of an evaluation, which fill no batch.
TrainerOptions session_options(const std::string& strategy, int ranks) {
  TrainerOptions options;
  options.strategy = strategy;
  options.ranks = ranks;
  options.steps = kSteps;
  options.micro_batch = 4;
  options.accumulate = 4 / ranks;
  options.optimizer.clip_norm = 0.7;
  options.learning_rate.peak = 0.03;
  options.learning_rate.warmup_steps = 2;
  options.threads_per_rank = 1;
  options.timeout = std::chrono::seconds(60);
  options.evaluation_samples = 10;
  return options;
}

/// What must be the same from run to run.
struct Numbers {
  std::vector<double> losses, norms, rates;
  std::string sha256;
  friend bool operator==(const Numbers&, const Numbers&) = default;
  void add(const StepRecord& record) {
    losses.push_back(record.loss);
    norms.push_back(record.gradient_norm);
    rates.push_back(record.learning_rate);
  }
};

Numbers of_trainer(const Model& model, const BatchSource& data, const TrainerOptions& options) {
  Numbers numbers;
  numbers.sha256 = Trainer(model, data, options)
                       .train([&](const StepRecord& record) {
                         numbers.add(record);
                         return true;
                       })
                       .parameters_sha256;
  return numbers;
}

/// Takes all steps; calls `before_step` before each and after the last.
Numbers of_session(
    Session& session, const std::function<void()>& before_step = [] {}) {
  Numbers numbers;
  before_step();
  while (const auto record = session.step()) {
    numbers.add(*record);
    before_step();
  }
  numbers.sha256 = parameters_sha256(session.parameters());
  return numbers;
}

template <typename Body>
Error error_of_session(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "nothing was thrown";
  return Error(ErrorCode::kInternal, "");
}

TEST(Session, ALoopOfOnesOwnTrainsAsTrainerDoes) {
  const Model model = tiny_model();
  const TinyData data;
  for (const char* strategy : {"no_shard", "zero2", "full_shard"}) {
    for (const int ranks : {1, 3}) {
      TrainerOptions options = session_options(strategy, ranks);
      options.accumulate = 2;
      Session session(model, data, options);
      EXPECT_EQ(of_session(session), of_trainer(model, data, options)) << strategy << ranks;
      EXPECT_EQ(session.steps(), kSteps);
      EXPECT_FALSE(session.step().has_value());  // and stays at its end
      EXPECT_EQ(session.steps(), kSteps);
    }
  }
}

TEST(Session, StepsAreTakenAtALearningRateOfOnesOwn) {
  const Model model = tiny_model();
  const TinyData data;
  const TrainerOptions options = session_options("full_shard", 2);
  const auto rate = [](std::int64_t step) { return step % 2 == 0 ? 0.02 : 0.005; };
  Session session(model, data, options);
  Numbers own;
  while (const auto record = session.step(rate(session.steps()))) own.add(*record);
  ASSERT_EQ(session.steps(), kSteps);
  for (std::int64_t step = 0; step < kSteps; ++step) {
    EXPECT_EQ(own.rates[static_cast<std::size_t>(step)], rate(step));
  }
  // The schedule's own rates, given by hand, are the schedule.
  Session planned(model, data, options), given(model, data, options);
  const LearningRateSchedule& schedule = given.plan().options.learning_rate;
  Numbers by_hand;
  while (const auto record = given.step(schedule.at(given.steps()))) by_hand.add(*record);
  by_hand.sha256 = parameters_sha256(given.parameters());
  EXPECT_EQ(by_hand, of_session(planned));
  EXPECT_NE(own.losses, by_hand.losses);
  // A rate of 0 moves nothing, nor does its decay.
  Session still(model, data, options);
  const std::string before = parameters_sha256(still.parameters());
  ASSERT_TRUE(still.step(0.0).has_value());
  EXPECT_EQ(parameters_sha256(still.parameters()), before);
}

TEST(Session, StopsFromWithinTheLoop) {
  const Model model = tiny_model();
  const TinyData data;
  Session session(model, data, session_options("full_shard", 2));
  std::int64_t taken = 0;
  while (const auto record = session.step()) {
    taken = record->step;
    if (record->step == 3) session.stop();
  }
  EXPECT_EQ(taken, 3);
  EXPECT_EQ(session.steps(), 3);
  EXPECT_FALSE(session.step(0.1).has_value());
  EXPECT_EQ(session.parameters().size(), 6U);  // all else goes on
}

TEST(Session, StopsFromAnotherThread) {
  const Model model = tiny_model();
  const TinyData data;
  TrainerOptions options = session_options("zero1", 2);
  options.steps = 100'000'000;
  Session session(model, data, options);
  std::atomic<std::int64_t> seen = 0;
  std::thread other([&] {
    while (seen < 3) std::this_thread::yield();
    session.stop();
  });
  while (const auto record = session.step()) seen = record->step;
  other.join();
  EXPECT_GE(session.steps(), 3);
  EXPECT_EQ(session.steps(), seen);
}

// ---- Steps that overlap ---------------------------------------------------------------------

TrainerOptions overlapping_options(const std::string& strategy, int ranks) {
  TrainerOptions options = session_options(strategy, ranks);
  options.overlap_steps = true;
  return options;
}

TEST(SessionAhead, GivesTheRecordsAndBitsOfStepsInTurn) {
  const Model model = tiny_model();
  const TinyData data;
  for (const char* strategy : {"no_shard", "zero2", "full_shard", "hybrid_shard"}) {
    SCOPED_TRACE(strategy);
    const Numbers expected = of_trainer(model, data, session_options(strategy, 4));
    EXPECT_EQ(of_trainer(model, data, overlapping_options(strategy, 4)), expected);
    Session session(model, data, overlapping_options(strategy, 4));
    Numbers numbers;
    // Ahead or not, as one likes.
    for (std::int64_t step = 1; step <= kSteps; ++step) {
      const auto record = step % 3 == 0 ? session.step() : session.step_ahead();
      ASSERT_TRUE(record.has_value());
      EXPECT_EQ(record->step, step);
      numbers.add(*record);
    }
    EXPECT_FALSE(session.step_ahead().has_value());
    numbers.sha256 = parameters_sha256(session.parameters());
    EXPECT_EQ(numbers, expected);
  }
}

TEST(SessionAhead, AsksForTheStepThatHasBegunFirst) {
  const Model model = tiny_model();
  const TinyData data, held_out;
  Session session(model, data, overlapping_options("full_shard", 2), &held_out);
  ASSERT_TRUE(session.step_ahead().has_value());
  for (const std::function<void()>& call : std::vector<std::function<void()>>{
           [&] { session.parameters(); }, [&] { session.evaluate(); }, [&] { session.use(); },
           [&] { session.step(0.1); }}) {
    EXPECT_THAT(error_of_session(call).what(), HasSubstr("a step has begun"));
  }
  EXPECT_NO_THROW(session.notes());
  ASSERT_TRUE(session.step().has_value());
  EXPECT_EQ(session.steps(), 2);
  EXPECT_FALSE(session.parameters().empty());
}

TEST(SessionAhead, StopsAfterTheStepThatHasBegun) {
  const Model model = tiny_model();
  const TinyData data;
  Session session(model, data, overlapping_options("zero1", 2));
  while (const auto record = session.step_ahead()) {
    if (record->step == 3) session.stop();
  }
  EXPECT_EQ(session.steps(), 4);
  EXPECT_EQ(session.parameters().size(), 6U);
}

TEST(SessionAhead, EvaluationsComeBetweenTheStepsThatTheyFollow) {
  const Model model = tiny_model();
  const TinyData data, held_out;
  std::vector<std::vector<double>> losses;
  for (const bool overlap : {false, true}) {
    TrainerOptions options =
        overlap ? overlapping_options("zero2", 2) : session_options("zero2", 2);
    options.evaluate_every = 3;
    losses.emplace_back();
    const Trainer trainer(model, data, options, &held_out);
    const TrainingSummary summary = trainer.train(
        {}, {}, [&](const EvaluationRecord& record) { losses.back().push_back(record.loss); });
    EXPECT_EQ(summary.predicted_memory, summary.measured_memory);
    for (const Traffic& counted : summary.counted_traffic) {
      EXPECT_EQ(counted, summary.predicted_traffic);
    }
  }
  EXPECT_EQ(losses[0].size(), 3U);
  EXPECT_EQ(losses[0], losses[1]);
}

TEST(SessionAhead, IsRefusedTogetherWithATrace) {
  TrainerOptions options = overlapping_options("zero2", 2);
  options.time_actions = true;
  const Model model = tiny_model();
  const TinyData data;
  EXPECT_THAT(error_of_session([&] { Session(model, data, options); }).what(),
              HasSubstr("overlap_steps and time_actions"));
}

// ---- Parameters and evaluations ---------------------------------------------------------------

TEST(Session, ParametersThatAreSetAreThoseThatAreRead) {
  const Model model = tiny_model();
  const TinyData data;
  for (const DType precision : {DType::kFloat32, DType::kBFloat16}) {
    TrainerOptions options = session_options("full_shard", 2);
    options.precision = precision;
    Session trained(model, data, options, &data);
    while (trained.step()) {
    }
    const std::vector<FullParameter> all = trained.parameters();
    const EvaluationRecord evaluation = trained.evaluate();
    // Into a session of another strategy and another number of ranks.
    TrainerOptions others = session_options("zero2", 4);
    others.precision = precision;
    others.seed = 9;
    Session session(model, data, others, &data);
    EXPECT_NE(session.evaluate().loss, evaluation.loss);
    session.set_parameters([&](const std::string& name) -> std::span<const float> {
      return std::ranges::find(all, name, &FullParameter::name)->values;
    });
    EXPECT_TRUE(test::same_bits(session.parameters(), all));
    EXPECT_EQ(session.evaluate().loss, evaluation.loss);
    std::vector<std::string> names;
    session.parameters([&](FullParameter parameter) {
      EXPECT_EQ(parameter.shape.numel(), static_cast<std::int64_t>(parameter.values.size()));
      names.push_back(parameter.name);
    });
    EXPECT_THAT(names, ::testing::ElementsAre("first.weight", "first.bias", "second.weight",
                                              "second.bias", "last.weight", "last.bias"));
  }
}

TEST(Session, EvaluationsChangeNoBitOfTheTraining) {
  const Model model = make_gpt(test::small_gpt(0.1F));
  const test::RandomTokens data(11, 61, true);
  const test::RandomTokens held_out(11, 61, false);
  for (const char* strategy : {"no_shard", "full_shard"}) {
    for (const DType precision : {DType::kFloat32, DType::kBFloat16}) {
      TrainerOptions options = session_options(strategy, 2);
      options.precision = precision;
      const Numbers plain = of_trainer(model, data, options);
      Session session(model, data, options, &held_out);
      std::vector<std::int64_t> steps;
      const Numbers evaluated = of_session(session, [&] {
        const EvaluationRecord first = session.evaluate();
        const EvaluationRecord again = session.evaluate();
        EXPECT_EQ(first.loss, again.loss);
        EXPECT_EQ(first.tokens, 10 * 11);
        EXPECT_EQ(first.perplexity, std::exp(first.loss));
        steps.push_back(first.step);
      });
      EXPECT_EQ(evaluated, plain) << strategy;
      EXPECT_THAT(steps, ::testing::ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8));
    }
  }
}

TEST(Session, AnEvaluationHasNoDropout) {
  const test::RandomTokens data(11, 61, true);
  const auto loss = [&](float dropout) {
    const Model model = make_gpt(test::small_gpt(dropout));
    Session session(model, data, session_options("zero1", 2), &data);
    return session.evaluate().loss;
  };
  EXPECT_EQ(loss(0.5F), loss(0.0F));
}

TEST(Session, AnEvaluationIsTheSameForAllStrategiesAndRanks) {
  const Model model = make_gpt(test::small_gpt());
  const test::RandomTokens data(11, 61, true);
  for (const DType precision : {DType::kFloat32, DType::kBFloat16}) {
    // Parameters that are trained, so that no two are alike.
    TrainerOptions options = session_options("no_shard", 1);
    options.precision = precision;
    Session trained(model, data, options, &data);
    while (trained.step()) {
    }
    const std::vector<FullParameter> parameters = trained.parameters();
    const EvaluationRecord expected = trained.evaluate();
    for (const Strategy& strategy : strategies()) {
      for (const int ranks : {1, 2, 3, 4}) {
        TrainerOptions other = session_options(strategy.name, ranks);
        other.precision = precision;
        Session session(model, data, other, &data);
        session.set_parameters([&](const std::string& name) -> std::span<const float> {
          return std::ranges::find(parameters, name, &FullParameter::name)->values;
        });
        const EvaluationRecord record = session.evaluate();
        EXPECT_EQ(record.loss, expected.loss) << strategy.name << " on " << ranks;
        EXPECT_EQ(record.tokens, expected.tokens) << strategy.name << " on " << ranks;
      }
    }
  }
}

TEST(Session, WithoutDataToEvaluateWithThereIsAClearError) {
  const Model model = tiny_model();
  const TinyData data;
  Session session(model, data, session_options("full_shard", 2));
  const Error error = error_of_session([&] { session.evaluate(); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.what(), HasSubstr("no data to evaluate with"));
  EXPECT_TRUE(session.step().has_value());  // nothing has happened
  // A plan without an evaluation has a session without one.
  const TrainingPlan plan = make_training_plan({model, data}, session_options("full_shard", 2));
  Session planned(plan);
  EXPECT_THAT(error_of_session([&] { planned.evaluate(); }).what(),
              HasSubstr("no data to evaluate with"));
}

TEST(Session, AnEvaluationOfNoSamplesIsRefused) {
  const Model model = tiny_model();
  const TinyData data;
  TrainerOptions options = session_options("full_shard", 2);
  options.evaluation_samples = 0;
  const Error error = error_of_session([&] { Session(model, data, options, &data); });
  EXPECT_EQ(error.code(), ErrorCode::kConfig);
  EXPECT_THAT(error.what(), HasSubstr("evaluation_samples"));
}

TEST(Session, ABatchSourceThatThrowsEndsTheCallWithTheCause) {
  struct DiskError : std::runtime_error {
    using std::runtime_error::runtime_error;
  };
  const Model model = tiny_model();
  const auto begin = std::chrono::steady_clock::now();
  for (const bool in_evaluation : {false, true}) {
    TinyData data, held_out;
    (in_evaluation ? held_out : data).before_sample = [&](std::int64_t sample) {
      if (sample == (in_evaluation ? 9 : 40)) throw DiskError("shard 7 is not there");
    };
    Session session(model, data, session_options("full_shard", 4), &held_out);
    ASSERT_TRUE(session.step().has_value());
    ASSERT_TRUE(session.step().has_value());
    const Error error =
        error_of_session([&] { in_evaluation ? (void)session.evaluate() : (void)session.step(); });
    EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 2: the batch source failed at"),
                                    HasSubstr("shard 7 is not there")));
    EXPECT_EQ(session.steps(), 2);
    // Another call is no use, but no hang either.
    EXPECT_THROW(session.step(), Error);
    EXPECT_THROW(session.parameters(), Error);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(40));
}

TEST(Session, ARankThatThrowsEndsTheCallWithTheCause) {
  const Model model = tiny_model();
  const TinyData data;
  const auto begin = std::chrono::steady_clock::now();
  {
    Session session(model, data, session_options("zero2", 4));
    EXPECT_THAT(error_of_session([&] {
                  session.set_parameters([](const std::string& name) -> std::span<const float> {
                    if (name == "second.weight") throw Error(ErrorCode::kIo, "no such tensor");
                    static const std::vector<float> zeros(100);
                    return std::span(zeros).first(name == "first.weight"  ? 65
                                                  : name == "first.bias"  ? 13
                                                  : name == "second.bias" ? 7
                                                  : name == "last.weight" ? 21
                                                                          : 3);
                  });
                }).what(),
                HasSubstr("no such tensor"));
  }
  {
    Session session(model, data, session_options("full_shard", 4));
    ASSERT_TRUE(session.step().has_value());
    struct Own : std::runtime_error {
      using std::runtime_error::runtime_error;
    };
    EXPECT_THAT(error_of_session([&] {
                  session.parameters([](FullParameter p) { throw Own("no space for " + p.name); });
                }).what(),
                HasSubstr("no space for first.weight"));
  }
  {
    Session session(model, data, session_options("full_shard", 2));
    session.abort("the caller gives up");
    EXPECT_THAT(error_of_session([&] { session.step(); }).what(), HasSubstr("the caller gives up"));
  }
  {
    // Where they start already.
    TrainerOptions options = session_options("full_shard", 2);
    options.memory_limit_bytes = 1000;
    EXPECT_EQ(error_of_session([&] { Session(model, data, options); }).code(),
              ErrorCode::kOutOfMemory);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(40));
}

/// Gives its session up in the third pass that it sees.
class GivingUp : public test::DenseLayer {
 public:
  GivingUp() : DenseLayer("first", test::kFeatures, 13, false) {}
  Value forward(Tape& tape, const Value& input, std::span<Parameter> parameters) const override {
    if (session != nullptr && ++passes == 3) session->abort("that is enough");
    return DenseLayer::forward(tape, input, parameters);
  }
  Session* session = nullptr;
  mutable int passes = 0;
};

TEST(Session, GivenUpEndsAtTheNextActionOfAStep) {
  Model model = tiny_model();
  auto layer = std::make_unique<GivingUp>();
  GivingUp& first = *layer;
  model.layers.front() = std::move(layer);
  const TinyData data;
  TrainerOptions options = session_options("full_shard", 1);
  options.accumulate = 50;
  Session session(model, data, options);
  first.session = &session;
  EXPECT_THAT(error_of_session([&] { session.step(); }).what(), HasSubstr("that is enough"));
  EXPECT_EQ(first.passes, 3);
}

TEST(Session, OneAfterTheOtherAndTwoAtOnce) {
  const Model model = tiny_model();
  const TinyData data;
  const TrainerOptions options = session_options("full_shard", 2);
  Numbers first;
  {
    Session session(model, data, options);
    first = of_session(session);
  }
  {
    Session unused(model, data, options);  // ends without a call
  }
  Session a(model, data, options), b(model, data, session_options("zero2", 4));
  Numbers of_a, of_b;
  for (;;) {
    const auto record_a = a.step(), record_b = b.step();
    if (!record_a || !record_b) break;
    of_a.add(*record_a);
    of_b.add(*record_b);
  }
  of_a.sha256 = parameters_sha256(a.parameters());
  of_b.sha256 = parameters_sha256(b.parameters());
  EXPECT_EQ(of_a, first);
  EXPECT_EQ(of_b, first);  // zero2 on four ranks adds in the same order
}

TEST(Session, UsesWhatThePlanHasPredicted) {
  const Model model = make_gpt(test::small_gpt());
  const test::RandomTokens data(11, 61, true);
  for (const Strategy& strategy : strategies()) {
    for (const int ranks : {1, 2, 4}) {
      TrainerOptions options = session_options(strategy.name, ranks);
      options.micro_batch = 2;
      Session session(model, data, options, &data);
      constexpr int kTaken = 3, kEvaluations = 2;
      for (int i = 0; i < kTaken; ++i) session.step();
      for (int i = 0; i < kEvaluations; ++i) session.evaluate();
      Traffic predicted;
      for (int i = 0; i < kTaken; ++i) predicted += session.plan().traffic;
      for (int i = 0; i < kEvaluations; ++i) predicted += session.plan().evaluation_traffic;
      const std::vector<RankUse> use = session.use();
      ASSERT_EQ(use.size(), static_cast<std::size_t>(ranks));
      for (const RankUse& rank : use) {
        EXPECT_EQ(rank.memory, session.plan().memory) << strategy.name << " on " << ranks;
        EXPECT_EQ(rank.traffic, predicted) << strategy.name << " on " << ranks;
      }
    }
  }
}

TEST(Session, TrainerEvaluatesWhenItIsDueAndPredictsIt) {
  const Model model = tiny_model();
  const TinyData data, held_out;
  for (const std::int64_t steps : {8, 9}) {
    TrainerOptions options = session_options("full_shard", 2);
    options.steps = steps;
    options.evaluate_every = 3;
    std::vector<std::int64_t> at;
    std::vector<double> losses;
    const Trainer trainer(model, data, options, &held_out);
    const TrainingSummary summary = trainer.train({}, {}, [&](const EvaluationRecord& record) {
      at.push_back(record.step);
      losses.push_back(record.loss);
    });
    EXPECT_EQ(at, steps == 8 ? (std::vector<std::int64_t>{3, 6, 8})
                             : (std::vector<std::int64_t>{3, 6, 9}));
    EXPECT_LT(losses.back(), losses.front());
    ASSERT_TRUE(summary.evaluation.has_value());
    EXPECT_EQ(summary.evaluation->step, steps);
    EXPECT_EQ(summary.evaluation->loss, losses.back());
    EXPECT_EQ(summary.predicted_memory, summary.measured_memory);
    for (const Traffic& counted : summary.counted_traffic) {
      EXPECT_EQ(counted, summary.predicted_traffic);
    }
    EXPECT_EQ(summary.parameters_sha256, of_trainer(model, data, options).sha256);
  }
}

}  // namespace
}  // namespace tessera::session_test
