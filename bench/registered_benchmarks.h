#pragma once

#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "support.h"

namespace tessera::bench {

/// The main function of a program whose benchmarks are registered with Google Benchmark.
inline int run_registered_benchmarks(const std::string& name, const std::string& description,
                                     int argc, char** argv) {
  std::string filter = ".", json;
  int repetitions = 1;
  double min_seconds = 0.5;
  bool list = false;
  Program program(name, description);
  program.add_option("--filter", filter, "run benchmarks whose name matches")->type_name("REGEX");
  program
      .add_option("--repetitions", repetitions, "of each; above 1, mean, median and spread, too")
      ->check(positive());
  program.add_option("--min-seconds", min_seconds, "that a repetition should last")
      ->check(positive());
  program.add_option("--json", json, "also write the results there, as Google Benchmark's JSON")
      ->type_name("FILE");
  program.add_flag("--list", list, "print the names instead");
  return program.run(argc, argv, [&] {
    std::vector<std::string> words{name, "--benchmark_filter=" + filter,
                                   concat("--benchmark_repetitions=", repetitions),
                                   concat("--benchmark_min_time=", min_seconds)};
    if (!json.empty()) words.push_back("--benchmark_out=" + json);
    if (list) words.push_back("--benchmark_list_tests=true");
    std::vector<char*> pointers;
    for (std::string& word : words) pointers.push_back(word.data());
    auto count = static_cast<int>(pointers.size());
    benchmark::Initialize(&count, pointers.data());
    benchmark::RunSpecifiedBenchmarks();
  });
}

}  // namespace tessera::bench
