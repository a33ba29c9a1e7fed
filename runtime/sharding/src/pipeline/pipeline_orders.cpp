#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <utility>

#include "tessera/core/error.h"
#include "tessera/sharding/pipeline.h"

namespace tessera {
namespace {

using Passes = std::vector<StagePass>;
using enum PassKind;

/// A micro-step through one of the stages of a rank, counted from its first.
struct Visit {
  int chunk = 0;
  int micro_step = 0;
};

/// All visits of a rank with `chunks` stages: micro-steps in groups, of which each passes through
/// all stages before the next begins. The last group is whole, too, with micro-steps that there are
/// not: left out in the end, they keep ranks from waiting for each other in a circle.
std::vector<Visit> visits(int chunks, int micro_steps, int group) {
  std::vector<Visit> all;
  for (int first = 0; first < micro_steps; first += group) {
    for (int chunk = 0; chunk < chunks; ++chunk) {
      for (int m = first; m < first + group; ++m) all.push_back({chunk, m});
    }
  }
  return all;
}

int chunks_of(const PipelineShape& shape) { return shape.stages / shape.ranks; }

/// Forwards of all micro-steps, and their backwards, which go through the chunks from the last to
/// the first.
Passes gpipe(const PipelineShape& shape, int rank) {
  Passes passes;
  const std::vector<Visit> all = visits(chunks_of(shape), shape.micro_steps, shape.micro_steps);
  for (const Visit& visit : all) {
    passes.push_back({rank + visit.chunk * shape.ranks, visit.micro_step, kForward});
  }
  for (const Visit& visit : all) {
    const int chunk = chunks_of(shape) - 1 - visit.chunk;
    passes.push_back({rank + chunk * shape.ranks, visit.micro_step, kBackward});
  }
  return passes;
}

/// After `ahead` forwards, a forward and a backward by turns. With `splits`, the second part of a
/// backward follows the first parts of `lag` others.
Passes forwards_and_backwards(const PipelineShape& shape, int rank, int ahead, bool splits,
                              int lag) {
  const int chunks = chunks_of(shape);
  const std::vector<Visit> all = visits(chunks, shape.micro_steps, shape.ranks);
  const auto count = static_cast<int>(all.size());
  ahead = std::min(ahead, count);
  const auto add = [&](Passes& passes, int index, PassKind kind) {
    if (index < 0 || index >= count) return;
    const Visit& visit = all[static_cast<std::size_t>(index)];
    const int chunk = kind == kForward ? visit.chunk : chunks - 1 - visit.chunk;
    passes.push_back({rank + chunk * shape.ranks, visit.micro_step, kind});
  };
  Passes passes;
  for (int k = 0; k < count + ahead + lag; ++k) {
    add(passes, k, kForward);
    add(passes, k - ahead, splits ? kBackwardInput : kBackward);
    if (splits) add(passes, k - ahead - lag, kBackwardWeight);
  }
  return passes;
}

/// First come as many forwards as there are stages behind this one.
/// Source: Megatron-LM, pipeline_parallel/schedules.py.
Passes one_forward_one_backward(const PipelineShape& shape, int rank) {
  return forwards_and_backwards(shape, rank, shape.ranks - rank - 1, false, 0);
}

/// Two forwards come first for each rank behind this one, so that a backward's gradient is there
/// when the group before it has passed through the other stages. Source: the same.
Passes interleaved(const PipelineShape& shape, int rank) {
  const int ahead = 2 * (shape.ranks - rank - 1) + (chunks_of(shape) - 1) * shape.ranks;
  return forwards_and_backwards(shape, rank, ahead, false, 0);
}

/// A rank does weight gradients as many passes late as it has fewer micro-steps ahead than the
/// first: all ranks hold equally many.
/// Source: Qi et al., Zero Bubble Pipeline Parallelism, arXiv:2401.10241, section 3.
Passes zero_bubble(const PipelineShape& shape, int rank) {
  const int ahead = shape.ranks - rank - 1 + (chunks_of(shape) - 1) * shape.ranks;
  return forwards_and_backwards(shape, rank, ahead, true, rank);
}

/// The stages of a rank are as far from the first as from the last, so that the first rank, which
/// has both, begins with backwards at once. Source: the same, section 5, and PyTorch's
/// ScheduleZBVZeroBubble for the four phases.
Passes zero_bubble_v(const PipelineShape& shape, int rank) {
  const int p = shape.ranks, down = rank, up = 2 * p - 1 - rank;
  const int micro_steps = std::max(2 * p - 1, shape.micro_steps);
  Passes passes;
  std::map<std::pair<int, PassKind>, int> done;
  const auto add = [&](int stage, std::initializer_list<PassKind> kinds) {
    for (const PassKind kind : kinds) passes.push_back({stage, done[{stage, kind}]++, kind});
  };
  for (int i = 0; i < 2 * (p - rank) - 1; ++i) add(down, {kForward});
  for (int i = 0; i < rank; ++i) {
    add(up, {kForward});
    add(down, {kForward});
  }
  for (int i = 0; i < p - rank; ++i) add(up, {kForward, kBackwardInput, kBackwardWeight});
  while (done[{up, kForward}] < micro_steps) {
    if (done[{down, kForward}] < micro_steps) add(down, {kForward});
    add(down, {kBackwardInput, kBackwardWeight});
    add(up, {kForward, kBackwardInput, kBackwardWeight});
  }
  for (int i = 0; i < rank; ++i) {
    add(down, {kBackwardInput});
    add(up, {kBackwardInput});
  }
  for (int i = 0; i < p - rank; ++i) add(down, {kBackwardInput, kBackwardWeight});
  while (done[{up, kBackwardWeight}] < micro_steps) add(up, {kBackwardWeight});
  while (done[{down, kBackwardWeight}] < micro_steps) add(down, {kBackwardWeight});
  return passes;
}

struct OrderRow {
  PipelineOrder order;
  std::string_view name;
  /// The passes of a step that trains all stages, and of micro-steps beyond its last.
  Passes (*passes)(const PipelineShape& shape, int rank);
  int least_chunks = 1, most_chunks = 1'000'000;  ///< stages on a rank
  bool splits = false;
  bool turns = false;  ///< the second half of the stages goes back from the last rank to the first
};

/// To add an order: an enumerator, a row, a function.
constexpr std::array kOrders{
    OrderRow{PipelineOrder::kGPipe, "gpipe", gpipe},
    OrderRow{PipelineOrder::kOneForwardOneBackward, "1f1b", one_forward_one_backward, 1, 1},
    OrderRow{PipelineOrder::kInterleaved, "interleaved", interleaved, 2},
    OrderRow{.order = PipelineOrder::kZeroBubble,
             .name = "zb-h1",
             .passes = zero_bubble,
             .splits = true},
    OrderRow{.order = PipelineOrder::kZeroBubbleV,
             .name = "zb-v",
             .passes = zero_bubble_v,
             .least_chunks = 2,
             .most_chunks = 2,
             .splits = true,
             .turns = true},
    OrderRow{.order = PipelineOrder::kListed, .name = "listed", .passes = nullptr, .splits = true}};

const OrderRow& row_of(PipelineOrder order) {
  return *std::ranges::find(kOrders, order, &OrderRow::order);
}

/// Leaves out what this step has not.
Passes taken(Passes passes, const PipelineShape& shape) {
  std::erase_if(passes, [&](const StagePass& pass) {
    return pass.micro_step >= shape.micro_steps ||
           (pass.kind != kForward && !shape.has_backward(pass.stage));
  });
  return passes;
}

/// The order of an evaluation: groups of micro-steps pass through the stages of a rank in their
/// order, which cannot come to a standstill whichever rank has which stage.
Passes forwards(const PipelineShape& shape, int rank) {
  std::vector<int> own;
  for (int stage = 0; stage < shape.stages; ++stage) {
    if (shape.rank_of(stage) == rank) own.push_back(stage);
  }
  Passes passes;
  for (const Visit& visit : visits(static_cast<int>(own.size()), shape.micro_steps, shape.ranks)) {
    passes.push_back({own[static_cast<std::size_t>(visit.chunk)], visit.micro_step, kForward});
  }
  return taken(std::move(passes), shape);
}

}  // namespace

std::string_view to_string(PipelineOrder order) { return row_of(order).name; }

PipelineOrder parse_pipeline_order(std::string_view text) {
  const auto found = std::ranges::find(kOrders, text, &OrderRow::name);
  if (found != kOrders.end()) return found->order;
  std::string names;
  for (const OrderRow& row : kOrders) {
    if (row.passes != nullptr) names += (names.empty() ? "" : ", ") + std::string(row.name);
  }
  fail(ErrorCode::kConfig, "there is no pipeline schedule '", text, "'; choose one of ", names,
       ", or a .csv file of passes");
}

int usual_virtual_stages(PipelineOrder order) { return row_of(order).least_chunks; }

bool splits_backward(PipelineOrder order) { return row_of(order).splits; }

int PipelineOptions::stage_of(int layer) const {
  const auto after = std::ranges::upper_bound(first_layers, layer);
  return std::max(0, static_cast<int>(after - first_layers.begin()) - 1);
}

std::vector<int> PipelineOptions::stages_of_rank(int of_rank, int ranks) const {
  std::vector<int> own;
  for (int stage = 0; stage < stages(); ++stage) {
    if (rank_of_stage(stage, ranks) == of_rank) own.push_back(stage);
  }
  return own;
}

std::vector<int> stage_ranks(PipelineOrder order, int ranks, int stages) {
  std::vector<int> all;
  for (int stage = 0; row_of(order).turns && stage < stages; ++stage) {
    all.push_back(stage < ranks ? stage : stages - 1 - stage);
  }
  return all;
}

std::vector<int> stage_ranks(const std::vector<Passes>& listed) {
  std::map<int, int> ranks;
  for (std::size_t r = 0; r < listed.size(); ++r) {
    for (const StagePass& pass : listed[r]) {
      const auto [place, fresh] = ranks.emplace(pass.stage, static_cast<int>(r));
      require(place->second == static_cast<int>(r), ErrorCode::kConfig, "stage ", pass.stage,
              " has passes on pipeline ranks ", place->second, " and ", r,
              "; a stage is on one rank");
    }
  }
  std::vector<int> all;
  for (const auto& [stage, rank] : ranks) {
    require(stage == static_cast<int>(all.size()), ErrorCode::kConfig,
            "no pipeline rank has passes through stage ", all.size(), ", and stage ", stage,
            " has some");
    all.push_back(rank);
  }
  return all;
}

std::vector<StagePass> pipeline_passes(PipelineOrder order, const PipelineShape& shape, int rank) {
  if (!shape.trains) return forwards(shape, rank);
  const OrderRow& row = row_of(order);
  const int chunks = chunks_of(shape);
  require(row.passes != nullptr, ErrorCode::kConfig, "passes are to be listed, and are not");
  require(
      shape.stages % shape.ranks == 0 && chunks >= row.least_chunks && chunks <= row.most_chunks,
      ErrorCode::kConfig, "pipeline schedule ", row.name, " runs ", row.least_chunks,
      row.most_chunks > 2 ? " or more" : "", row.most_chunks == 1 ? " stage" : " stages",
      " on each pipeline rank, and there are ", shape.stages, " stages for ", shape.ranks,
      shape.ranks == 1 ? " rank" : " ranks",
      row.order == PipelineOrder::kOneForwardOneBackward ? "; interleaved runs more" : "");
  return taken(row.passes(shape, rank), shape);
}

std::vector<std::vector<StagePass>> pipeline_passes(const PipelineOptions& pipeline,
                                                    const PipelineShape& shape) {
  std::vector<Passes> all;
  for (int rank = 0; rank < shape.ranks; ++rank) {
    if (pipeline.order != PipelineOrder::kListed || !shape.trains) {
      all.push_back(pipeline_passes(pipeline.order, shape, rank));
    }
  }
  if (!all.empty()) return all;
  PipelineShape whole = shape;
  whole.first_backward_stage = 0;
  check_passes(pipeline.listed, whole);
  all = pipeline.listed;
  for (Passes& passes : all) passes = taken(std::move(passes), shape);
  return all;
}

}  // namespace tessera
