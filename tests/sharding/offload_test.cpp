#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <deque>
#include <mutex>

#include "sharding/schedule_edits.h"
#include "support/extent.h"
#include "support/small_run.h"
#include "tessera/sharding/account.h"
#include "tessera/sharding/gradient_sums.h"
#include "tessera/sharding/operation.h"
#include "tessera/sharding/schedule_json.h"

// Optimizer state in host memory: gradients go there, the optimizer runs there, and parameters come
// back.
namespace tessera::test::offload_test {
namespace {

using ::testing::HasSubstr;

std::string name_of(const SmallRun& run) {
  return concat(run.strategy, ", ", run.ranks, " ranks, ", run.micro_steps, " micro-steps, ",
                to_string(run.dtype), run.stochastic_rounding ? " rounded at random" : "",
                ", share ", run.offload_optimizer, ", ", run.offload_parameters, " and ",
                run.offload_gradients, ", on disk ", run.disk_optimizer, " and ",
                run.disk_parameters, ", ", run.steps_in_flight, " in flight");
}

/// Every strategy on 1, 2 and 3 ranks; accumulation and dtypes take turns.
std::vector<SmallRun> runs() {
  std::vector<SmallRun> all;
  for (const Strategy& strategy : strategies()) {
    for (const int ranks : {1, 2, 3}) {
      for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
        all.push_back({.ranks = ranks,
                       .replicas = ranks == 2 && strategy.hybrid ? 2 : 0,
                       .strategy = strategy.name,
                       .steps = 2,
                       .micro_steps = 1 + static_cast<int>(all.size() % 2),
                       .dtype = dtype,
                       .stochastic_rounding = dtype == DType::kBFloat16 && all.size() % 3 == 0});
      }
    }
  }
  return all;
}

/// Elements of this rank's optimizer shards that are on the host.
std::int64_t offloaded_numel(const Schedule& schedule) {
  std::int64_t numel = 0;
  for (const ScheduleBuffer& buffer : schedule.buffers) {
    if (buffer.role == Role::kMaster && buffer.tier == Tier::kHost) numel += buffer.numel;
  }
  return numel;
}

TEST(Offload, GivesTheSameBitsAndTakesThePredictedBytesOfBothTiers) {
  for (SmallRun run : runs()) {
    const SmallResult expected = train(run);
    EXPECT_EQ(expected.measured_host.total, 0);
    EXPECT_EQ(expected.counted_traffic.to_host_bytes, 0);
    for (const double share : {1.0, 0.5}) {
      run.offload_optimizer = share;
      SCOPED_TRACE(name_of(run));
      const SmallResult result = train(run);
      EXPECT_EQ(result.losses, expected.losses);
      EXPECT_EQ(result.norms, expected.norms);
      EXPECT_TRUE(same_bits(result.parameters, expected.parameters));
      EXPECT_EQ(result.measured, result.predicted);
      EXPECT_EQ(result.measured_host, result.predicted_host);
      EXPECT_EQ(result.counted_traffic, result.predicted_traffic);
      EXPECT_EQ(result.counted_traffic.sent_bytes, expected.counted_traffic.sent_bytes);

      // Master weights, two moments and the gradient in fp32, and parameters on their way back.
      const std::int64_t numel = offloaded_numel(result.schedule);
      const std::int64_t width = run.dtype == DType::kFloat32 ? 4 : 2;
      EXPECT_EQ(result.measured_host.total, numel * (width == 2 ? 18 : 16));
      EXPECT_EQ(result.counted_traffic.to_host_bytes, numel * 4);
      EXPECT_EQ(result.counted_traffic.to_device_bytes, numel * width);
      const auto saved = MemoryCategory::kOptimizer;
      EXPECT_EQ(expected.measured.by_category[saved] - result.measured.by_category[saved],
                numel * (width == 2 ? 12 : 8));
    }
  }
}

TEST(Offload, UpdatesRunBesideTheNextStepWithTheSameBitsUnderRandomDelays) {
  bool half = false;
  for (const Strategy& strategy : strategies()) {
    half = !half;
    SmallRun run{.ranks = 3, .strategy = strategy.name, .steps = 4};
    run.dtype = half ? DType::kBFloat16 : DType::kFloat32;
    const SmallResult expected = train(run);
    run.offload_optimizer = half ? 0.5 : 1.0;
    run.steps_in_flight = 2;
    run.delay_seed = 11;
    SCOPED_TRACE(name_of(run));
    const SmallResult result = train(run);
    EXPECT_EQ(result.losses, expected.losses);
    EXPECT_TRUE(same_bits(result.parameters, expected.parameters));
    EXPECT_EQ(result.measured, result.predicted);
    EXPECT_EQ(result.measured_host, result.predicted_host);
  }
}

/// The same, and hybrids on 2 x 2 ranks.
std::vector<SmallRun> runs_with_four_ranks() {
  std::vector<SmallRun> all = runs();
  for (const Strategy& strategy : strategies()) {
    if (!strategy.hybrid && strategy.name != "zero2") continue;
    all.push_back({.ranks = 4, .strategy = strategy.name, .steps = 2, .micro_steps = 2});
    if (all.size() % 2 == 0) all.back().dtype = DType::kBFloat16;
  }
  return all;
}

/// What does not depend on where things are.
void expect_same_run(const SmallResult& result, const SmallResult& expected) {
  EXPECT_EQ(result.losses, expected.losses);
  EXPECT_EQ(result.norms, expected.norms);
  EXPECT_TRUE(same_bits(result.parameters, expected.parameters));
  EXPECT_EQ(result.measured, result.predicted);
  EXPECT_EQ(result.measured_host, result.predicted_host);
  EXPECT_EQ(result.measured_disk, account_disk(result.schedule));
  EXPECT_EQ(result.predicted_traffic.sent_bytes, expected.predicted_traffic.sent_bytes);
}

// Two units at least, so that both a whole copy of the parameters and a part of them are tried.
TEST(Offload, ParametersOnTheHostGiveTheSameBitsAndTakeThePredictedBytes) {
  int tried = 0;
  for (SmallRun run : runs_with_four_ranks()) {
    run.policy.prefetch_host = tried % 3;
    run.steps_in_flight = 1 + tried % 2;
    const SmallResult expected = train(run);
    // All of them or half of them in turns: whole copies of the parameters are tried, and parts.
    const double share = tried % 4 < 2 ? 1.0 : 0.5;
    run.offload_parameters = share;
    run.offload_optimizer = share == 1.0 ? 0.0 : 0.75;
    run.delay_seed = 5;
    ++tried;
    SCOPED_TRACE(name_of(run));
    const SmallResult result = train(run);
    expect_same_run(result, expected);
    if (run.steps_in_flight == 1) {
      EXPECT_EQ(result.counted_traffic, result.predicted_traffic);
    }
    const auto kept = MemoryCategory::kParameters;
    EXPECT_LT(result.measured.by_category[kept], expected.measured.by_category[kept]);
    if (share == 1.0) {
      EXPECT_EQ(result.measured.by_category[kept], 0);
      EXPECT_EQ(result.measured.by_category[MemoryCategory::kOptimizer], 0);
    }
  }
  EXPECT_GT(tried, 48);
}

// What a rank updates goes to the device, and all that it keeps comes back once it is gathered.
TEST(Offload, UpdatedPartsOfParametersOnTheHostAreGatheredOnTheDevice) {
  for (const std::string strategy : {"zero1", "zero2", "hybrid_full_optimizer"}) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      SmallRun run{.ranks = 4, .strategy = strategy, .dtype = dtype};
      run.policy.prefetch_host = 2;
      const Model model = make_gpt(small_gpt());
      const ModelLayout layout = make_layout(model, run.wrap, run.ranks);
      run.offload_optimizer = 1.0;
      const Traffic before = account_traffic(plan(layout, plan_options(run)));
      run.offload_parameters = 1.0;
      SCOPED_TRACE(name_of(run));
      const Schedule schedule = plan(layout, plan_options(run));
      const std::int64_t width = dtype == DType::kFloat32 ? 4 : 2;
      const std::int64_t kept = strategy == "hybrid_full_optimizer" ? 2 : 1;  // parts of a unit
      std::int64_t all = 0, uses = 0, largest = 0;
      for (const ScheduleUnit& unit : schedule.units) {
        all += unit.numel(true);
        largest = std::max(largest, unit.numel(true) / kept);
      }
      for (const Action& action : schedule.actions) {
        if (action.operation != &operations::kReshard) continue;
        uses += schedule.numel(action.writes.front()) / kept;
      }
      const Traffic traffic = account_traffic(schedule);
      EXPECT_EQ(traffic.sent_bytes, before.sent_bytes);
      EXPECT_EQ(traffic.to_host_bytes - before.to_host_bytes, all / kept * width);
      EXPECT_EQ(traffic.to_device_bytes, (all / 4 + uses) * width);
      int slots = 0;
      for (const ScheduleBuffer& buffer : schedule.buffers) {
        if (buffer.kind != BufferKind::kUpdateSlot) continue;
        ++slots;
        EXPECT_EQ(buffer.numel, largest);
      }
      EXPECT_EQ(slots, 3);
    }
  }
}

/// Bytes on disk of what is trained: all that a rank keeps, or of parameters what it updates.
std::int64_t trained_bytes_on_disk(const Schedule& schedule, bool updated) {
  std::int64_t bytes = 0;
  for (const ScheduleBuffer& buffer : schedule.buffers) {
    if (buffer.tier != Tier::kDisk || !schedule.flat(buffer.unit, buffer.flat).trainable) continue;
    const AxisSet axes = updated ? schedule.placement.optimizer : buffer.sharded;
    bytes += schedule.own_numel(buffer) / schedule.mesh.size(axes) *
             static_cast<std::int64_t>(size_of(buffer.format));
  }
  return bytes;
}

/// Bytes that passes read: once for each time that parameters are unsharded.
std::int64_t staged_bytes(const Schedule& schedule) {
  std::int64_t bytes = 0;
  for (const Action& action : schedule.actions) {
    if (action.operation != &operations::kReshard) continue;
    const int unit = action.writes.front().unit;
    for (const ScheduleBuffer& buffer : schedule.buffers) {
      const bool flat = buffer.role == Role::kParameter;
      if (buffer.unit != unit || buffer.tier != Tier::kDisk || !flat) continue;
      bytes += buffer.numel * static_cast<std::int64_t>(size_of(buffer.format));
    }
  }
  return bytes;
}

TEST(Offload, ParametersOnDiskGiveTheSameBitsAndTakeThePredictedBytesOfEveryTier) {
  int tried = 0;
  for (SmallRun run : fewer_if_sanitized(runs_with_four_ranks(), 5)) {
    run.policy.prefetch_disk = tried % 3;
    run.policy.prefetch_host = tried % 2;
    const SmallResult expected = train(run);
    run.disk_parameters = tried % 2 == 0 ? 1.0 : 0.5;
    run.disk_optimizer = std::array{0.0, 1.0, 0.5}[static_cast<std::size_t>(tried % 3)];
    run.offload_parameters = tried % 5 == 0 ? 1.0 : 0.0;
    run.offload_gradients = tried % 4 == 0 ? 0.5 : 0.0;
    run.steps_in_flight = 1 + tried % 2;
    run.delay_seed = 13;
    ++tried;
    SCOPED_TRACE(name_of(run));
    const SmallResult result = train(run);
    expect_same_run(result, expected);
    const Traffic& traffic = result.predicted_traffic;
    EXPECT_EQ(traffic.to_disk_bytes, trained_bytes_on_disk(result.schedule, false));
    EXPECT_EQ(traffic.from_disk_bytes,
              trained_bytes_on_disk(result.schedule, true) + staged_bytes(result.schedule));
    if (run.steps_in_flight == 1) {
      EXPECT_EQ(result.counted_traffic, traffic);
    }
    if (run.disk_parameters < 1.0 || run.disk_optimizer < 1.0) continue;
    EXPECT_EQ(result.measured.by_category[MemoryCategory::kParameters], 0);
    EXPECT_EQ(result.measured_host.by_category[MemoryCategory::kParameters], 0);
  }
  EXPECT_GT(tried, kSanitized ? 10 : 48);
}

// Frozen parameters are sharded, and adapters are not: they alone leave the device.
TEST(Offload, FrozenParametersLeaveTheDeviceWithoutAdaptersThatAreShardedOtherwise) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    SmallRun run{.ranks = 3, .strategy = "full_shard", .micro_steps = 2, .dtype = dtype};
    run.adapter = {.kind = LoraOptions{.rank = 2}, .target_pattern = "all-linear"};
    run.trainable_strategy = "zero1";
    const SmallResult expected = train(run);
    for (const bool disk : {false, true}) {
      (disk ? run.disk_parameters : run.offload_parameters) = dtype == DType::kFloat32 ? 1.0 : 0.5;
      run.disk_optimizer = disk ? 1.0 : 0.0;
      run.delay_seed = 17;
      SCOPED_TRACE(name_of(run));
      const SmallResult result = train(run);
      expect_same_run(result, expected);
      EXPECT_EQ(result.counted_traffic, result.predicted_traffic);
      for (const ScheduleBuffer& buffer : result.schedule.buffers) {
        if (buffer.kind == BufferKind::kState && buffer.role == Role::kParameter &&
            result.schedule.flat(buffer.unit, buffer.flat).trainable) {
          EXPECT_EQ(buffer.tier, Tier::kDevice) << buffer.name;
        }
      }
      EXPECT_LT(result.measured.by_category[MemoryCategory::kParameters],
                expected.measured.by_category[MemoryCategory::kParameters]);
      run.disk_parameters = run.offload_parameters = 0.0;
    }
  }
}

// A frozen base that every rank has whole, beside adapters that are cut: the base is copied, and
// adapters are gathered, each by itself.
TEST(Offload, WholeFrozenParametersLeaveTheDeviceBesideAdaptersThatAreCut) {
  for (const WeightFormat base : {WeightFormat::kNone, WeightFormat::kNf4}) {
    for (const std::string trainable : {"full_shard", "shard_grad_op"}) {
      SmallRun run{.ranks = 3, .strategy = "no_shard", .micro_steps = 2, .dtype = DType::kBFloat16};
      run.adapter = {.kind = LoraOptions{.rank = 2}, .target_pattern = "all-linear"};
      run.trainable_strategy = trainable;
      run.base_format = base;
      const SmallResult expected = train(run);
      for (const bool disk : {false, true}) {
        for (const double share : {0.5, 1.0}) {
          (disk ? run.disk_parameters : run.offload_parameters) = share;
          run.delay_seed = 23;
          SCOPED_TRACE(name_of(run));
          const SmallResult result = train(run);
          expect_same_run(result, expected);
          EXPECT_EQ(result.counted_traffic, result.predicted_traffic);
          EXPECT_LT(result.measured.by_category[MemoryCategory::kParameters],
                    expected.measured.by_category[MemoryCategory::kParameters]);
          run.disk_parameters = run.offload_parameters = 0.0;
        }
      }
    }
  }
}

// Nothing else goes to the device: what the optimizer has updated stays on the host.
TEST(Offload, ParametersOnTheHostAreCopiedWhereverTheyAreUnsharded) {
  for (const std::string strategy : {"full_shard", "shard_grad_op", "no_shard"}) {
    for (const int micro_steps : {1, 2}) {
      SmallRun run{.ranks = 2, .strategy = strategy, .micro_steps = micro_steps};
      run.offload_parameters = 1.0;
      SCOPED_TRACE(name_of(run));
      const Model model = make_gpt(small_gpt());
      const Schedule schedule = plan(make_layout(model, run.wrap, run.ranks), plan_options(run));
      std::int64_t copied = 0;
      for (const Action& action : schedule.actions) {
        if (action.lane != Lane::kCompute) continue;
        for (const Operand& operand : action.reads) {  // none of the state: it is on the host
          EXPECT_TRUE(schedule.role(operand.buffer) != Role::kParameter ||
                      schedule.buffer(operand).is_slot());
        }
        if (action.operation != &operations::kReshard) continue;
        const int unit = action.writes.front().unit;  // once for each time that it was there
        copied += schedule.flat(unit, 0).numel / (strategy == "no_shard" ? 1 : 2) * 4;
      }
      EXPECT_GT(copied, 0);
      EXPECT_EQ(account_traffic(schedule).to_device_bytes, copied);
    }
  }
}

/// Bytes of the device's buffers for gradients, by slot or not.
std::int64_t gradient_bytes(const Schedule& schedule, Tier tier, bool slots) {
  std::int64_t bytes = 0;
  for (const ScheduleBuffer& buffer : schedule.buffers) {
    if (buffer.role != Role::kGradient || buffer.tier != tier) continue;
    const bool is_sum = buffer.kind == BufferKind::kSumSlot || !buffer.is_slot();
    if (is_sum && buffer.is_slot() == slots) bytes += allocation_bytes(buffer.numel * 4);
  }
  return bytes;
}

TEST(Offload, GradientsOnTheHostGiveTheSameBitsAndTakeThePredictedBytes) {
  int tried = 0;
  for (SmallRun run : runs()) {
    ++tried;
    run.micro_steps = 1 + tried % 3;
    run.reduce_dtype = tried % 4 == 0 ? run.dtype : DType::kFloat32;
    run.accumulate_unsharded = tried % 5 == 0;
    run.reduction_order = tried % 3 == 0 ? ReductionOrder::kHierarchical : ReductionOrder::kRank;
    run.policy.prefetch_host = tried % 3;
    const SmallResult expected = train(run);
    for (const double share : {1.0, 0.5}) {
      run.offload_gradients = share;
      run.offload_optimizer = std::array{0.0, 1.0, 0.75}[static_cast<std::size_t>(tried % 3)];
      run.steps_in_flight = 1 + tried % 2;
      run.delay_seed = 3;
      SCOPED_TRACE(name_of(run));
      const SmallResult result = train(run);
      EXPECT_EQ(result.losses, expected.losses);
      EXPECT_EQ(result.norms, expected.norms);
      EXPECT_TRUE(same_bits(result.parameters, expected.parameters));
      EXPECT_EQ(result.measured, result.predicted);
      EXPECT_EQ(result.measured_host, result.predicted_host);
      if (run.steps_in_flight == 1) {
        EXPECT_EQ(result.counted_traffic, result.predicted_traffic);
      }
      EXPECT_EQ(result.predicted_traffic.sent_bytes, expected.predicted_traffic.sent_bytes);
      EXPECT_LT(gradient_bytes(result.schedule, Tier::kDevice, false),
                gradient_bytes(expected.schedule, Tier::kDevice, false));
      if (share < 1.0) continue;
      EXPECT_EQ(gradient_bytes(result.schedule, Tier::kDevice, false), 0);
      EXPECT_EQ(result.measured.by_category[MemoryCategory::kGradients], 0);
    }
  }
}

// The sum goes out after each micro-step and comes back before the next; the optimizer reads it
// where its state is.
TEST(Offload, GradientsOnTheHostAreCopiedOncePerMicroStepInEachDirection) {
  for (const int micro_steps : {1, 2, 4}) {
    for (const bool updated_there : {false, true}) {
      SmallRun run{.ranks = 2, .strategy = "zero2", .micro_steps = micro_steps};
      run.offload_gradients = 1.0;
      run.offload_optimizer = updated_there ? 1.0 : 0.0;
      SCOPED_TRACE(name_of(run));
      const Model model = make_gpt(small_gpt());
      const Schedule schedule = plan(make_layout(model, run.wrap, run.ranks), plan_options(run));
      std::int64_t shard = 0;
      for (const ScheduleUnit& unit : schedule.units) shard += unit.numel(true) / 2 * 4;
      const Traffic traffic = account_traffic(schedule);
      EXPECT_EQ(traffic.to_host_bytes, micro_steps * shard);
      // With the parameters, which come back, or with the gradient for the optimizer.
      EXPECT_EQ(traffic.to_device_bytes, micro_steps * shard);
      EXPECT_EQ(gradient_bytes(schedule, Tier::kHost, false), shard);
    }
  }
}

/// Bytes of this rank's state on disk, without padding.
std::int64_t disk_state_bytes(const Schedule& schedule) {
  std::int64_t bytes = 0;
  for (const ScheduleBuffer& buffer : schedule.buffers) {
    if (buffer.tier == Tier::kDisk) bytes += buffer.numel * 4;
  }
  return bytes;
}

TEST(Offload, StateOnDiskGivesTheSameBitsAndTakesThePredictedBytesOfEveryTier) {
  int tried = 0;
  for (SmallRun run : runs()) {
    ++tried;
    run.policy.prefetch_disk = tried % 3;
    const SmallResult expected = train(run);
    for (const double share : {1.0, 0.5}) {
      run.disk_optimizer = share;
      run.offload_optimizer = tried % 3 == 0 ? 0.75 : 0.0;
      run.offload_gradients = tried % 4 == 0 ? 0.5 : 0.0;
      run.offload_parameters = tried % 2 == 0 ? 0.5 : 0.0;
      run.steps_in_flight = share == 1.0 ? 1 : 2;
      run.delay_seed = 7;
      SCOPED_TRACE(name_of(run));
      const SmallResult result = train(run);
      EXPECT_EQ(result.losses, expected.losses);
      EXPECT_EQ(result.norms, expected.norms);
      EXPECT_TRUE(same_bits(result.parameters, expected.parameters));
      EXPECT_EQ(result.measured, result.predicted);
      EXPECT_EQ(result.measured_host, result.predicted_host);
      EXPECT_GT(result.measured_disk, 0);
      EXPECT_EQ(result.measured_disk, account_disk(result.schedule));
      EXPECT_EQ(result.predicted_traffic.from_disk_bytes, disk_state_bytes(result.schedule));
      EXPECT_EQ(result.predicted_traffic.to_disk_bytes, disk_state_bytes(result.schedule));
      if (share < 1.0) continue;
      EXPECT_EQ(result.counted_traffic, result.predicted_traffic);
      // The host has slots, gradients, and parameters on their way or at home.
      EXPECT_EQ(result.measured.by_category[MemoryCategory::kOptimizer], 0);
    }
  }
}

/// A disk whose requests fail from some time on, whichever thread makes them.
class FailingDisk : public FaultyCalls {
 public:
  std::atomic<bool> fails = false;
  int error = EIO;
  bool of_writes = false;

  std::unique_ptr<DiskQueue> make_queue(DiskBackend backend, int depth) override {
    const std::lock_guard lock(mutex_);
    RequestFaults& faults = faults_.emplace_back();
    faults.before = [this](DiskRequest& request) {
      if (request.write != of_writes || !fails) {
        request.bytes = shortens && request.bytes > kDiskAlignment ? kDiskAlignment : request.bytes;
        return 0;
      }
      return error;
    };
    return std::make_unique<FaultyQueue>(faults, disk_calls().make_queue(backend, depth));
  }
  std::atomic<bool> shortens = false;

 private:
  std::mutex mutex_;
  std::deque<RequestFaults> faults_;
};

/// Steps of one rank whose state is on `disk`; it fails in the second step.
std::vector<double> losses_on(FailingDisk& disk, bool fails) {
  SmallRun run{.dtype = DType::kBFloat16};
  run.disk_optimizer = 1.0;
  const Model model = make_gpt(small_gpt());
  const RandomTokens source(11, 61, true);
  const ModelLayout layout = make_layout(model, run.wrap, 1);
  const Schedule schedule = plan(layout, plan_options(run));
  const auto world = make_thread_group(1);
  std::vector<double> losses;
  launch_ranks(world, [&](int rank, ProcessGroup& group) {
    const auto device = make_cpu_device();
    Memory memory(*device);
    RankGroups groups = RankGroups::split_from(group, schedule);
    TrainingState state(layout, state_options(schedule), rank, memory,
                        {.folder = ".", .calls = &disk});
    Executor executor(state, model, {{&schedule, &source}}, groups, memory, {});
    for (int step = 0; step < 3; ++step) {
      disk.fails = fails && step == 1;
      losses.push_back(executor.run_step(step, 1e-2).loss);
    }
  });
  return losses;
}

TEST(Offload, ADiskThatFailsIsAnErrorThatNamesFileAndUnitAndNeverWrongNumbers) {
  FailingDisk good;
  const std::vector<double> expected = losses_on(good, false);
  ASSERT_EQ(expected.size(), 3U);
  FailingDisk short_ones;
  short_ones.shortens = true;
  EXPECT_EQ(losses_on(short_ones, false), expected);
  for (const bool of_writes : {false, true}) {
    for (const int error : {EIO, ENOSPC}) {
      FailingDisk disk;
      disk.error = error;
      disk.of_writes = of_writes;
      try {
        losses_on(disk, true);
        ADD_FAILURE() << "nobody noticed";
      } catch (const Error& failure) {
        EXPECT_EQ(failure.code(), ErrorCode::kIo);
        EXPECT_THAT(failure.what(), HasSubstr("embedding."));
        EXPECT_THAT(failure.what(), HasSubstr("rank 0"));
        EXPECT_THAT(failure.what(), HasSubstr(std::strerror(error)));
      }
    }
  }
}

/// A plan with state on disk and gradients on the host, of which one thing is changed.
class ABrokenTier : public testing::Test {
 protected:
  ABrokenTier() {
    SmallRun run{.ranks = 2, .strategy = "zero2", .micro_steps = 2};
    run.disk_optimizer = run.offload_gradients = 1.0;
    const Model model = make_gpt(small_gpt());
    schedule_ = plan(make_layout(model, run.wrap, run.ranks), plan_options(run));
    EXPECT_EQ(refusals(), "");
  }
  std::string refusals() const { return text_of(validate(schedule_)); }
  /// The first copy from a buffer to another, by the ends of their names.
  int copy(std::string_view from, std::string_view to) const {
    return find(schedule_, [&](const Action& action) {
      return action.operation == &operations::kCopy &&
             schedule_.buffer(action.reads.front()).name.ends_with(from) &&
             schedule_.buffer(action.writes.front()).name.ends_with(to);
    });
  }
  Schedule schedule_;
};

TEST_F(ABrokenTier, ThatReadsATensorToAnothersSlotIsRefused) {
  at(schedule_, copy("embedding.master", "o0.master")).writes.front().buffer =
      schedule_.find("o0.first-moment");
  EXPECT_THAT(refusals(), HasSubstr("which is for state that is on disk"));
}

TEST_F(ABrokenTier, ThatWritesATensorBackToAnotherIsRefused) {
  at(schedule_, copy("o0.first-moment", "embedding.first-moment")).writes.front().buffer =
      schedule_.find("embedding.second-moment");
  EXPECT_THAT(refusals(), HasSubstr("which is not where it came from"));
}

TEST_F(ABrokenTier, ThatUpdatesWhatWasNotReadIsRefused) {
  schedule_ = without(schedule_, copy("embedding.second-moment", "o0.second-moment"));
  EXPECT_THAT(refusals(), HasSubstr("must read a copy of embedding.second-moment"));
}

TEST_F(ABrokenTier, ThatDoesNotWriteBackIsRefused) {
  schedule_ = without(schedule_, copy("o0.master", "embedding.master"));
  EXPECT_THAT(refusals(), HasSubstr("o0.master, which still holds embedding"));
}

TEST_F(ABrokenTier, ThatReadsAPartOfATensorIsRefused) {
  Action& read = at(schedule_, copy("embedding.master", "o0.master"));
  read.reads.front().sharded = read.writes.front().sharded = {};
  EXPECT_THAT(refusals(), HasSubstr("embedding.master is sharded over"));
}

TEST_F(ABrokenTier, ThatUpdatesADiskInPlaceIsRefused) {
  Action& step = at(schedule_, find(schedule_, operations::kOptimizerStep));
  for (auto* const operands : {&step.reads, &step.writes}) {
    for (Operand& operand : *operands) {
      if (schedule_.buffer(operand).name == "o0.master") {
        operand.buffer = schedule_.find("embedding.master");
      }
    }
  }
  EXPECT_THAT(refusals(), HasSubstr("is on disk, which only copies reach"));
}

TEST_F(ABrokenTier, ThatHasSomethingElseOnDiskIsRefused) {
  buffer(schedule_, "embedding.gradient@host").tier = Tier::kDisk;
  EXPECT_THAT(refusals(), HasSubstr("embedding.gradient@host is on disk, where the training"));
}

TEST_F(ABrokenTier, ThatCopiesFromDiskToTheDeviceIsRefused) {
  Action& back = at(schedule_, copy("o0.master", "embedding.parameter"));
  back.reads.front().buffer = schedule_.find("embedding.master");
  EXPECT_THAT(refusals(), HasSubstr("copies between disk and device"));
}

TEST_F(ABrokenTier, ThatAddsToASumThatWasNotFetchedIsRefused) {
  schedule_ = without(schedule_, copy(".gradient@host", ""));
  EXPECT_THAT(refusals(), HasSubstr("which holds nothing at this point"));
}

TEST_F(ABrokenTier, ThatLeavesASumInItsSlotIsRefused) {
  schedule_ = without(schedule_, copy("sum0", ".gradient@host"));
  EXPECT_THAT(refusals(), HasSubstr("overwrites sum0, which still holds"));
}

/// A plan with parameters away from the device.
class ABrokenHome : public ABrokenTier {
 protected:
  void plan_again(SmallRun run) {
    run.ranks = 2;
    run.dtype = DType::kBFloat16;
    const Model model = make_gpt(small_gpt());
    schedule_ = plan(make_layout(model, run.wrap, run.ranks), plan_options(run));
    EXPECT_EQ(refusals(), "");
  }
  void plan_on_host() { plan_again({.strategy = "zero1", .offload_parameters = 1.0}); }
  void plan_on_disk() { plan_again({.strategy = "full_shard", .disk_parameters = 1.0}); }
};

TEST_F(ABrokenHome, ThatKeepsUpdatedPartsToItselfIsRefused) {
  plan_on_host();
  schedule_ = without(schedule_, copy("update1", "h.0.parameter"));
  EXPECT_THAT(refusals(), HasSubstr("update1, which still holds h.0"));
}

TEST_F(ABrokenHome, ThatDoesNotGatherUpdatedPartsIsRefused) {
  plan_on_host();
  schedule_ = without(schedule_, find(schedule_, [&](const Action& action) {
                        return action.operation == &operations::kAllGather &&
                               schedule_.buffer(action.writes.front()).name == "update1";
                      }));
  EXPECT_THAT(refusals(), HasSubstr("update1 is sharded over shard, not unsharded"));
}

TEST_F(ABrokenHome, ThatGathersUpdatedPartsToWhereLayersReadIsRefused) {
  plan_on_host();
  Action& gather = at(schedule_, find(schedule_, [&](const Action& action) {
                        return action.operation == &operations::kAllGather &&
                               schedule_.buffer(action.writes.front()).name == "update1";
                      }));
  gather.writes.front().buffer = schedule_.find("p0");
  EXPECT_NE(refusals(), "");
}

TEST_F(ABrokenHome, ThatWritesOnlyTheUpdatedPartToDiskIsRefused) {
  plan_again({.strategy = "zero1", .disk_parameters = 1.0});
  schedule_ = without(schedule_, copy("update0@host", "embedding.parameter"));
  EXPECT_THAT(refusals(), HasSubstr("update0@host, which still holds embedding"));
}

TEST_F(ABrokenHome, ThatReadsParametersFromDiskToAnothersSlotIsRefused) {
  plan_on_disk();
  at(schedule_, copy("h.0.parameter", "d1")).writes.front().buffer = schedule_.find("o0.parameter");
  EXPECT_NE(refusals(), "");
}

TEST_F(ABrokenHome, ThatDoesNotWriteParametersBackToDiskIsRefused) {
  plan_on_disk();
  schedule_ = without(schedule_, copy("o0.parameter", "embedding.parameter"));
  EXPECT_THAT(refusals(), HasSubstr("o0.parameter, which still holds embedding"));
}

TEST_F(ABrokenHome, ThatUpdatesParametersThatWereNotReadIsRefused) {
  plan_on_disk();
  schedule_ = without(schedule_, copy("embedding.parameter", "o0.parameter"));
  EXPECT_THAT(refusals(), HasSubstr("must read a copy of embedding.parameter"));
}

TEST(Offload, StateOnDiskNeedsAFolder) {
  SmallRun run;
  run.disk_optimizer = 1.0;
  const Model model = make_gpt(small_gpt());
  const ModelLayout layout = make_layout(model, run.wrap, 1);
  const auto device = make_cpu_device();
  Memory memory(*device);
  try {
    const TrainingState state(layout, plan_options(run).state(), 0, memory);
    ADD_FAILURE() << "it was made";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kConfig);
    EXPECT_THAT(error.what(), HasSubstr("`offload_path`"));
  }
}

TEST(Offload, PlansReadBackAndDescribeTheStateThatTheyWereMadeFor) {
  for (SmallRun run : runs()) {
    for (const double share : {1.0, 0.5, 0.25}) {
      run.offload_optimizer = share;
      run.offload_parameters = share < 0.5 ? 0.5 : 0.0;
      run.offload_gradients = 0.75 - share / 2;
      run.disk_optimizer = run.ranks == 2 ? 0.75 : 0.0;
      run.disk_parameters = run.ranks == 3 ? 0.75 - share / 2 : 0.0;
      SCOPED_TRACE(name_of(run));
      const Model model = make_gpt(small_gpt());
      const ModelLayout layout = make_layout(model, run.wrap, run.ranks);
      const Schedule schedule = plan(layout, plan_options(run));
      const Schedule snapshot = with_snapshot(schedule, run.stochastic_rounding);
      for (const Schedule* const s : {&schedule, &snapshot}) {
        for (const Violation& violation : validate(*s)) ADD_FAILURE() << violation.message;
        EXPECT_EQ(parse_schedule(to_string(*s)), *s);
        EXPECT_EQ(schedule_from_json(to_json(*s)), *s);
        const std::vector<ScheduleBuffer> state = state_buffers(layout, state_options(*s));
        EXPECT_TRUE(std::ranges::equal(state, std::span(s->buffers).first(state.size())));
      }
      run.offload_optimizer = run.offload_parameters = run.offload_gradients = 0.0;
      run.disk_optimizer = run.disk_parameters = 0.0;
      EXPECT_EQ(hash_of(gradient_sums(schedule)),
                hash_of(gradient_sums(plan(layout, plan_options(run)))));
    }
  }
}

}  // namespace
}  // namespace tessera::test::offload_test
