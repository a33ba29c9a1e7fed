#pragma once

#include "tessera/lab/comparison.h"

namespace tessera::test {

/// A step of a pipeline in GPipe's order, of `chunks` stages on each rank: forwards of 1 ms,
/// backwards of 1 ms and of weights, of 1 ms too, and a collective before the update of 1 ms. A
/// message takes a quarter of a millisecond beside them.
inline std::vector<LaneSpan> staged_spans(int ranks, int micro_steps, int chunks = 1) {
  constexpr double kMilli = 1e-3;
  std::vector<LaneSpan> spans;
  const int stages = ranks * chunks;
  const auto add = [&](int rank, const char* lane, const char* name, double begin, double length,
                       int stage, int micro_step) {
    spans.push_back({.lane = lane,
                     .name = name,
                     .begin = begin * kMilli,
                     .end = (begin + length) * kMilli,
                     .pipeline_rank = rank,
                     .stage = stage,
                     .micro_step = micro_step});
  };
  const double all_forwards = chunks * micro_steps + stages - 1;
  for (int stage = 0; stage < stages; ++stage) {
    const int rank = stage % ranks;
    for (int m = 0; m < micro_steps; ++m) {
      const double begin = stage / ranks * micro_steps + stage % ranks + m;
      add(rank, "compute", "forward h.0", begin, 0.5, stage, m);
      add(rank, "compute", "forward h.1", begin + 0.5, 0.5, stage, m);
      if (stage + 1 < stages) add(rank, "send", "send h.1", begin + 1.0, 0.25, stage, m);
      const double back = all_forwards + 2 * ((stages - 1 - stage) / ranks * micro_steps + m) +
                          (stages - 1 - stage) % ranks;
      add(rank, "compute", "backward-input h.1", back, 1.0, stage, m);
      add(rank, "compute", "backward-weight h.1", back + 1.0, 1.0, stage, m);
    }
  }
  const double end = all_forwards + 2 * chunks * micro_steps + ranks - 1;
  for (int rank = 0; rank < ranks; ++rank) {
    add(rank, "reduce", "all-reduce h.0", end, 1.0, -1, -1);
    add(rank, "optimizer", "optimizer-step h.0", end + 1.0, 1.0, -1, -1);
  }
  return spans;
}

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
  all.cells[2].predicted->time->spans = staged_spans(4, 8);
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
