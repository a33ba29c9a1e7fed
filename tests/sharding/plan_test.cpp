#include "tessera/sharding/planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <map>
#include <string>
#include <vector>

#include "sharding/schedule_edits.h"
#include "tessera/model/gpt.h"

namespace tessera::test::plan_test {
namespace {

using ::testing::HasSubstr;

// A chain of equal units, one layer each, whose backward reads what its forward read.
ModelLayout chain(int units, int world_size) {
  ModelLayout layout;
  for (int u = 0; u < units; ++u) {
    const std::string name = "h." + std::to_string(u);
    layout.units.push_back(
        {.name = name, .flats = {one_tensor(name + ".weight", kFlatAlignment * world_size)}});
    layout.layers.push_back({name, {{.unit = u, .flat = 0, .tensor = 0}}, true});
  }
  return layout;
}

PlanOptions options_for(const std::string& name, const Mesh& mesh) {
  const Strategy& strategy = find_strategy(name);
  return {.mesh = mesh,
          .placement = strategy.placement,
          .reshard_after_forward = strategy.reshard_after_forward};
}

int count(const Schedule& s, const Operation& operation) {
  return static_cast<int>(
      std::ranges::count(s.actions, &operation, [](const Action& a) { return a.operation; }));
}

int count(const Schedule& s, const Operation& operation, AxisSet axes) {
  return static_cast<int>(std::ranges::count_if(
      s.actions, [&](const Action& a) { return a.operation == &operation && a.axes == axes; }));
}

/// `is`: unshards, gathers_gradient, ...; see support/action_uses.h.
int count(const Schedule& s, bool (*is)(const Schedule&, const Action&)) {
  return static_cast<int>(
      std::ranges::count_if(s.actions, [&](const Action& a) { return is(s, a); }));
}

int count(const Schedule& s, bool (*is)(const Schedule&, const Action&), AxisSet axes) {
  return static_cast<int>(std::ranges::count_if(
      s.actions, [&](const Action& a) { return is(s, a) && a.axes == axes; }));
}

/// The sizes of the slots for parameters, or for gradients.
std::vector<std::int64_t> slots(const Schedule& s, Role role) {
  std::vector<std::int64_t> sizes;
  for (const ScheduleBuffer& buffer : s.buffers) {
    if (buffer.is_slot() && buffer.role == role) sizes.push_back(buffer.numel);
  }
  return sizes;
}

constexpr AxisSet kReplicate{Axis::kReplicate};
constexpr AxisSet kShard{Axis::kShard};
constexpr AxisSet kBoth{Axis::kReplicate, Axis::kShard};

// --- All plans ---

TEST(Plan, EveryChoiceIsValidReadsBackAndComesOutTheSameTwice) {
  const Model model =
      make_gpt({.vocab_size = 61, .context_length = 11, .layers = 3, .heads = 2, .width = 14});
  int number = 0;
  for (const Strategy& strategy : strategies()) {
    for (const int depth : {0, 1, 3}) {
      for (const int micro_steps : {1, 2, 3}) {
        for (const Recompute recompute :
             {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
          for (const ReductionOrder order :
               {ReductionOrder::kRank, ReductionOrder::kHierarchical}) {
            for (const bool unsharded : {false, true}) {
              for (const WrapPolicy wrap :
                   {WrapPolicy{WrapPolicy::Kind::kLayer}, WrapPolicy{WrapPolicy::Kind::kSize, 3000},
                    WrapPolicy{WrapPolicy::Kind::kNone}}) {
                const int ranks = std::array{4, 1, 6, 2, 3}[static_cast<std::size_t>(number++ % 5)];
                const PlanOptions options{
                    .mesh = make_mesh(ranks, default_replicas(strategy, ranks)),
                    .placement = strategy.placement,
                    .reshard_after_forward = strategy.reshard_after_forward,
                    .reduction_order = order,
                    .micro_steps = micro_steps,
                    .accumulate_unsharded = unsharded,
                    .policy = {depth, depth, recompute}};
                const ModelLayout layout = make_layout(model, wrap, ranks);
                const Schedule schedule = plan(layout, options);
                const std::string text = to_string(schedule);
                ASSERT_EQ(text_of(validate(schedule)), "") << text;
                ASSERT_EQ(parse_schedule(text), schedule) << text;
                ASSERT_EQ(plan(layout, options), schedule) << text;
              }
            }
          }
        }
      }
    }
  }
}

TEST(Plan, EveryValidPlacementGivesAValidPlan) {
  for (const Mesh mesh : {grid(2, 2), grid(3, 2), grid(1, 3), grid(4, 1)}) {
    for (const AxisSet p : every_axis_set()) {
      for (const AxisSet g : every_axis_set()) {
        for (const AxisSet o : every_axis_set()) {
          if (!g.contains(p) || !o.contains(g)) continue;
          for (const int micro_steps : {1, 2}) {
            for (const ReductionOrder order :
                 {ReductionOrder::kRank, ReductionOrder::kHierarchical}) {
              for (const DType reduce_dtype : {DType::kFloat32, DType::kBFloat16}) {
                const Schedule s =
                    plan(small_layout(mesh.world_size()), {.mesh = mesh,
                                                           .placement = {p, g, o},
                                                           .reduction_order = order,
                                                           .reduce_dtype = reduce_dtype,
                                                           .micro_steps = micro_steps});
                ASSERT_EQ(text_of(validate(s)), "") << to_string(s);
              }
            }
          }
        }
      }
    }
  }
}

// --- How many collectives ---

constexpr int kUnits = 8;

TEST(Plan, GathersParametersAsOftenAsTheStrategySays) {
  for (const int depth : {0, 1, 2, 3, 4}) {
    for (const int micro_steps : {1, 2, 3}) {
      SCOPED_TRACE(concat("depth ", depth, ", micro-steps ", micro_steps));
      const auto gathers = [&](const char* strategy) {
        PlanOptions options = options_for(strategy, grid(1, 4));
        options.micro_steps = micro_steps;
        options.policy.prefetch_forward = options.policy.prefetch_backward = depth;
        return count(plan(chain(kUnits, 4), options), unshards, kShard);
      };
      // The first layer's backward is followed by its next forward: it is kept over the border.
      const int borders = micro_steps - 1;
      // In backward all but the loss layer, the one before (used just before and just after the
      // loss), and those that would be asked for again before the loss lets them go.
      const int kept = 2 + std::max(0, depth - 2);
      EXPECT_EQ(gathers("full_shard"), micro_steps * (2 * kUnits - kept) - borders);
      EXPECT_EQ(gathers("shard_grad_op"), micro_steps * kUnits - borders);
      for (const char* whole : {"no_shard", "zero1", "zero2"}) EXPECT_EQ(gathers(whole), 0);
    }
  }
}

TEST(Plan, ReducesGradientsAsOftenAsTheStrategySays) {
  struct Expected {
    const char* strategy;
    int reduce_scatters, all_reduces, regathers;  // per unit: in A micro-steps, per step, per step
  };
  for (const int micro_steps : {1, 2, 3}) {
    for (const Expected& e :
         {Expected{"no_shard", 0, 1, 0}, Expected{"zero1", 1, 0, 1},
          Expected{"zero2", micro_steps, 0, 1}, Expected{"shard_grad_op", micro_steps, 0, 0},
          Expected{"full_shard", micro_steps, 0, 0}}) {
      for (const bool unsharded : {false, true}) {
        SCOPED_TRACE(concat(e.strategy, ", micro-steps ", micro_steps, ", unsharded ", unsharded));
        PlanOptions options = options_for(e.strategy, grid(1, 4));
        options.micro_steps = micro_steps;
        options.accumulate_unsharded = unsharded;
        const Schedule s = plan(chain(kUnits, 4), options);
        const int reduce_scatters = unsharded ? std::min(e.reduce_scatters, 1) : e.reduce_scatters;
        EXPECT_EQ(count(s, operations::kReduceScatter), kUnits * reduce_scatters);
        EXPECT_EQ(count(s, operations::kAllReduce), kUnits * e.all_reduces);
        EXPECT_EQ(count(s, gathers_updated), kUnits * e.regathers);
        EXPECT_EQ(count(s, gathers_gradient), 0);
        EXPECT_EQ(count(s, operations::kOptimizerStep), kUnits);
        EXPECT_EQ(count(s, operations::kNormPartial), kUnits);
        // Where gradients stay whole between micro-steps, all but the first are added by hand.
        const bool whole = e.reduce_scatters != micro_steps || unsharded || micro_steps == 1;
        const bool adds = whole && micro_steps > 1;
        EXPECT_EQ(count(s, accumulates), adds ? kUnits * (micro_steps - 1) : 0);
      }
    }
  }
}

// Those that reduce once per step send bf16 from slots, and what they have added up before is
// rounded for that. A sum that others need, as all do of no_shard, is gathered in fp32.
TEST(Plan, ReducesFromSlotsWhereGradientsTravelInBf16) {
  for (const int micro_steps : {1, 2, 3}) {
    for (const auto& [strategy, unsharded] :
         {std::pair{"no_shard", false}, {"zero1", false}, {"zero2", true}, {"full_shard", true}}) {
      SCOPED_TRACE(concat(strategy, ", micro-steps ", micro_steps));
      PlanOptions options = options_for(strategy, grid(1, 4));
      options.micro_steps = micro_steps;
      options.accumulate_unsharded = unsharded;
      options.reduce_dtype = DType::kBFloat16;
      const Schedule s = plan(chain(kUnits, 4), options);
      const bool sums_travel = std::string_view(strategy) == "no_shard";
      EXPECT_EQ(count(s, operations::kReduceScatter), kUnits);
      EXPECT_EQ(count(s, operations::kAllReduce), 0);
      EXPECT_EQ(count(s, gathers_gradient), sums_travel ? kUnits : 0);
      EXPECT_EQ(count(s, accumulates), micro_steps > 1 ? kUnits * micro_steps : 0);
      EXPECT_EQ(count(s, rounds), micro_steps > 1 ? kUnits : 0);
      for (const Action& a : s.actions) {
        if (a.operation != &operations::kReduceScatter) continue;
        EXPECT_TRUE(s.buffer(a.reads.front()).is_slot());
        EXPECT_EQ(s.buffer(a.reads.front()).format, DType::kBFloat16);
        EXPECT_EQ(a.writes.front().buffer, gradient_buffer(s, unit_of(a)));
        EXPECT_FALSE(a.writes.front().adds);
      }
    }
  }
}

TEST(Plan, ShardsGradientBuffersAsTheReductionDemands) {
  const auto axes = [](const Placement& placement, ReductionOrder order, bool unsharded) {
    const Schedule s = plan(chain(2, 4), {.mesh = grid(2, 2),
                                          .placement = placement,
                                          .reduction_order = order,
                                          .accumulate_unsharded = unsharded});
    return s.buffers[static_cast<std::size_t>(gradient_buffer(s, 0))].sharded;
  };
  const Placement cut{kShard, kShard, kBoth};
  EXPECT_EQ(axes(cut, ReductionOrder::kRank, false), kBoth);
  EXPECT_EQ(axes(cut, ReductionOrder::kHierarchical, false), kShard);
  EXPECT_EQ(axes(cut, ReductionOrder::kHierarchical, true), AxisSet{});
  EXPECT_EQ(axes(cut, ReductionOrder::kRank, true), AxisSet{});
  EXPECT_EQ(axes({{}, {}, kShard}, ReductionOrder::kRank, false), AxisSet{});
}

// Gradient buffers are fp32: what is written in bf16 goes to a slot, and what is sent in bf16
// leaves one.
TEST(Plan, KeepsGradientsInBf16InSlots) {
  struct Place {
    bool written_to_slot, sent_from_slot;
    bool operator==(const Place&) const = default;
  };
  const auto places_of = [](int ranks, DType reduce_dtype) {
    const Strategy& strategy = find_strategy("no_shard");
    const Schedule s = plan(chain(2, ranks), {.mesh = grid(1, ranks),
                                              .placement = strategy.placement,
                                              .reduce_dtype = reduce_dtype,
                                              .micro_steps = 2});
    for (const ScheduleBuffer& buffer : s.buffers) {
      if (buffer.role != Role::kGradient) continue;
      EXPECT_EQ(buffer.format, buffer.is_slot() ? reduce_dtype : DType::kFloat32);
    }
    const bool sent = std::ranges::any_of(s.actions, [&](const Action& a) {
      return is_collective(a) && !a.reads.empty() &&
             s.role(a.reads.front().buffer) == Role::kGradient &&
             s.buffer(a.reads.front()).is_slot();
    });
    std::vector<Place> places;
    for (const int micro_step : {0, 1}) {
      const Action& pass = at(s, find_pass(s, operations::kBackward, 0, micro_step));
      places.push_back({s.buffer(pass.writes.front()).is_slot(), sent && micro_step == 1});
    }
    return places;
  };
  EXPECT_EQ(places_of(2, DType::kFloat32), (std::vector<Place>{{false, false}, {true, false}}));
  EXPECT_EQ(places_of(2, DType::kBFloat16), (std::vector<Place>{{true, false}, {true, true}}));
  // There is nobody to send to.
  EXPECT_EQ(places_of(1, DType::kBFloat16), (std::vector<Place>{{true, false}, {true, false}}));
}

TEST(Plan, HybridsReduceOverAllRanksOrInTwoLevels) {
  constexpr int kMicroSteps = 3;
  const auto planned_on_six = [](const char* strategy, ReductionOrder order) {
    PlanOptions options = options_for(strategy, grid(2, 3));
    options.micro_steps = kMicroSteps;
    options.reduction_order = order;
    return plan(chain(kUnits, 6), options);
  };
  for (const char* strategy : {"hybrid_shard", "hybrid_shard_zero2"}) {
    const Schedule by_rank = planned_on_six(strategy, ReductionOrder::kRank);
    EXPECT_EQ(count(by_rank, operations::kReduceScatter, kBoth), kUnits * kMicroSteps);
    EXPECT_EQ(count(by_rank, operations::kReduceScatter), kUnits * kMicroSteps);
    EXPECT_EQ(count(by_rank, gathers_gradient, kReplicate), kUnits);
    EXPECT_EQ(count(by_rank, operations::kAllReduce), 0);
    const Schedule levels = planned_on_six(strategy, ReductionOrder::kHierarchical);
    EXPECT_EQ(count(levels, operations::kReduceScatter, kShard), kUnits * kMicroSteps);
    EXPECT_EQ(count(levels, operations::kReduceScatter), kUnits * kMicroSteps);
    EXPECT_EQ(count(levels, operations::kAllReduce, kReplicate), kUnits);
    EXPECT_EQ(count(levels, gathers_gradient), 0);
    EXPECT_EQ(count(levels, gathers_updated), 0);
  }
  const Schedule by_rank = planned_on_six("hybrid_full_optimizer", ReductionOrder::kRank);
  EXPECT_EQ(count(by_rank, operations::kReduceScatter, kBoth), kUnits * kMicroSteps);
  EXPECT_EQ(count(by_rank, gathers_gradient), 0);
  EXPECT_EQ(count(by_rank, gathers_updated, kReplicate), kUnits);
  const Schedule levels = planned_on_six("hybrid_full_optimizer", ReductionOrder::kHierarchical);
  EXPECT_EQ(count(levels, operations::kReduceScatter, kShard), kUnits * kMicroSteps);
  EXPECT_EQ(count(levels, operations::kReduceScatter, kReplicate), kUnits);
  EXPECT_EQ(count(levels, gathers_updated, kReplicate), kUnits);
}

TEST(Plan, OneRankCommunicatesNothing) {
  for (const Strategy& strategy : strategies()) {
    const Schedule s = plan(chain(kUnits, 1), options_for(strategy.name, grid(1, 1)));
    for (const Action& action : s.actions) {
      EXPECT_TRUE(action.axes.empty()) << strategy.name << ": " << describe(s, action);
    }
    EXPECT_TRUE(slots(s, Role::kParameter).empty()) << strategy.name;
    EXPECT_EQ(count(s, operations::kCountTokens),
              1);  // it scales the loss, even if nobody else counts
  }
}

// --- Slots and prefetching ---

Schedule full_shard_chain(int depth, int micro_steps = 1, int units = kUnits) {
  PlanOptions options = options_for("full_shard", grid(1, 4));
  options.micro_steps = micro_steps;
  options.policy.prefetch_forward = options.policy.prefetch_backward = depth;
  return plan(chain(units, 4), options);
}

TEST(Plan, EqualUnitsShareARingOfSlots) {
  for (const int depth : {0, 1, 2, 3}) {
    for (const int micro_steps : {1, 3}) {
      SCOPED_TRACE(concat("depth ", depth, ", micro-steps ", micro_steps));
      const Schedule s = full_shard_chain(depth, micro_steps);
      // A ring of depth + 1, and the layers that are kept over the loss.
      const int kept = 1 + std::max(0, depth - 2);
      EXPECT_EQ(slots(s, Role::kParameter),
                std::vector<std::int64_t>(static_cast<std::size_t>(depth + 1 + kept),
                                          s.units[0].numel(true)));
      EXPECT_EQ(
          slots(s, Role::kGradient),
          std::vector<std::int64_t>(static_cast<std::size_t>(depth + 1), s.units[0].numel(true)));
    }
  }
}

TEST(Plan, SmallUnitsSitInBigSlotsAndNeverTheOtherWayRound) {
  for_each_plan(
      [](const Schedule& s, const std::string& what) {
        std::int64_t largest = 0;
        for (const ScheduleUnit& unit : s.units) {
          largest = std::max(largest, unit.numel(true) + unit.numel(false));
        }
        for (const Action& a : s.actions) {
          if (!unshards(s, a)) continue;
          const ScheduleUnit& unit = s.units[static_cast<std::size_t>(unit_of(a))];
          EXPECT_LE(unit.numel(true) + unit.numel(false), s.buffer(a.writes.front()).numel) << what;
        }
        for (const std::int64_t slot : slots(s, Role::kParameter)) EXPECT_LE(slot, largest) << what;
      },
      11);
}

/// Where in the list a unit's parameters are asked for, first used and released.
struct Stay {
  int unit = -1;
  int unshard = -1;
  int first_use = -1;
  int reshard = -1;
};

std::vector<Stay> stays_of(const Schedule& s) {
  std::vector<Stay> stays;
  std::map<int, std::size_t> open;
  for (int i = 0; i < static_cast<int>(s.actions.size()); ++i) {
    const Action& a = s.actions[static_cast<std::size_t>(i)];
    if (unshards(s, a)) {
      open[unit_of(a)] = stays.size();
      stays.push_back({.unit = unit_of(a), .unshard = i});
    } else if (a.operation == &operations::kReshard) {
      stays[open.at(unit_of(a))].reshard = i;
    } else if (a.layer >= 0) {
      const ScheduleLayer& layer = s.layers[static_cast<std::size_t>(a.layer)];
      for (const int unit :
           a.operation == &operations::kBackward ? layer.backward_reads : layer.forward_reads) {
        Stay& stay = stays[open.at(unit)];
        if (stay.first_use < 0) stay.first_use = i;
      }
    }
  }
  return stays;
}

TEST(Plan, TheNextGatherIsIssuedBeforeTheReshardOfTheLastUnit) {
  for (const int depth : {0, 1, 2}) {
    for (const int micro_steps : {1, 2}) {
      const Schedule s = full_shard_chain(depth, micro_steps);
      const std::vector<Stay> stays = stays_of(s);
      for (std::size_t i = 0; i + 1 < stays.size(); ++i) {
        if (depth > 0) {
          EXPECT_LT(stays[i + 1].unshard, stays[i].first_use) << depth << '\n' << to_string(s);
          EXPECT_LT(stays[i + 1].unshard, stays[i].reshard) << depth << '\n' << to_string(s);
        } else {
          EXPECT_GT(stays[i + 1].unshard, stays[i].first_use) << to_string(s);
        }
      }
    }
  }
}

TEST(Plan, InBackwardTheNextGatherIsIssuedBeforeTheReduction) {
  const Schedule s = full_shard_chain(1);
  std::vector<int> last_gather(kUnits, -1);
  for (const Stay& stay : stays_of(s)) {
    last_gather[static_cast<std::size_t>(stay.unit)] = stay.unshard;
  }
  for (int unit = 1; unit < kUnits; ++unit) {
    const int reduction = find_of(s, operations::kReduceScatter, unit);
    EXPECT_LT(last_gather[static_cast<std::size_t>(unit - 1)], reduction) << to_string(s);
  }
}

TEST(Plan, NoGatherIsIssuedMoreThanDepthAheadOfItsUse) {
  for (const int depth : {0, 1, 2, 4}) {
    for (const int micro_steps : {1, 3}) {
      const Schedule s = full_shard_chain(depth, micro_steps);
      const std::vector<Stay> stays = stays_of(s);
      for (const Stay& stay : stays) {
        const auto ahead = std::ranges::count_if(stays, [&](const Stay& other) {
          return other.first_use > stay.unshard && other.first_use < stay.first_use;
        });
        EXPECT_LE(ahead, depth) << to_string(s);
      }
    }
  }
}

TEST(Plan, ReductionsInFlightAreBoundedByTheDepth) {
  for (const int depth : {0, 1, 2}) {
    const Schedule s = full_shard_chain(depth, 2);
    // A backward may start only once all but `depth` earlier reductions are over: the slot that it
    // writes to was last read by the reduction depth + 1 gradients ago.
    std::vector<int> reductions;
    std::map<int, int> reader;  // slot -> its last reduction
    for (int i = 0; i < static_cast<int>(s.actions.size()); ++i) {
      const Action& a = s.actions[static_cast<std::size_t>(i)];
      if (a.operation != &operations::kReduceScatter) continue;
      const int slot = slot_of(s, a);
      const auto number = static_cast<int>(reductions.size());
      if (reader.contains(slot)) {
        EXPECT_EQ(number - reader[slot], depth + 1);
      }
      reader[slot] = number;
      reductions.push_back(i);
    }
    EXPECT_EQ(reductions.size(), 2U * kUnits);
  }
}

// --- Size ---

TEST(Plan, GrowsLinearlyInLayersAndNotAtAllInRanks) {
  const auto actions = [](int layers, int ranks) {
    PlanOptions options = options_for("full_shard", grid(1, ranks));
    options.policy.prefetch_forward = options.policy.prefetch_backward = 2;
    const auto begin = std::chrono::steady_clock::now();
    const std::size_t size = plan(chain(layers, ranks), options).actions.size();
    const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - begin;
    testing::Test::RecordProperty(concat("plan_ms_", layers, "_layers_", ranks, "_ranks"),
                                  std::to_string(time.count()));
    return static_cast<int>(size);
  };
  const int per_layer = actions(25, 16384) - actions(24, 16384);
  EXPECT_LE(per_layer, 12);
  EXPECT_EQ(actions(96, 16384), actions(24, 16384) + 72 * per_layer);
  EXPECT_EQ(actions(960, 16384), actions(24, 16384) + 936 * per_layer);
  EXPECT_EQ(actions(96, 2), actions(96, 16384));
}

// Of this process's time, not the clock's: a machine may be busy. It takes about 1 ms
// (bench/plan_bench.cpp); with sanitizers, ten times as long.
TEST(Plan, PlanningAndValidatingALargeStepTakesMilliseconds) {
  const ModelLayout layout = chain(96, 16384);
  PlanOptions options = options_for("full_shard", grid(1, 16384));
  double best_ms = 1e9;
  for (int attempt = 0; attempt < 5; ++attempt) {
    const std::clock_t begin = std::clock();
    ASSERT_EQ(text_of(validate(plan(layout, options))), "");
    best_ms = std::min(best_ms, 1e3 * static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC);
  }
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(NDEBUG)
  constexpr double kMost = 2000.0;
#else
  constexpr double kMost = 100.0;
#endif
  EXPECT_LT(best_ms, kMost);
}

// --- Refusals ---

void expect_error(const PlanOptions& options, const ModelLayout& layout, ErrorCode code,
                  const std::string& says) {
  try {
    plan(layout, options);
    ADD_FAILURE() << "nothing was thrown; wanted " << says;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    EXPECT_THAT(error.what(), HasSubstr(says));
  }
}

TEST(Plan, RefusesWhatCannotBePlanned) {
  const Mesh mesh = grid(1, 2);
  PlanOptions options = options_for("full_shard", mesh);
  options.micro_steps = 0;
  expect_error(options, chain(2, 2), ErrorCode::kConfig, "micro-steps");
  options = options_for("full_shard", mesh);
  options.policy.prefetch_forward = -1;
  expect_error(options, chain(2, 2), ErrorCode::kConfig, "prefetch");
  options = options_for("full_shard", mesh);
  options.policy.prefetch_backward = -1;
  expect_error(options, chain(2, 2), ErrorCode::kConfig, "prefetch");
  options = options_for("full_shard", mesh);
  options.placement.optimizer = {};
  expect_error(options, chain(2, 2), ErrorCode::kConfig, "placement");
  ModelLayout frozen = chain(2, 2);
  for (Unit& unit : frozen.units) unit.flats[0].trainable = false;
  expect_error(options_for("full_shard", mesh), frozen, ErrorCode::kConfig, "nothing to train");
}

// The layout's padding must divide over the parts of the mesh, or shards would lose elements.
TEST(Plan, RefusesALayoutThatTheMeshCannotCut) {
  expect_error(options_for("full_shard", grid(1, 3)), chain(2, 2), ErrorCode::kInvalidArgument,
               "cut into 3 parts");
}

}  // namespace
}  // namespace tessera::test::plan_test
