#include <CLI/CLI.hpp>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "commands.h"
#include "env/reports.h"
#include "output/text_output.h"

namespace tessera::cli {
namespace {

constexpr int kMostShown = 4096;  // ranks of a machine

ReportPart program_report() {
  return {
      .rows = {{"tessera", TESSERA_VERSION}, {"built by", TESSERA_BUILT_BY}},
      .fields = {{"kind", "env"}, {"tessera", TESSERA_VERSION}, {"built_by", TESSERA_BUILT_BY}}};
}

int run_env(const std::string& given, const BindingQuestion& question, bool json) {
  const CudaStatus cuda = cuda_status();
  const ConfigInForce config = config_in_force(given);
  const BindingReport binding = binding_report(question, cuda);
  ReportPart report = program_report();
  for (const ReportPart& part :
       {machine_report(), library_report(cuda), launch_report(), config.report, binding.part}) {
    report.rows.insert(report.rows.end(), part.rows.begin(), part.rows.end());
    report.fields.update(part.fields);
  }
  // The report is whole in any case; a file that was named and is of no use is a usage error.
  const int exit_code = given.empty() || config.readable ? kExitGood : kExitUsage;
  if (json) {
    write_json(std::cout, report.fields);
    return exit_code;
  }
  std::cout << "Copy this into a report:\n\n";
  for (const auto& [name, value] : report.rows) std::cout << "- " << name << ": " << value << "\n";
  if (binding.map) {
    std::cout << "\n";
    binding.map->print(std::cout);
  }
  if (cuda.gpus.size() > 1) {
    std::cout << "\n";
    peer_matrix(cuda.gpus).print(std::cout);
  }
  return exit_code;
}

}  // namespace

std::function<int()> add_env(CLI::App& app) {
  struct Request {
    std::string config;
    BindingQuestion binding;
    bool json = false;
  };
  const auto request = std::make_shared<Request>();
  app.add_option("--config", request->config, "the config file that the report is about");
  CLI::Option* const ranks =
      app.add_option("--ranks", request->binding.ranks,
                     "show which cores, node and GPU each of so many ranks would get here")
          ->check(CLI::Range(1, kMostShown));
  app.add_option("--bind", request->binding.bind, "as of `tessera train`: auto, cores, numa, none")
      ->needs(ranks);
  app.add_option("--bind-core-list", request->binding.bind_core_list,
                 "as of `tessera train`: CPUs like 0-3,8-11")
      ->needs(ranks);
  app.add_flag("--json", request->json, "print one JSON object");
  return [request] { return run_env(request->config, request->binding, request->json); };
}

}  // namespace tessera::cli
