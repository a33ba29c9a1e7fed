#include "calibrate/step_calibration.h"

#include <algorithm>
#include <functional>
#include <set>

#include "output/terminal.h"
#include "output/text_output.h"
#include "plan/planned_run.h"
#include "tessera/core/error.h"
#include "tessera/kernels/philox.h"
#include "tessera/model/gpt_family.h"
#include "tessera/sharding/operation.h"
#include "tessera/trainer/rank_binding.h"
#include "tessera/trainer/training_plan.h"

namespace tessera::cli {
namespace {

constexpr std::size_t kShownKernels = 6;
/// A kernel that loses less of a step is not shown.
constexpr double kWorthShowing = 0.005;

/// Samples of tokens that mean nothing: kernels take as long for any. Each is one document. Of a
/// model with labels the last token has one, of an encoder the first.
class RandomSamples : public TokenShapes {
 public:
  explicit RandomSamples(const GptChoice& choice)
      : TokenShapes(choice.sequence_length, choice.has_starts),
        vocabulary_(choice.config.vocab_size),
        labels_(std::ssize(choice.config.labels)),
        labelled_(family_of(choice.config).encoder ? 0 : choice.sequence_length - 1) {}
  std::int64_t fill(std::int64_t first, std::int64_t micro_batch, TensorView inputs,
                    TensorView targets) const override {
    auto* const tokens = inputs.as<std::int32_t>();
    const std::int64_t count = micro_batch * sequence_length();
    for (std::int64_t i = 0; i < count; ++i) {
      tokens[i] = drawn(first * sequence_length() + i, vocabulary_);
      const bool is_labelled = i % sequence_length() == labelled_;
      targets.as<std::int32_t>()[i] = labels_ == 0
                                          ? drawn(first * sequence_length() + i + 1, vocabulary_)
                                      : is_labelled ? drawn(first * sequence_length() + i, labels_)
                                                    : kIgnored;
    }
    std::fill(tokens + count, tokens + inputs.numel(), 0);  // where documents begin
    return labels_ == 0 ? count : micro_batch;
  }

 private:
  static constexpr std::int32_t kIgnored = -100;

  static std::int32_t drawn(std::int64_t place, std::int64_t below) {
    return static_cast<std::int32_t>(random_word({1, 2}, place) %
                                     static_cast<std::uint32_t>(below));
  }

  std::int64_t vocabulary_, labels_;
  std::int64_t labelled_;  ///< the place in a sample
};

/// The run of one rank that needs no others, as the planner takes it.
void make_alone(TrainerOptions& options, Recompute recompute, int threads) {
  options.strategy = "no_shard";
  options.trainable_strategy.clear();
  options.placement.reset();
  options.ranks = 1;
  options.replicas = 0;
  options.pipeline = {};
  options.accumulate = 1;
  options.offload_optimizer = options.offload_parameters = options.offload_gradients = {};
  options.offload_activations = ActivationOffload::kNone;
  options.policy.recompute = recompute;
  options.overlap_steps = false;
  options.threads_per_rank = threads;
  options.trace = {};
  options.checkpoints = {};
}

/// The CPUs of each rank of a run that is not told where to be; none: it is not bound.
std::vector<CpuList> cpus_of_copies(int copies, int threads) {
  TrainerOptions options;
  options.ranks = copies;
  options.threads_per_rank = threads;
  options.device = DeviceChoice::kCpu;
  std::vector<CpuList> cpus;
  for (const RankCores& own : decide_binding(options).ranks) cpus.push_back(own.cpus);
  return cpus;
}

/// "bf16", "fp8", "fp8 by delayed scales".
std::string precision_of(const TrainerOptions& options) {
  if (!options.fp8.enabled) return std::string(to_string(options.precision));
  if (options.fp8.recipe == Fp8Options{}.recipe) return "fp8";
  return concat("fp8 by ", to_string(options.fp8.recipe), " scales");
}

}  // namespace

std::vector<StepTimes> calibrate_steps(const Config& config, const HardwareProfile& profile,
                                       int cores, double seconds, const StepProgress& progress) {
  std::vector<StepTimes> all;
  const bool on_gpu = profile.device == "cuda";
  for (const int threads : on_gpu ? std::set<int>{1} : std::set<int>{1, cores}) {
    for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
      Config own = config;
      const PlannedRun run(own, [&](TrainerOptions& options, const RunInputs& /*inputs*/) {
        make_alone(options, recompute, threads);
        options.device = on_gpu ? DeviceChoice::kCuda : DeviceChoice::kCpu;
      });
      const RandomSamples samples(run.choice);
      const std::string what =
          concat(run.model.name, " in ", precision_of(run.plan.options), ", ",
                 run.plan.options.micro_batch, " x ", run.choice.sequence_length,
                 recompute == Recompute::kFull ? ", recomputed" : "");
      const int copies = on_gpu ? 1 : std::max(1, cores / threads);
      const std::string ranks =
          on_gpu ? "one rank" : concat(counted(copies, "rank"), " of ", counted(threads, "thread"));
      const auto goes_on = [&] { return progress(concat(what, ", ", ranks)); };
      StepTimes times = time_steps({.program = {&run.plan.schedule(), &samples},
                                    .layout = run.plan.layout,
                                    .model = run.model,
                                    .options = executor_options(run.plan.options),
                                    .copies = copies,
                                    .cpus = cpus_of_copies(copies, threads),
                                    .seconds = seconds,
                                    .goes_on = goes_on},
                                   profile);
      times.model = what;
      times.source =
          concat("inside of steps of ", ranks, on_gpu ? "" : " at once", ", on this machine");
      all.push_back(std::move(times));
    }
  }
  return all;
}

void print_steps(std::ostream& out, const StepTimes& steps) {
  double inside = 0.0, alone = 0.0, passes = 0.0;
  for (const StepTimes::Kernel& kernel : steps.kernels) {
    inside += kernel.calls * kernel.seconds;
    alone += kernel.calls * kernel.alone;
    if (find_operation(kernel.operation)->is_pass) passes += kernel.calls;
  }
  print_paragraph(out, concat(steps.model, ", ", steps.source, ": a step takes ", in_ms(steps.step),
                              " ms, its kernels ", in_ms(inside), " ms and alone ", in_ms(alone),
                              " ms; beside kernels ", in_ms(steps.beside * passes),
                              " ms, between steps ", in_ms(steps.between), " ms"));
  std::vector<const StepTimes::Kernel*> slowest;
  const auto lost = [](const StepTimes::Kernel* kernel) {
    return kernel->calls * (kernel->seconds - kernel->alone);
  };
  for (const StepTimes::Kernel& kernel : steps.kernels) slowest.push_back(&kernel);
  std::ranges::sort(slowest, std::greater<>(), lost);
  slowest.resize(std::min(slowest.size(), kShownKernels));
  std::erase_if(slowest, [&](const StepTimes::Kernel* kernel) {
    return lost(kernel) < kWorthShowing * steps.step;
  });
  TextTable table({"operation", "kernel", "size", "inside, ms", "lost, ms"});
  for (const StepTimes::Kernel* const kernel : slowest) {
    std::vector<std::string> size;
    for (const double n : kernel->size) size.push_back(concat(static_cast<std::int64_t>(n)));
    table.add({kernel->operation, kernel->kernel, tessera::joined(size, " x "),
               in_ms(kernel->calls * kernel->seconds), in_ms(lost(kernel))});
  }
  if (!slowest.empty()) table.print(out);
  out << "\n";
}

void replace_steps(HardwareProfile& profile, std::vector<StepTimes> fresh) {
  for (StepTimes& steps : fresh) {
    std::erase_if(profile.steps, [&](const StepTimes& old) {
      return old.model == steps.model && old.threads == steps.threads;
    });
    profile.steps.push_back(std::move(steps));
  }
}

}  // namespace tessera::cli
