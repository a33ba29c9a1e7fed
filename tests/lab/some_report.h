#pragma once

#include "tessera/lab/comparison.h"

namespace tessera::test {

/// A comparison with all that a report shows: cells that agree in their bits, one that differs, one
/// that has failed and one that cannot be planned; texts that HTML would take for its own.
inline Comparison some_report() {
  Comparison all{.version = "1.2",
                 .date = "2026-01-01T00:00:00Z",
                 .machine = {{"processor", "a \"fast\" <one> & 'only'"}, {"cores", "2"}},
                 .command = {"compare", "--data", "a <b>.txt"},
                 .model = "GPT <script>alert(1)</script>",
                 .data = "12 tokens",
                 .profile = "h100-sxm",
                 .steps = 4,
                 .warmup_steps = 1,
                 .repeats = 2,
                 .axes = {"strategy", "ranks"}};
  std::int64_t number = 0;
  for (const char* strategy : {"no_shard", "zero1", "full_shard", "hybrid_shard"}) {
    ++number;
    CellRun run{.losses = {4.0, 3.5, 3.0, 2.0}};
    run.peak.by_category[MemoryCategory::kParameters] = 4'000'000 / number;
    run.peak.by_category[MemoryCategory::kOptimizer] = 9'000'000 / number;
    run.peak.by_category[MemoryCategory::kActivations] = 3'000'000;
    run.peak.total = 2'900'000 + 13'000'000 / number;
    run.traffic.sent_of(CollectiveKind::kAllGather) = 700'000 * number;
    run.traffic.calls_of(CollectiveKind::kAllGather) = 3;
    run.traffic.sent_of(CollectiveKind::kReduceScatter) = 300'000;
    run.traffic.calls_of(CollectiveKind::kReduceScatter) = 2;
    run.exposed_seconds = 0.002 * static_cast<double>(number);
    run.communication_seconds = 0.01;
    run.parameters_sha256 = "abc";
    ComparedCell cell{.settings = {{"strategy", strategy}, {"ranks", "2"}},
                      .state = CellState::kDone,
                      .ranks = 2,
                      .tokens_per_step = 4096};
    for (const double seconds : {0.1, 0.103}) {
      run.step_seconds = {seconds + 0.01 * static_cast<double>(number)};
      cell.runs.push_back(run);
    }
    cell.predicted = CellPrediction{.peak = run.peak, .traffic = run.traffic};
    cell.predicted->time = SimulatedTime{0.09,
                                         0.004,
                                         0.01,
                                         {{"compute", "forward h.0", 0.0, 0.03},
                                          {"gather", "all-gather h.1", 0.01, 0.02},
                                          {"compute", "backward h.0", 0.03, 0.08},
                                          {"reduce", "reduce-scatter h.0", 0.05, 0.085},
                                          {"compute", "optimizer-step h.0", 0.085, 0.09}}};
    all.cells.push_back(cell);
  }
  all.cells[1].timeline = {{"compute", "forward <h.0>", 0.0, 0.1}};
  for (CellRun& run : all.cells[3].runs) {
    run.losses[3] = 2.5;
    run.parameters_sha256 = "def";
  }
  all.cells.push_back({.settings = {{"strategy", "zero2"}, {"ranks", "2"}},
                       .state = CellState::kFailed,
                       .why = "killed by signal 9 <Killed>",
                       .ranks = 2});
  all.cells.push_back({.settings = {{"strategy", "hybrid_shard"}, {"ranks", "3"}},
                       .state = CellState::kImpossible,
                       .why = "3 ranks are not 2 replicas",
                       .ranks = 3});
  return all;
}

}  // namespace tessera::test
