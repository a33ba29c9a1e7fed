#include "self_test/self_test.h"

#include <utility>

#include "output/terminal.h"
#include "settings/gpt_choice.h"
#include "tessera/core/error.h"
#include "tessera/sharding/gradient_sums.h"
#include "tessera/trainer/byte_size.h"
#include "tessera/trainer/trainer.h"

namespace tessera::cli {
namespace {

constexpr std::int64_t kVocabulary = 61;
constexpr std::int64_t kSteps = 4;

/// On a GPU heads and lengths that cuDNN's attention takes, in bf16: what users train with is what
/// is tested.
GptConfig model_for(DeviceChoice device) {
  const bool gpu = device == DeviceChoice::kCuda;
  return {.vocab_size = kVocabulary,
          .context_length = gpu ? 64 : 32,
          .layers = 4,
          .heads = 2,
          .width = gpu ? 128 : 32};
}

/// Tokens that follow from the ones before: there is something to learn.
class Sequences : public TokenShapes {
 public:
  explicit Sequences(std::int64_t length) : TokenShapes(length) {}
  std::int64_t fill(std::int64_t first, std::int64_t micro_batch, TensorView inputs,
                    TensorView targets) const override {
    for (std::int64_t s = 0; s < micro_batch; ++s) {
      for (std::int64_t i = 0; i < sequence_length(); ++i) {
        const std::int64_t at = s * sequence_length() + i;
        inputs.as<std::int32_t>()[at] = token(first + s, i);
        targets.as<std::int32_t>()[at] = token(first + s, i + 1);
      }
    }
    return micro_batch * sequence_length();
  }

 private:
  static std::int32_t token(std::int64_t sample, std::int64_t i) {
    return static_cast<std::int32_t>((sample * 17 + i * (1 + sample % 5)) % kVocabulary);
  }
};

}  // namespace

SelfTestTraining::SelfTestTraining(TrainerOptions options)
    : options_(std::move(options)),
      config_(model_for(options_.device)),
      model_(make_gpt(config_)) {}

TrainingOutcome SelfTestTraining::train(const Strategy& strategy) const {
  const Sequences data(config_.context_length);
  TrainerOptions options = with_strategy(options_, strategy.name);
  options.steps = kSteps;
  options.micro_batch = 2;
  // Strategies that add up micro-steps before they reduce, or inside replicas first, add in another
  // order: then their bits may differ.
  options.accumulate = 1;
  options.reduction_order = ReductionOrder::kRank;
  options.optimizer.clip_norm = 1.0;
  options.learning_rate = {.peak = 0.32 / static_cast<double>(config_.width)};
  options.deterministic_collectives = true;
  options.hash_parameters = true;
  TrainingOutcome outcome;
  const Trainer trainer(model_, data, options);
  outcome.sums = hash_of(gradient_sums(trainer.plan().step));
  require(trainer.plan().options.placement == strategy.placement, ErrorCode::kInternal,
          "another strategy than ", strategy.name, " was planned");
  const TrainingSummary summary = trainer.train([&](const StepRecord& record) {
    outcome.losses.push_back(record.loss);
    outcome.norms.push_back(record.gradient_norm);
    return true;
  });
  outcome.first_loss = summary.first_loss;
  outcome.last_loss = summary.last_loss;
  outcome.parameters_sha256 = summary.parameters_sha256;
  outcome.peak_bytes = summary.measured_memory.total;
  require(summary.measured_memory == summary.predicted_memory, ErrorCode::kInternal,
          "the measured peak of memory is ", summary.measured_memory.total,
          " bytes, and the plan predicted ", summary.predicted_memory.total);
  for (const Traffic& counted : summary.counted_traffic) {
    require(counted.sent_bytes == summary.predicted_traffic.sent_bytes, ErrorCode::kInternal,
            "the bytes sent are not those that the plan predicted");
  }
  return outcome;
}

std::string SelfTestTraining::run_reference() {
  reference_ = train(find_strategy("no_shard"));
  require(reference_.last_loss < reference_.first_loss, ErrorCode::kInternal, "the loss went from ",
          reference_.first_loss, " to ", reference_.last_loss);
  return concat("loss ", fixed(reference_.first_loss, 3), " -> ", fixed(reference_.last_loss, 3),
                " in ", kSteps, " steps, with ", format_bytes(reference_.peak_bytes), " per rank");
}

std::string SelfTestTraining::run(const Strategy& strategy) const {
  const TrainingOutcome outcome = train(strategy);
  require(outcome.sums == reference_.sums, ErrorCode::kInternal,
          "the plan adds up gradients in another way than that of no_shard");
  require(outcome.losses == reference_.losses && outcome.last_loss == reference_.last_loss,
          ErrorCode::kInternal, "other losses than no_shard, the last ", outcome.last_loss,
          " instead of ", reference_.last_loss);
  require(outcome.norms == reference_.norms, ErrorCode::kInternal,
          "other gradient norms than no_shard");
  require(outcome.parameters_sha256 == reference_.parameters_sha256, ErrorCode::kInternal,
          "other parameters than no_shard");
  return concat("the same bits, with ", format_bytes(outcome.peak_bytes),
                " per rank, as predicted");
}

}  // namespace tessera::cli
