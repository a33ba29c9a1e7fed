#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <thread>

#include "sharding/schedule_mutants.h"
#include "support/extent.h"
#include "support/folder_in_memory.h"
#include "support/grid.h"
#include "support/happens_before.h"
#include "support/tied_chain.h"
#include "tessera/sharding/gradient_sums.h"

// No mutant of a schedule may both pass validate() and do harm: those that pass are run on CPU
// ranks under random delays. Their recorded times must show no race, and losses, norms and every
// byte of the training state must be the original's.
namespace tessera::test::mutation_test {
namespace {

using ::testing::HasSubstr;

constexpr int kWorkers = 4;
constexpr int kSteps = 3;
constexpr std::chrono::minutes kTimeout{2};  // of a collective: a mutant that hangs
constexpr std::chrono::microseconds kLongestDelay{150};

int mutants_per_plan() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return 2;
#else
  return runs_long_tests() ? 20 : 5;
#endif
}

/// A plan, and the model that it is for.
struct Subject {
  std::string name;
  SmallRun run;
  Purpose purpose = Purpose::kTrain;
  int layers = 3;
  bool trains_first = true;
  bool overlaps = false;  ///< the optimizer has a lane of its own
  bool snapshot = false;  ///< each step copies the state to the host
};

/// What is left when a schedule has run.
struct Outcome {
  std::string failure;  ///< what was thrown
  std::vector<double> losses, norms;
  std::vector<std::string> states;  ///< by rank: every byte
  std::vector<std::string> races;
  bool changed = false;  ///< the state, on some rank (others may have padding alone)

  bool same(const Outcome& other) const {
    return failure.empty() && losses == other.losses && norms == other.norms &&
           states == other.states;
  }
};

std::string bytes_of(const TrainingState& state) {
  std::string bytes;
  for (const StateTensor& tensor : state) {
    if (tensor.tier == Tier::kDisk) {
      std::string read(static_cast<std::size_t>(tensor.view.bytes()), '\0');
      state.disk()->read(tensor.extent, std::as_writable_bytes(std::span(read)));
      bytes += read;
      continue;
    }
    bytes.append(reinterpret_cast<const char*>(tensor.view.data),
                 static_cast<std::size_t>(tensor.view.bytes()));
  }
  return bytes;
}

std::vector<ActionTime> times_of(const std::vector<ActionSpan>& spans) {
  std::vector<ActionTime> times;
  for (const ActionSpan& span : spans) {
    times.push_back({span.action, span.begin, span.end, span.step});
  }
  return times;
}

/// Runs schedules of one subject.
class Runner {
 public:
  explicit Runner(const Subject& subject)
      : model_(make_tied(subject.layers, subject.trains_first)),
        source_(subject.run.dtype),
        layout_(make_layout(model_, subject.run.wrap, subject.run.ranks)) {
    PlanOptions options = plan_options(subject.run);
    options.purpose = subject.purpose;
    options.overlap_optimizer = subject.overlaps;
    if (subject.run.offload_activations) {
      options.offload_activations = layer_input_numels(
          model_, layout_, source_, ExecutorOptions{}.micro_batch, subject.run.dtype);
    }
    schedule_ = plan(layout_, options);
    if (subject.snapshot) schedule_ = with_snapshot(schedule_, true);
  }
  const Schedule& schedule() const { return schedule_; }

  /// Of a rank: what runs before the tasks of its lanes.
  using Delays = std::function<std::function<void(Lane)>(int rank)>;
  /// The times of `schedule` are held against `judge`.
  Outcome run(const Schedule& schedule, const Schedule& judge, const Delays& delays) const;
  Outcome run(const Schedule& schedule, std::uint32_t seed) const {
    return run(schedule, schedule,
               [&](int rank) { return random_delays(seed, rank, kLongestDelay); });
  }
  /// The same in virtual time.
  std::vector<Violation> simulate_times(const Schedule& schedule, const Schedule& judge,
                                        Lane slow) const;

 private:
  void run_rank(const Schedule& schedule, const Schedule& judge, int rank, ProcessGroup& world,
                ExecutorOptions options, Outcome& outcome, std::mutex& mutex) const;

  Model model_;
  RandomVectors source_;
  ModelLayout layout_;
  Schedule schedule_;
};

Outcome Runner::run(const Schedule& schedule, const Schedule& judge, const Delays& delays) const {
  Outcome outcome;
  outcome.states.resize(static_cast<std::size_t>(schedule.mesh.world_size()));
  std::mutex mutex;
  try {
    const auto world = make_thread_group(schedule.mesh.world_size(), {.timeout = kTimeout});
    launch_ranks(world, [&](int rank, ProcessGroup& group) {
      ExecutorOptions options;
      options.optimizer.clip_norm = 0.5;
      options.seed = 42;
      options.before_task = delays(rank);
      options.trace = true;
      options.steps_in_flight = 2;
      run_rank(schedule, judge, rank, group, options, outcome, mutex);
    });
  } catch (const std::exception& error) {
    outcome.failure = error.what();
  }
  return outcome;
}

std::vector<Violation> Runner::simulate_times(const Schedule& schedule, const Schedule& judge,
                                              Lane slow) const {
  ExecutorOptions options{.steps_in_flight = 2};
  options.cost = [slow](const Schedule&, const Action& action) {
    return action.lane == slow ? 1.0 : 0.001;
  };
  const Simulation run = simulate(schedule, layout_, model_, source_, options);
  return validate_times(judge, times_of(run.spans));
}

void Runner::run_rank(const Schedule& schedule, const Schedule& judge, int rank,
                      ProcessGroup& world, ExecutorOptions options, Outcome& outcome,
                      std::mutex& mutex) const {
  const auto device = make_cpu_device();
  Memory memory(*device);
  RankGroups groups = RankGroups::split_from(world, schedule);
  FaultyCalls calls;  // which has no faults, but takes folders in memory
  calls.plain_queues = true;
  TrainingState state(
      layout_, state_options(schedule_), rank, memory,
      {.folder = folder_in_memory().string(), .block_bytes = kDiskAlignment, .calls = &calls});
  Executor executor(state, model_, {{&schedule, &source_}}, groups, memory, std::move(options));
  const std::string before = bytes_of(state);
  // Each step begins before the one before it is finished.
  executor.begin_step(0, kRate);
  for (int step = 0; step < kSteps; ++step) {
    if (step + 1 < kSteps) executor.begin_step(step + 1, kRate);
    const StepResult result = executor.finish_step();
    const std::lock_guard lock(mutex);
    if (rank != 0) continue;
    outcome.losses.push_back(result.loss);
    outcome.norms.push_back(result.gradient_norm);
  }
  const std::vector<Violation> races = validate_times(judge, times_of(executor.spans()));
  std::string after = bytes_of(state);
  const bool changed = before != after;
  for (const StateTensor& tensor : state) {
    if (schedule.find(tensor.name + "@snapshot") < 0) continue;
    const TensorView copy = executor.snapshot(0, tensor.name);
    after.append(reinterpret_cast<const char*>(copy.data), static_cast<std::size_t>(copy.bytes()));
  }
  const std::lock_guard lock(mutex);
  for (const Violation& race : races) outcome.races.push_back(race.message);
  outcome.changed = outcome.changed || changed;
  outcome.states[static_cast<std::size_t>(rank)] = std::move(after);
}

/// Every preset x mesh x prefetch depth x accumulation x recomputation; the rest is drawn.
std::vector<Subject> subjects() {
  std::vector<Subject> all;
  std::mt19937 random(1);
  const auto draw = [&](int below) {
    return static_cast<int>(random() % static_cast<unsigned>(below));
  };
  for (const Strategy& strategy : strategies()) {
    for (const Mesh mesh : {grid(1, 1), grid(1, 2), grid(1, 3), grid(1, 4), grid(2, 2)}) {
      for (const int depth : {0, 1, 2}) {
        for (const auto& [micro_steps, unsharded] : {std::pair{1, false}, {2, false}, {2, true}}) {
          for (const Recompute recompute :
               {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
            const bool bf16 = draw(2) == 0;
            WrapPolicy wrap;
            if (draw(4) == 0) wrap.kind = WrapPolicy::Kind::kNone;
            if (draw(4) == 0) wrap = {WrapPolicy::Kind::kSize, 200};
            Subject s{
                .name = {},
                .run = {.ranks = mesh.world_size(),
                        .replicas = mesh.size(Axis::kReplicate),
                        .strategy = strategy.name,
                        .micro_steps = micro_steps,
                        .policy = {depth, draw(2) == 0 ? depth : draw(3), recompute},
                        .accumulate_unsharded = unsharded,
                        .reduction_order =
                            draw(2) == 0 ? ReductionOrder::kRank : ReductionOrder::kHierarchical,
                        .dtype = bf16 ? DType::kBFloat16 : DType::kFloat32,
                        .reduce_dtype = bf16 && draw(2) == 0 ? DType::kBFloat16 : DType::kFloat32,
                        .wrap = wrap},
                .purpose = draw(10) == 0 ? Purpose::kEvaluate : Purpose::kTrain,
                .layers = 2 + draw(2),
                .trains_first = draw(6) != 0,
                .overlaps = draw(2) == 0};
            s.snapshot = s.purpose == Purpose::kTrain && draw(4) == 0;
            s.run.offload_optimizer =
                std::array{0.0, 0.0, 0.5, 1.0}[static_cast<std::size_t>(draw(4))];
            if (draw(3) == 0) s.run.offload_parameters = draw(2) == 0 ? 0.5 : 1.0;
            if (draw(4) == 0) s.run.disk_parameters = draw(2) == 0 ? 0.5 : 1.0;
            s.run.offload_gradients =
                std::array{0.0, 0.0, 0.5, 1.0}[static_cast<std::size_t>(draw(4))];
            s.run.disk_optimizer =
                std::array{0.0, 0.0, 0.0, 0.5, 1.0}[static_cast<std::size_t>(draw(5))];
            s.run.policy.prefetch_disk = draw(3);
            s.run.policy.split_backward = all.size() % 3 == 1;
            s.run.offload_activations = recompute == Recompute::kFull &&
                                        s.purpose == Purpose::kTrain && all.size() % 4 != 0;
            if (s.run.offload_activations) {  // of layers enough that some inputs leave
              s.layers += 2;
              s.run.policy.prefetch_host = static_cast<int>(all.size() % 2);
            }
            s.name = concat(strategy.name, ' ', shape_of(mesh), ", depth ", depth, ' ',
                            s.run.policy.prefetch_backward, ", ", micro_steps, " micro-steps, ",
                            unsharded ? "unsharded, " : "", to_string(recompute), ", ",
                            to_string(s.run.dtype), '/', to_string(s.run.reduce_dtype), ", ",
                            to_string(s.run.reduction_order), ", ", to_string(s.purpose), ", ",
                            s.layers, " layers", s.overlaps ? ", overlapping" : "",
                            s.snapshot ? ", with snapshots" : "", ", offloaded ",
                            s.run.offload_optimizer, ", ", s.run.offload_parameters, " and ",
                            s.run.offload_gradients, ", on disk ", s.run.disk_optimizer, " and ",
                            s.run.disk_parameters, s.run.offload_activations ? ", activations" : "",
                            s.run.policy.split_backward ? ", split" : "");
            all.push_back(std::move(s));
          }
        }
      }
    }
  }
  return all;
}

/// What became of the mutants.
struct Tally {
  std::int64_t plans = 0, made = 0, ran = 0, other_sums = 0;
  std::map<std::string, std::int64_t> refused;                    ///< by rule
  std::array<std::array<std::int64_t, 2>, kMutations> by_kind{};  ///< refused, ran
  std::vector<std::string> harmful;
};

class Trial {
 public:
  Trial(const Subject& subject, std::uint32_t seed)
      : subject_(subject), seed_(seed), runner_(subject), mutator_(seed) {}

  void run(Tally& tally, std::mutex& mutex);

 private:
  struct Mutant {
    Schedule schedule;
    int changes = 0;
    std::string what;
  };
  /// A change of the original, or of a mutant that passed.
  std::optional<Mutant> make(Mutation& kind);
  std::string harm_of(const Mutant& mutant, const Outcome& expected) const;

  const Subject& subject_;
  const std::uint32_t seed_;
  const Runner runner_;
  Mutator mutator_;
  std::vector<Mutant> passed_;
  std::set<std::string> seen_;
};

std::optional<Trial::Mutant> Trial::make(Mutation& kind) {
  kind = static_cast<Mutation>(mutator_.below(kMutations));
  const Mutant original{runner_.schedule(), 0, ""};
  const bool again = !passed_.empty() && mutator_.once_in(3);
  const Mutant& base =
      again ? passed_[static_cast<std::size_t>(mutator_.below(passed_.size()))] : original;
  if (base.changes >= 4) return std::nullopt;
  std::optional<Schedule> schedule = mutator_.mutant(base.schedule, kind);
  if (!schedule || *schedule == runner_.schedule()) return std::nullopt;
  if (!seen_.insert(to_string(*schedule)).second) return std::nullopt;
  return Mutant{std::move(*schedule), base.changes + 1,
                concat(base.what, base.what.empty() ? "" : ", ",
                       kMutationNames[static_cast<std::size_t>(kind)])};
}

/// "": none.
std::string Trial::harm_of(const Mutant& mutant, const Outcome& expected) const {
  const Outcome outcome = runner_.run(mutant.schedule, seed_ + 1);
  if (!outcome.failure.empty()) return "fails: " + outcome.failure;
  if (!outcome.races.empty()) return "races: " + outcome.races.front();
  return outcome.same(expected) ? "" : "gives other bits";
}

void Trial::run(Tally& tally, std::mutex& mutex) {
  Tally own;
  ASSERT_TRUE(validate(runner_.schedule()).empty()) << subject_.name;
  const Outcome expected = runner_.run(runner_.schedule(), seed_);
  ASSERT_EQ(expected.failure, "") << subject_.name;
  EXPECT_EQ(expected.races, std::vector<std::string>()) << subject_.name;
  EXPECT_EQ(expected.changed, subject_.purpose == Purpose::kTrain) << subject_.name;
  EXPECT_NE(expected.losses.front(), 0.0) << subject_.name;
  const int mutants = mutants_per_plan();
  for (int tries = 0; own.made < mutants && tries < 100 * mutants; ++tries) {
    Mutation kind{};
    std::optional<Mutant> mutant = make(kind);
    if (!mutant) continue;
    ++own.made;
    const std::vector<Violation> violations = validate(mutant->schedule);
    if (!violations.empty()) {
      ++own.refused[std::string(to_string(violations.front().rule))];
      ++own.by_kind[static_cast<std::size_t>(kind)][0];
      continue;
    }
    ++own.ran;
    ++own.by_kind[static_cast<std::size_t>(kind)][1];
    std::string harm = harm_of(*mutant, expected);
    if (harm.empty()) {
      passed_.push_back(std::move(*mutant));
      continue;
    }
    std::ostringstream text;
    text << "seed " << seed_ << ", " << subject_.name << ": " << mutant->what << ": " << harm;
    const Schedule &a = runner_.schedule(), &b = mutant->schedule;
    for (std::size_t i = 0, shown = 0; i < b.actions.size() && shown < 3; ++i) {
      if (i < a.actions.size() && a.actions[i] == b.actions[i]) continue;
      ++shown;
      text << "\n  " << i << ": "
           << (i < a.actions.size() ? describe(a, a.actions[i]) : std::string("nothing"))
           << "\n   now " << describe(b, b.actions[i]);
    }
    own.harmful.push_back(text.str());
  }
  const std::lock_guard lock(mutex);
  ++tally.plans;
  tally.made += own.made;
  tally.ran += own.ran;
  tally.other_sums += own.other_sums;
  for (const auto& [rule, count] : own.refused) tally.refused[rule] += count;
  for (std::size_t k = 0; k < kMutations; ++k) {
    tally.by_kind[k][0] += own.by_kind[k][0];
    tally.by_kind[k][1] += own.by_kind[k][1];
  }
  tally.harmful.insert(tally.harmful.end(), own.harmful.begin(), own.harmful.end());
}

void print(const Tally& tally) {
  std::ostringstream out;
  out << tally.plans << " plans, " << tally.made << " mutants: refused";
  for (const auto& [rule, count] : tally.refused) out << ' ' << count << " by " << rule << ',';
  out << " ran " << tally.ran << ", of which " << tally.other_sums << " with other sums\n";
  for (std::size_t k = 0; k < kMutations; ++k) {
    out << "  " << kMutationNames[k] << ": refused " << tally.by_kind[k][0] << ", ran "
        << tally.by_kind[k][1] << '\n';
  }
  std::cout << out.str();
}

TEST(Mutation, WhatPassesDoesNoHarm) {
  const std::vector<Subject> all = subjects();
  Tally tally;
  std::mutex mutex;
  std::atomic<std::size_t> next{0};
  {
    std::vector<std::jthread> workers;
    for (int w = 0; w < kWorkers; ++w) {
      workers.emplace_back([&] {
        for (std::size_t i = next++; i < all.size(); i = next++) {
          Trial(all[i], static_cast<std::uint32_t>(i)).run(tally, mutex);
        }
      });
    }
  }
  print(tally);
  for (const std::string& harmful : tally.harmful) ADD_FAILURE() << harmful;
  EXPECT_GE(tally.made, std::int64_t{mutants_per_plan()} * 1000);
  EXPECT_GT(tally.ran, tally.made / 20) << "hardly anything passes";
  for (const char* rule : {"form", "happens-before", "contents", "end"}) {
    EXPECT_GT(tally.refused[rule], 0) << rule;
  }
  for (std::size_t k = 0; k < kMutations; ++k) {
    EXPECT_GT(tally.by_kind[k][0] + tally.by_kind[k][1], 0) << kMutationNames[k];
  }
}

/// True if no clock can tell that an action of a mutant does not wait for `previous`, of the step
/// before: all that does something and is over by then comes before the action even so. What does
/// nothing, as a reshard, takes no time.
bool comes_after_the_same_work(const Schedule& schedule, const Schedule& mutant, int action,
                               int previous) {
  const int count = static_cast<int>(schedule.actions.size());
  const HappensBefore order(schedule, pairs_of_waits(schedule));
  const HappensBefore left(mutant, pairs_of_waits(mutant));
  for (int i = 0; i <= previous; ++i) {
    if (schedule.actions[static_cast<std::size_t>(i)].operation->run == nullptr) continue;
    const bool is_over = i == previous || order.orders({i, previous});
    if (is_over && !left.orders({i, count + action})) return false;
  }
  return true;
}

/// Every wait of a schedule, and the schedule without it.
void for_each_dropped_wait(
    const Schedule& schedule,
    const std::function<void(const Schedule& mutant, int action, Lane waited)>& visit) {
  for (std::size_t i = 0; i < schedule.actions.size(); ++i) {
    for (const auto waits : {&Action::waits, &Action::previous_waits}) {
      for (const int wait : schedule.actions[i].*waits) {
        Schedule mutant = schedule;
        std::erase(mutant.actions[i].*waits, wait);
        if (waits == &Action::previous_waits &&
            comes_after_the_same_work(schedule, mutant, static_cast<int>(i), wait)) {
          continue;
        }
        visit(mutant, static_cast<int>(i), schedule.actions[static_cast<std::size_t>(wait)].lane);
      }
    }
  }
}

bool has(const std::vector<Violation>& violations, int action) {
  return std::ranges::find(violations, action, &Violation::action) != violations.end();
}

// The executor that ignores a wait is one that is given a schedule without it.
TEST(Mutation, AnExecutorThatIgnoresAWaitIsFoundByItsTimes) {
  const std::vector<Subject> all = subjects();
  int waits = 0;
  for (std::size_t i = 0; i < all.size(); i += 13) {
    SCOPED_TRACE(all[i].name);
    const Runner runner(all[i]);
    for (const Lane slow : kAllLanes) {
      EXPECT_TRUE(runner.simulate_times(runner.schedule(), runner.schedule(), slow).empty());
    }
    for_each_dropped_wait(runner.schedule(), [&](const Schedule& mutant, int action, Lane waited) {
      ++waits;
      EXPECT_FALSE(validate(mutant).empty());
      EXPECT_TRUE(has(runner.simulate_times(mutant, runner.schedule(), waited), action))
          << describe(mutant, mutant.actions[static_cast<std::size_t>(action)]);
    });
  }
  EXPECT_GT(waits, 500);
}

// The same with threads. The lane that is not waited for is slow; the more so, if this machine has
// kept the others from running ahead.
TEST(Mutation, ThreadsThatIgnoreAWaitAreFoundByTheirTimes) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "a schedule without its wait is a race, which ThreadSanitizer reports";
#endif
  Subject subject{.name = "full_shard", .run = {.ranks = 2}};
  const Runner runner(subject);
  int found = 0, waits = 0;
  for_each_dropped_wait(runner.schedule(), [&](const Schedule& mutant, int action, Lane waited) {
    ++waits;
    for (int milliseconds = 1; milliseconds <= 64; milliseconds *= 4) {
      const Outcome outcome = runner.run(mutant, runner.schedule(), [&](int /*rank*/) {
        return [=](Lane lane) {
          if (lane == waited) std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
        };
      });
      EXPECT_EQ(outcome.failure, "");
      if (outcome.races.empty()) continue;
      ++found;
      return;
    }
    ADD_FAILURE() << describe(mutant, mutant.actions[static_cast<std::size_t>(action)]);
  });
  EXPECT_EQ(found, waits);
  EXPECT_GE(waits, 8);
}

// ---- What takes several changes at once, or is fit to run only by chance ----------------------

/// A plan in which one action at a time is broken.
class ABrokenAction : public testing::Test {
 protected:
  void plan_for(const SmallRun& run) {
    schedule_ = Runner({.name = run.strategy, .run = run}).schedule();
    EXPECT_TRUE(validate(schedule_).empty());
  }
  Action& first(const Operation& operation, int micro_step = -1) {
    return *std::ranges::find_if(schedule_.actions, [&](const Action& action) {
      return action.operation == &operation && action.micro_step == micro_step;
    });
  }
  std::string refusal() const {
    const std::vector<Violation> violations = validate(schedule_);
    return violations.empty() ? "nothing" : violations.front().message;
  }
  Schedule schedule_;
};

TEST_F(ABrokenAction, ThatReducesInPlaceInASlotIsRefused) {
  plan_for({.ranks = 2, .strategy = "full_shard"});
  Action& action = first(operations::kReduceScatter);
  action.writes.front().buffer = action.reads.front().buffer;
  EXPECT_THAT(refusal(), HasSubstr("works in place on a slot"));
}

TEST_F(ABrokenAction, ThatReadsAPartOfASlotIsRefused) {
  plan_for({.ranks = 2, .strategy = "full_shard", .micro_steps = 2, .accumulate_unsharded = true});
  Action& action = first(operations::kCast);
  action.reads.front().sharded = action.writes.front().sharded = {Axis::kShard};
  EXPECT_THAT(refusal(), HasSubstr("is unsharded, not sharded over shard"));
}

TEST_F(ABrokenAction, ThatCastsABufferToItselfIsRefused) {
  plan_for({.ranks = 2, .strategy = "full_shard", .micro_steps = 2, .accumulate_unsharded = true});
  Action& action = first(operations::kCast);
  action.writes = action.reads;
  EXPECT_THAT(refusal(), HasSubstr("to itself"));
}

TEST_F(ABrokenAction, ThatRunsALayerOnAnotherLaneIsRefused) {
  plan_for({.ranks = 2, .strategy = "no_shard"});
  Action& action = first(operations::kForward, 0);
  action.lane = Lane::kGather;
  EXPECT_THAT(refusal(), HasSubstr("layers run on the compute lane"));
}

TEST_F(ABrokenAction, ThatAddsToTheMicroStepBeforeIsRefused) {
  plan_for({.ranks = 1, .strategy = "no_shard", .micro_steps = 2});
  Action& action = first(operations::kLoss, 1);
  const Action& before = first(operations::kLoss, 0);
  for (Operand& operand : action.writes) {
    if (schedule_.role(operand.buffer) != Role::kGradient || operand.unit != 2) continue;
    operand.buffer = std::ranges::find(before.writes, 2, &Operand::unit)->buffer;
    operand.adds = true;
  }
  EXPECT_THAT(refusal(),
              HasSubstr("which holds more than what layers have left in this micro-step"));
}

}  // namespace
}  // namespace tessera::test::mutation_test
