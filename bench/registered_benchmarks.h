#pragma once

#include <benchmark/benchmark.h>

#include <string>
#include <string_view>
#include <vector>

#include "support.h"

namespace tessera::bench {

/// The main function of a program whose benchmarks are registered with Google Benchmark. Takes its
/// flags (--benchmark_filter=..., --benchmark_format=...) beside short names of the usual ones.
inline int run_registered_benchmarks(const std::string& name, const std::string& description,
                                     int argc, char** argv) {
  std::string filter = ".", json;
  int repetitions = 1;
  double min_seconds = 0.5;
  bool list = false;
  // Theirs go to Google Benchmark as they are, after ours: the last one counts.
  std::vector<char*> ours, theirs;
  for (int i = 0; i < argc; ++i) {
    (std::string_view(argv[i]).starts_with("--benchmark_") ? theirs : ours).push_back(argv[i]);
  }
  Program program(name, description);
  program.footer("Google Benchmark's own flags are taken, too: --benchmark_filter=REGEX, ...");
  program.option("--filter", &filter, "run benchmarks whose name matches", {.type = "REGEX"});
  program.option("--repetitions", &repetitions, "of each; above 1, mean, median and spread, too",
                 positive());
  program.option("--min-seconds", &min_seconds, "that a repetition should last", positive());
  program.option("--json", &json, "also write the results there, as Google Benchmark's JSON",
                 {.type = "FILE"});
  program.option("--list", &list, "print the names instead");
  return program.run(static_cast<int>(ours.size()), ours.data(), [&] {
    std::vector<std::string> words{name, "--benchmark_filter=" + filter,
                                   concat("--benchmark_repetitions=", repetitions),
                                   concat("--benchmark_min_time=", min_seconds)};
    if (!json.empty()) words.push_back("--benchmark_out=" + json);
    if (list) words.push_back("--benchmark_list_tests=true");
    std::vector<char*> pointers;
    for (std::string& word : words) pointers.push_back(word.data());
    pointers.insert(pointers.end(), theirs.begin(), theirs.end());
    auto count = static_cast<int>(pointers.size());
    benchmark::Initialize(&count, pointers.data());
    require(count == 1, ErrorCode::kConfig, "Google Benchmark does not know ",
            count > 1 ? pointers[1] : "", "; see --help");
    benchmark::RunSpecifiedBenchmarks();
  });
}

}  // namespace tessera::bench
