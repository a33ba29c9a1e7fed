#include <array>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <memory>
#include <utility>

#include "command_line.h"
#include "commands.h"
#include "gpt_settings.h"
#include "interrupt.h"
#include "terminal.h"
#include "tessera/core/cuda_device.h"
#include "tessera/core/error.h"
#include "tessera/kernels/gemm_table.h"
#include "tessera/trainer/output_file.h"
#include "tessera/trainer/rank_device.h"
#include "tessera/trainer/trainer_settings.h"
#include "tessera/trainer/training_plan.h"

// Times this machine for a model. So far: the GEMMs of a step, for --gemm-table.
namespace tessera::cli {
namespace {

constexpr const char* kFlag = "--gemm-table";

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
  options.evaluation_samples = options.micro_batch * options.ranks;
  return record_gemms(make_training_plan(model, shapes, options, &shapes), model, shapes, &shapes);
}

/// What the file has, of this machine; empty if there is none yet.
GemmTable table_to_extend(const std::string& path, const GemmMachine& machine) {
  if (!holds_something(path)) return {.machine = machine};
  GemmTable table = read_gemm_table(path);
  require_made_on(table, machine);
  return table;
}

/// At once or not at all: a run that is killed leaves what was there.
void replace_file(const std::string& path, const GemmTable& table) {
  const std::string fresh = path + ".new";
  OutputFile(fresh, kFlag).write(to_text(table));
  std::error_code error;
  std::filesystem::rename(fresh, path, error);
  require(!error, ErrorCode::kIo, path, ": cannot be replaced (", error.message(), "); give ",
          kFlag, " a path that is writable");
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
    replace_file(path, table);
    const auto choice = table.choices.find(problem);
    const std::string line =
        concat(i + 1, "/", missing.size(), "  ", tessera::describe(problem), ": ",
               choice == table.choices.end() ? "by our kernels, cuBLASLt has none"
                                             : describe(choice->second));
    std::cout << for_reader(inspect(stdout), line, 4) << "\n" << std::flush;
  }
  std::cout << path << " has " << table.choices.size() << " GEMMs; train with " << kFlag << " "
            << path << "\n";
  return 0;
}

int run_calibrate(Config config) {
  TrainerOptions options = trainer_options(config);
  const std::string path = std::exchange(options.gemm_table, "");
  require(!path.empty(), ErrorCode::kConfig, "nothing to calibrate: give ", kFlag,
          " a file, for the GEMMs of a model on this GPU");
  require(options.device != DeviceChoice::kCpu, ErrorCode::kConfig,
          "device is cpu, and only a GPU has GEMMs to choose between; leave --device out");
  options.device = resolved_device(DeviceChoice::kCuda);
  check_writable(path, kFlag, Writing::kByReplacing);
  const int signal = calibrate_gemms(path, gemms_of_run(config, options));
  return signal != 0 ? kExitSignal + signal : kExitGood;
}

}  // namespace

Command add_calibrate(CLI::App& program) {
  const auto command = std::make_shared<SettingsCommand>(
      program, "calibrate",
      "Time this machine for a model: how its GPU runs each GEMM fastest, for --gemm-table",
      joined({model_settings(), trainer_settings()}),
      joined({train_only_settings(), plan_only_settings()}));
  return {&command->command(), [command] {
            Config config = command->config(std::cerr, kForAnyMachine);
            print_announcements(std::cerr, config);
            return run_calibrate(std::move(config));
          }};
}

}  // namespace tessera::cli
