#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <iosfwd>
#include <iostream>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "calibrate/step_calibration.h"
#include "commands.h"
#include "env/reports.h"
#include "output/run_report.h"
#include "output/terminal.h"
#include "output/text_output.h"
#include "run/interrupt.h"
#include "settings/command_line.h"
#include "settings/data_choice.h"
#include "settings/gpt_choice.h"
#include "settings/gpt_settings.h"
#include "settings/option_names.h"
#include "tessera/compat/config.h"
#include "tessera/core/cuda_device.h"
#include "tessera/core/error.h"
#include "tessera/core/machine_load.h"
#include "tessera/core/usable_cores.h"
#include "tessera/kernels/gemm_table.h"
#include "tessera/lab/calibrate.h"
#include "tessera/lab/hardware_profile.h"
#include "tessera/lab/measurement_noise.h"
#include "tessera/lab/step_times.h"
#include "tessera/trainer/output_file.h"
#include "tessera/trainer/rank_device.h"
#include "tessera/trainer/trainer_settings.h"
#include "tessera/trainer/training_plan.h"

// Times this machine: its kernels and collectives for `tessera simulate`, and for a model how its
// GPU runs each GEMM fastest.
namespace tessera::cli {
namespace {

constexpr const char* kTableFlag = "--gemm-table";

std::string in_microseconds(double seconds) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f us", seconds * 1e6);
  return text.data();
}

/// "fused, 412.3 us; runner-up 415.0 us, heuristic 431.0 us".
std::string describe(const GemmChoice& choice) {
  std::string text =
      concat(choice.fused ? "fused, " : "separate, ", in_microseconds(choice.seconds));
  if (choice.runner_up_seconds > 0.0) {
    text += concat("; runner-up ", in_microseconds(choice.runner_up_seconds));
  }
  return text + concat(", heuristic ", in_microseconds(choice.heuristic_seconds));
}

/// The GEMMs of a step and of an evaluation, from a plan: nothing runs.
std::vector<GemmArgs> gemms_of_run(Config& config, TrainerOptions options) {
  const GptChoice choice = choose_gpt(config);
  const Model model = make_model(choice);
  const TokenShapes shapes(choice.sequence_length);
  options.evaluation_samples = evaluation_division(options).samples_per_step();
  return record_gemms(make_training_plan({model, shapes, &shapes}, options));
}

/// Reads the file's table for this machine; empty if there is no file yet.
GemmTable table_to_extend(const std::string& path, const GemmMachine& machine) {
  if (!holds_something(path)) return {.machine = machine};
  GemmTable table = read_gemm_table(path);
  require_made_on(table, machine);
  return table;
}

/// Times what is missing in the file, problem by problem. Gives the signal that ended it, or 0.
int calibrate_gemms(const std::string& path, const std::vector<GemmArgs>& gemms) {
  const auto device = make_cuda_device();
  GemmTable table = table_to_extend(path, gemm_machine(*device));
  GemmCalibration calibration(*device);
  const std::vector<GemmArgs> missing = calibration.missing(gemms, table);
  std::cout << tessera::describe(table.machine) << "\n"
            << missing.size() << " GEMMs to time, " << table.choices.size() << " in " << path
            << " already\n"
            << std::flush;
  const InterruptGuard interrupt;
  for (std::size_t i = 0; i < missing.size(); ++i) {
    if (interrupt.signal() != 0) {
      std::cout << "stopped after " << i << " of " << missing.size() << "; " << path
                << " has what is done, and the same command goes on\n";
      return interrupt.signal();
    }
    const GemmProblem problem = calibration.time(missing[i], table);
    replace_file(path, kTableFlag, to_text(table));
    const auto choice = table.choices.find(problem);
    const std::string line =
        concat(i + 1, "/", missing.size(), "  ", tessera::describe(problem), ": ",
               choice == table.choices.end() ? "by our kernels, cuBLASLt has none"
                                             : describe(choice->second));
    print_line(stdout, line, 4);
    std::cout << std::flush;
  }
  std::cout << path << " has " << table.choices.size() << " GEMMs; train with " << kTableFlag << " "
            << path << "\n";
  return 0;
}

int calibrate_table(Config config, const std::string& path) {
  TrainerOptions options = trainer_options(config);
  options.gemm_table.clear();
  require(options.device != DeviceChoice::kCpu, ErrorCode::kConfig,
          "device is cpu, and only a GPU has GEMMs to choose between; leave --device out");
  options.device = resolved_device(DeviceChoice::kCuda);
  check_writable(path, kTableFlag, Writing::kByReplacing);
  const int signal = calibrate_gemms(path, gemms_of_run(config, options));
  return signal != 0 ? kExitSignal + signal : kExitGood;
}

constexpr const char* kProfileFlag = "--profile";
constexpr const char* kAgain = "again";
/// Steps of each kind are timed for this part of the budget.
constexpr double kShareOfSteps = 30.0;

/// "12/345, 3 of 180 s  gemm nt in fp32, 1 threads".
std::string in_words(const CalibrationProgress& progress) {
  return concat(std::min(progress.done + 1, progress.all), "/", progress.all, ", ",
                fixed(progress.used, 0), " of ", fixed(progress.budget, 0), " s  ", progress.what);
}

/// Profiles this machine's first visible GPU.
HardwareProfile profile_of_gpu(CalibrationOptions options) {
  const auto device = make_cuda_device();
  const CudaStatus status = cuda_status();
  for (const CudaGpu& gpu : status.gpus) {
    if (gpu.ordinal != device->ordinal()) continue;
    options.machine = gpu.name;
    options.memory_bytes = static_cast<double>(gpu.total_bytes);
  }
  // Most machines of several GPUs are of this kind.
  return calibrate_gpu(*device, options, find_profile("h100-sxm"));
}

void say_busy(const std::vector<std::string>& disturbances, bool anyway) {
  print_line(stderr, concat(anyway ? "note" : "error",
                            ": this machine is busy: ", tessera::joined(disturbances, "; "),
                            anyway ? ""
                                   : ". A profile of it would predict steps that are too "
                                     "slow, so none was written; calibrate while nothing else "
                                     "runs, or with --anyway"));
}

void write_profile(const std::string& path, const HardwareProfile& profile) {
  replace_file(path, kProfileFlag, to_text(profile));
  const MeasurementNoise& noise = *profile.noise;
  if (noise.left_out > 0 && profile.steps.empty()) {
    print_line(stdout, concat(noise.left_out, " of ", noise.points + noise.left_out,
                              " points were left out, and the sizes nearest to them stand for "
                              "them; a longer --time-budget measures more"));
  }
  std::cout << path << " has this machine's profile: tessera simulate --profile " << path << "\n";
}

/// Adds the kernels of the config's model, timed inside of steps; false: the machine is busy.
bool add_steps(const Config& config, HardwareProfile& profile, const QuietCalibration& calibration,
               LiveLine& line, const InterruptGuard& interrupt) {
  const int cores = usable_cores();
  const std::vector<std::string> seen = disturbances(calibration.watch());
  if (!seen.empty()) calibration.say(seen);
  if (!seen.empty() && !calibration.anyway) return false;
  // Four kinds of steps; kernels alone have the rest of the budget.
  const double seconds = config.get<double>("time_budget") / kShareOfSteps;
  std::vector<StepTimes> times =
      calibrate_steps(config, profile, cores, seconds, [&](const std::string& what) {
        line.show(what);
        return interrupt.signal() == 0;
      });
  line.erase();
  for (const StepTimes& steps : times) print_steps(std::cout, steps);
  replace_steps(profile, std::move(times));
  return true;
}

int calibrate_profile(const Config& config, const std::string& path) {
  const bool on_gpu = resolved_device(trainer_options(config).device) == DeviceChoice::kCuda;
  const bool anyway = config.get<bool>("anyway");
  check_writable(path, kProfileFlag, Writing::kByReplacing);
  const Machine machine = probe_machine();
  LiveLine line;
  const InterruptGuard interrupt;
  CalibrationOptions options{
      .name = std::filesystem::path(path).stem(),
      .machine = machine.processor.empty() ? "this processor" : machine.processor,
      .cores = usable_cores(),
      .memory_bytes = static_cast<double>(std::max<std::int64_t>(machine.memory_bytes, 1)),
      .budget = config.get<double>("time_budget"),
      .coarseness = config.get<bool>("quick") ? 2 : 1,
      .progress = [&](const CalibrationProgress& progress) {
        line.show(in_words(progress));
        return interrupt.signal() == 0;
      }};
  const QuietCalibration calibration{
      // A GPU's kernels need one core, which launches them.
      .watch = [&] { return watch_machine(on_gpu ? 1 : options.cores); },
      .measure =
          [&](const MachineLoad& before) {
            options.waiting = before.waiting;
            HardwareProfile profile = on_gpu ? profile_of_gpu(options) : calibrate_cpu(options);
            line.erase();
            return profile;
          },
      .say = [&](const std::vector<std::string>& seen) { say_busy(seen, anyway); },
      .anyway = anyway};
  const bool has_model = config.given("model") || config.given("init");
  const bool again = config.get<bool>(kAgain);
  require(!again || !on_gpu, ErrorCode::kConfig, flag_name(kAgain),
          " is of a CPU, which others disturb; choose --device cpu, or leave it out");
  try {
    std::optional<HardwareProfile> before;
    if ((has_model || again) && holds_something(path)) {
      before = find_profile(path);
      require((before->device == "cuda") == on_gpu, ErrorCode::kConfig, path, " is of a ",
              before->device == "cuda" ? "GPU" : "CPU", "; choose --device ",
              before->device == "cuda" ? "cuda" : "cpu", ", or another file");
    }
    std::optional<HardwareProfile> profile = before;
    if (before && !again) {
      print_line(stderr, concat(path,
                                ": kernels, one by one, and collectives are kept; remove the "
                                "file to time them anew, or give ",
                                flag_name(kAgain)));
    } else {
      profile = calibrate_if_quiet(calibration);
      if (!profile) return kExitRunTime;
      if (before) profile = faster_of(*before, *profile);
    }
    if (has_model && !add_steps(config, *profile, calibration, line, interrupt)) {
      return kExitRunTime;
    }
    write_profile(path, *profile);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kAborted || interrupt.signal() == 0) throw;
    std::cerr << "\n" << with_flags(error.what()) << "\n";
    return kExitSignal + interrupt.signal();
  }
  return kExitGood;
}

int run_calibrate(Config config) {
  const std::string table = trainer_options(config).gemm_table;
  const std::string profile = config.get<std::string>("profile");
  require(table.empty() != profile.empty(), ErrorCode::kConfig,
          "choose what to time: ", kProfileFlag,
          " FILE.json for this machine, kernel by kernel, or ", kTableFlag,
          " FILE for a model's GEMMs on this GPU");
  return table.empty() ? calibrate_profile(config, profile)
                       : calibrate_table(std::move(config), table);
}

std::vector<Setting> profile_settings() {
  return in_group(
      "Machine", MustAgree::kNone,
      {{.name = "profile",
        .fallback = "",
        .help = "time this machine's GPU, or with --device cpu its CPU: kernels at many sizes, "
                "copies, a CPU's collectives; write a profile for 'tessera simulate'; with "
                "--model, add that model's kernels as steps run them; nothing else should run "
                "meanwhile"},
       {.name = "time_budget",
        .type = SettingType::kNumber,
        .fallback = 180.0,
        .help = "seconds that it may take; of sizes for which that is too little, those nearest "
                "stand in",
        .minimum = 0},
       flag_setting("quick", "time every second size only"),
       flag_setting(kAgain,
                    "time a CPU's kernels and collectives once more, and keep the faster times of "
                    "these and of those that --profile has: for a machine that others disturb"),
       flag_setting("anyway", "write the profile even if other programs disturb it; it says so")});
}

}  // namespace

std::function<int()> add_calibrate(CLI::App& app) {
  const auto command = std::make_shared<SettingsCommand>(
      app, joined({model_settings(), trainer_settings(), profile_settings()}),
      joined({train_only_settings(), plan_only_settings()}));
  return [command] {
    Config config = command->config(kForAnyMachine);
    print_announcements(config);
    return run_calibrate(std::move(config));
  };
}

}  // namespace tessera::cli
