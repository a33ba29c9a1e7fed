#include <CLI/CLI.hpp>
#include <functional>
#include <utility>
#include <vector>

#include "bench/bench_commands.h"
#include "commands.h"

namespace tessera::cli {

void add_number(CLI::App& command, const char* flags, int& value, int least, const char* help,
                int most) {
  command.add_option(flags, value, help)
      ->check(CLI::Range(least, most).description(""))
      ->type_name("N");
}

std::function<int()> add_bench(CLI::App& app) {
  app.require_subcommand(1);
  std::vector<std::pair<CLI::App*, std::function<int()>>> commands;
  const auto add = [&](const char* name, const char* help, const auto& fill) {
    CLI::App* const command = app.add_subcommand(name, help);
    commands.emplace_back(command, fill(*command));
  };
  add("collectives", "Time collectives, with the options and the table of nccl-tests",
      add_bench_collectives);
  add("kernels", "Time every kernel with Google Benchmark", add_bench_kernels);
  add("compare", "Compare two results, and say what moved beyond the noise", add_bench_compare);
  return [commands] {
    for (const auto& [command, run] : commands) {
      if (command->parsed()) return run();
    }
    return kExitUsage;  // not reached: one of them is required
  };
}

}  // namespace tessera::cli
