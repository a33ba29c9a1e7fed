#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "command_line.h"
#include "commands.h"
#include "gpt_settings.h"
#include "terminal.h"
#include "tessera/core/error.h"
#include "tessera/trainer/launch.h"
#include "tessera/trainer/rank_device.h"
#include "tessera/trainer/trainer.h"
#include "tessera/trainer/trainer_settings.h"

namespace tessera::cli {
namespace {

constexpr std::int64_t kLength = 32;
constexpr std::int64_t kVocabulary = 61;
constexpr std::int64_t kSteps = 4;
constexpr std::int64_t kCollectiveSizes[] = {0, 1, 64, 10007};

/// Tokens that follow from the ones before: there is something to learn.
class Sequences : public BatchSource {
 public:
  Shape input_shape(std::int64_t n) const override { return {n, kLength}; }
  DType input_dtype() const override { return DType::kInt32; }
  Shape target_shape(std::int64_t n) const override { return {n, kLength}; }
  DType target_dtype() const override { return DType::kInt32; }
  std::int64_t fill(std::int64_t first, std::int64_t micro_batch, TensorView inputs,
                    TensorView targets) const override {
    for (std::int64_t s = 0; s < micro_batch; ++s) {
      for (std::int64_t i = 0; i < kLength; ++i) {
        const std::int64_t at = s * kLength + i;
        inputs.as<std::int32_t>()[at] = token(first + s, i);
        targets.as<std::int32_t>()[at] = token(first + s, i + 1);
      }
    }
    return micro_batch * kLength;
  }

 private:
  static std::int32_t token(std::int64_t sample, std::int64_t i) {
    return static_cast<std::int32_t>((sample * 17 + i * (1 + sample % 5)) % kVocabulary);
  }
};

/// What a strategy must not change.
struct Outcome {
  std::vector<double> losses, norms;
  std::string parameters;
  bool operator==(const Outcome&) const = default;
};

class SelfTest {
 public:
  explicit SelfTest(TrainerOptions options)
      : options_(std::move(options)),
        model_(make_gpt({.vocab_size = kVocabulary,
                         .context_length = kLength,
                         .layers = 2,
                         .heads = 2,
                         .width = 32})) {}

  int run() {
    std::cout << "Testing " << options_.ranks << " ranks on "
              << (options_.device == DeviceChoice::kCuda ? "GPUs" : "the CPU") << ", "
              << to_string(options_.precision) << "\n";
    check("collectives", [this] { return test_collectives(); });
    check("no_shard learns", [this] { return test_reference(); });
    for (const Strategy& strategy : strategies()) {
      if (strategy.name == "no_shard") continue;
      const bool possible = !strategy.hybrid || options_.ranks % 2 == 0;
      if (!possible) {
        std::cout << "  --  " << strategy.name << ": needs an even number of ranks\n";
        continue;
      }
      check(strategy.name, [&] { return test_strategy(strategy); });
    }
    std::cout << "\n";
    if (failures_ == 0) {
      std::cout << "All is well: this machine is ready to train, and every strategy gives the same "
                   "bits on it.\n";
      return kExitGood;
    }
    std::cout << "Do not train here yet: " << failures_
              << (failures_ == 1 ? " check has failed.\n" : " checks have failed.\n");
    return kExitRunTime;
  }

 private:
  /// `test` returns what went well; it throws, or returns "" and has told, what did not.
  void check(const std::string& name, const std::function<std::string()>& test) {
    const Terminal terminal = inspect(stdout);
    try {
      const std::string result = test();
      std::cout << "  " << paint(terminal, Colour::kGreen, "ok") << "  " << name << ": " << result
                << "\n";
    } catch (const std::exception& error) {
      ++failures_;
      std::cout << "  " << paint(terminal, Colour::kRed, "FAILED") << "  " << name << ": "
                << error.what() << "\n";
    }
    std::cout << std::flush;
  }

  /// Sums of whole numbers, which are exact in any order.
  std::string test_collectives() {
    launch_ranks(make_groups(options_), [this](int rank, ProcessGroup& group) {
      const auto device = make_rank_device(options_, rank);
      const auto stream = device->create_stream({.name = "self-test"});
      for (const std::int64_t numel : kCollectiveSizes) {
        exchange(group, *device, *stream, numel);
      }
    });
    return "all-gather, reduce-scatter and all-reduce of up to 10,007 elements per rank";
  }

  static void exchange(ProcessGroup& group, Device& device, Stream& stream, std::int64_t numel) {
    const std::int64_t n = group.size();
    Memory memory(device);
    const auto tensor = [&](std::int64_t count) {
      return Tensor::empty(memory, Shape{count}, DType::kFloat32, MemoryCategory::kWorkspace,
                           "self-test");
    };
    const Tensor whole = tensor(numel * n);
    const Tensor part = tensor(numel);
    const KernelTable& kernels = kernels_for(device);
    const auto fill = [&](const TensorView& view, float value) {
      stream.submit({.name = "fill"},
                    [&, view, value] { kernels.fill({.dst = view, .value = value}, stream); });
    };
    const auto expect = [&](const char* what, const TensorView& view, std::int64_t at,
                            float wanted) {
      if (view.numel() == 0) return;
      float* const host = static_cast<float*>(device.allocate_host(sizeof(float)));
      stream.copy(host, view.as<float>() + at, sizeof(float));
      stream.synchronize();
      const float found = *host;
      device.deallocate_host(host, sizeof(float));
      require(found == wanted, ErrorCode::kInternal, what, " of ", numel, " elements gave ", found,
              " instead of ", wanted, " on rank ", group.rank());
    };
    const auto own = static_cast<float>(group.rank() + 1);
    const auto sum = static_cast<float>(n * (n + 1) / 2);
    fill(part, own);
    group.all_gather(part, whole, stream);
    for (std::int64_t r = 0; r < n; ++r) {
      expect("all-gather", whole, r * numel, static_cast<float>(r + 1));
    }
    fill(whole, own);
    group.reduce_scatter(whole, part, false, stream);
    expect("reduce-scatter", part, numel - 1, sum);
    fill(part, own);
    group.all_reduce(part, stream);
    expect("all-reduce", part, numel / 2, sum);
    stream.synchronize();
  }

  Outcome train(const Strategy& strategy) {
    TrainerOptions options = options_;
    options.strategy = strategy.name;
    options.replicas = strategy.hybrid ? 2 : 0;
    options.steps = kSteps;
    options.micro_batch = 2;
    options.optimizer.clip_norm = 1.0;
    options.learning_rate = {.peak = 1e-2};
    options.deterministic_collectives = true;
    const Trainer trainer(model_, data_, options);
    Outcome outcome;
    const TrainingSummary summary = trainer.train([&](const StepRecord& record) {
      outcome.losses.push_back(record.loss);
      outcome.norms.push_back(record.gradient_norm);
      return true;
    });
    outcome.parameters = summary.parameters_sha256;
    require(summary.measured_memory == summary.predicted_memory, ErrorCode::kInternal,
            "the measured peak of memory is ", summary.measured_memory.total,
            " bytes, and the plan predicted ", summary.predicted_memory.total);
    for (const Traffic& counted : summary.counted_traffic) {
      require(counted.sent_bytes == summary.predicted_traffic.sent_bytes, ErrorCode::kInternal,
              "the bytes sent are not those that the plan predicted");
    }
    return outcome;
  }

  std::string test_reference() {
    reference_ = train(find_strategy("no_shard"));
    require(reference_.losses.back() < reference_.losses.front(), ErrorCode::kInternal,
            "the loss went from ", reference_.losses.front(), " to ", reference_.losses.back());
    return "loss " + fixed(reference_.losses.front(), 3) + " -> " +
           fixed(reference_.losses.back(), 3) + " in " + std::to_string(kSteps) + " steps";
  }

  std::string test_strategy(const Strategy& strategy) {
    const Outcome outcome = train(strategy);
    require(outcome.losses == reference_.losses, ErrorCode::kInternal,
            "other losses than no_shard, the last ", outcome.losses.back(), " instead of ",
            reference_.losses.back());
    require(outcome == reference_, ErrorCode::kInternal,
            "other gradient norms or parameters than no_shard");
    return "the same losses, norms and parameters; memory and traffic as predicted";
  }

  TrainerOptions options_;
  Sequences data_;
  Model model_;
  Outcome reference_;
  int failures_ = 0;
};

int run_self_test(Config config) {
  TrainerOptions options = trainer_options(config);
  if (!config.given("ranks")) options.ranks = 4;
  options.threads_per_rank = 0;
  options.trace = false;
  options.device = resolved_device(options.device);
  // Ranks may share a GPU here: the point is that every strategy runs.
  if (options.device == DeviceChoice::kCuda && !config.given("group")) {
    options.group = GroupChoice::kThread;
  }
  options = on_this_machine(std::move(options));
  SelfTest test(std::move(options));
  return test.run();
}

}  // namespace

Command add_self_test(CLI::App& program) {
  const auto command = std::make_shared<SettingsCommand>(
      program, "test", "Test on this machine that every strategy works and gives the same bits",
      trainer_settings(), joined({model_settings(), train_only_settings(), plan_only_settings()}));
  return {&command->command(), [command] {
            Config config = command->config(std::cerr);
            print_announcements(std::cerr, config);
            return run_self_test(std::move(config));
          }};
}

}  // namespace tessera::cli
