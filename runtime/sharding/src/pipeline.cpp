#include "tessera/sharding/pipeline.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>

#include "tessera/core/error.h"

namespace tessera {
namespace {

using Passes = std::vector<StagePass>;

bool has_backward(const PipelineShape& shape, int stage) {
  return shape.trains && stage >= shape.first_backward_stage;
}

/// The only stage of a rank; orders of several stages a rank are rows of their own.
Passes gpipe(const PipelineShape& shape, int rank) {
  Passes passes;
  for (int m = 0; m < shape.micro_steps; ++m) passes.push_back({rank, m, false});
  for (int m = 0; has_backward(shape, rank) && m < shape.micro_steps; ++m) {
    passes.push_back({rank, m, true});
  }
  return passes;
}

/// As many forwards come first as there are stages behind this one; then a forward and a backward
/// by turns. Source: Megatron-LM, pipeline_parallel/schedules.py.
Passes one_forward_one_backward(const PipelineShape& shape, int rank) {
  const int ahead = std::min(shape.stages - rank - 1, shape.micro_steps);
  Passes passes;
  for (int m = 0; m < shape.micro_steps + ahead; ++m) {
    if (m < shape.micro_steps) passes.push_back({rank, m, false});
    if (m >= ahead && has_backward(shape, rank)) passes.push_back({rank, m - ahead, true});
  }
  return passes;
}

struct OrderRow {
  PipelineOrder order;
  std::string_view name;
  Passes (*passes)(const PipelineShape& shape, int rank);
};

/// To add an order: an enumerator, a row, a function.
constexpr std::array kOrders{
    OrderRow{PipelineOrder::kGPipe, "gpipe", gpipe},
    OrderRow{PipelineOrder::kOneForwardOneBackward, "1f1b", one_forward_one_backward}};

const OrderRow& row_of(PipelineOrder order) {
  return *std::ranges::find(kOrders, order, &OrderRow::order);
}

std::string name_of(const StagePass& pass) {
  return concat(pass.backward ? "the backward" : "the forward", " of micro-step ", pass.micro_step,
                " through stage ", pass.stage);
}

/// The pass that uses what a pass makes, if one does.
std::optional<StagePass> user_of(const PipelineShape& shape, const StagePass& pass) {
  StagePass user = pass;
  user.stage += pass.backward ? -1 : 1;
  if (user.stage < 0 || user.stage >= shape.stages) return std::nullopt;
  if (pass.backward && !has_backward(shape, user.stage)) return std::nullopt;
  return user;
}

/// The passes of all ranks, one after the other as far as their messages let them.
class Lowering {
 public:
  Lowering(const std::vector<Passes>& passes, const PipelineShape& shape, int prefetch)
      : passes_(passes),
        shape_(shape),
        prefetch_(static_cast<std::size_t>(prefetch)),
        place_(keys(), kNowhere),
        done_(keys(), 0),
        there_(keys(), 0),
        unsent_(2 * passes.size(), 0),
        next_(passes.size(), 0),
        events_(passes.size()) {
    for (const Passes& own : passes) {
      for (std::size_t p = 0; p < own.size(); ++p) place_.at(key(own[p])) = p;
    }
  }

  std::vector<std::vector<StageEvent>> run() {
    while (!is_done()) {
      const bool moved = move_messages();
      if (!run_passes() && !moved) fail_at_a_standstill();
    }
    return std::move(events_);
  }

 private:
  static constexpr std::size_t kKinds = 2;  // of passes: forward and backward
  static constexpr std::size_t kNowhere = std::numeric_limits<std::size_t>::max();

  /// The index of a pass among all that there can be.
  std::size_t key(const StagePass& pass) const {
    return (static_cast<std::size_t>(pass.stage) * static_cast<std::size_t>(shape_.micro_steps) +
            static_cast<std::size_t>(pass.micro_step)) *
               kKinds +
           (pass.backward ? 1 : 0);
  }
  std::size_t keys() const {
    return kKinds * static_cast<std::size_t>(shape_.stages) *
           static_cast<std::size_t>(shape_.micro_steps);
  }
  std::size_t rank_of(int stage) const { return static_cast<std::size_t>(shape_.rank_of(stage)); }

  bool is_done() const {
    for (std::size_t r = 0; r < passes_.size(); ++r) {
      if (next_[r] < passes_[r].size()) return false;
    }
    return true;
  }

  bool move_messages() {
    const std::size_t before = waiting_.size();
    std::erase_if(waiting_, [&](const StagePass& made) {
      const StagePass user = *user_of(shape_, made);
      const std::size_t from = rank_of(made.stage), to = rank_of(user.stage);
      const std::size_t place = place_.at(key(user));
      if (place == kNowhere || next_[to] + prefetch_ < place) return false;
      events_[from].push_back({StageEvent::Kind::kSend, made, static_cast<int>(to)});
      events_[to].push_back({StageEvent::Kind::kReceive, made, static_cast<int>(from)});
      there_[key(user)] = 1;
      --unsent(made);
      return true;
    });
    return waiting_.size() != before;
  }

  /// Messages in the direction of a pass's that wait on its rank.
  std::size_t& unsent(const StagePass& pass) {
    return unsent_[2 * rank_of(pass.stage) + (pass.backward ? 1 : 0)];
  }

  /// Whether a pass has what it needs, a slot for the message that it makes among it. A backward
  /// needs the same stage's forward as well.
  bool is_ready(const StagePass& pass) {
    if (pass.backward && done_[key({pass.stage, pass.micro_step, false})] == 0) return false;
    if (unsent(pass) > prefetch_) return false;
    const bool is_at_the_end = pass.backward ? pass.stage + 1 == shape_.stages : pass.stage == 0;
    return is_at_the_end || there_[key(pass)] != 0;
  }

  /// One of each rank, of those that are ready as this begins.
  bool run_passes() {
    std::vector<StagePass> ran;
    for (std::size_t r = 0; r < passes_.size(); ++r) {
      if (next_[r] == passes_[r].size()) continue;
      const StagePass& pass = passes_[r][next_[r]];
      if (is_ready(pass)) ran.push_back(pass);
    }
    for (const StagePass& pass : ran) {
      const std::size_t rank = rank_of(pass.stage);
      ++next_[rank];
      events_[rank].push_back({StageEvent::Kind::kPass, pass});
      done_[key(pass)] = 1;
      const std::optional<StagePass> user = user_of(shape_, pass);
      if (!user) continue;
      if (rank_of(user->stage) == rank) {
        there_[key(*user)] = 1;
      } else {
        waiting_.push_back(pass);
        ++unsent(pass);
      }
    }
    return !ran.empty();
  }

  [[noreturn]] void fail_at_a_standstill() const {
    for (std::size_t r = 0; r < passes_.size(); ++r) {
      if (next_[r] == passes_[r].size()) continue;
      fail(ErrorCode::kInvalidArgument, "the order of passes cannot go on: pipeline rank ", r,
           " waits before ", name_of(passes_[r][next_[r]]), ", which nothing leads to");
    }
    fail(ErrorCode::kInternal, "the order of passes has ended");
  }

  const std::vector<Passes>& passes_;
  const PipelineShape& shape_;
  const std::size_t prefetch_;
  // By key, so that a step takes time in proportion to its passes.
  std::vector<std::size_t> place_;  ///< of a pass among those of its rank
  std::vector<char> done_;
  std::vector<char> there_;          ///< what a pass needs of another stage
  std::vector<StagePass> waiting_;   ///< passes whose messages are to be sent
  std::vector<std::size_t> unsent_;  ///< how many of them, by rank and direction
  std::vector<std::size_t> next_;    ///< by rank
  std::vector<std::vector<StageEvent>> events_;
};

}  // namespace

std::string_view to_string(PipelineOrder order) { return row_of(order).name; }

PipelineOrder parse_pipeline_order(std::string_view text) {
  const auto found = std::ranges::find(kOrders, text, &OrderRow::name);
  if (found != kOrders.end()) return found->order;
  std::string names;
  for (const OrderRow& row : kOrders) names += (names.empty() ? "" : ", ") + std::string(row.name);
  fail(ErrorCode::kConfig, "there is no pipeline schedule '", text, "'; choose one of ", names);
}

int PipelineOptions::stage_of(int layer) const {
  const auto after = std::ranges::upper_bound(first_layers, layer);
  return std::max(0, static_cast<int>(after - first_layers.begin()) - 1);
}

std::vector<StagePass> pipeline_passes(PipelineOrder order, const PipelineShape& shape, int rank) {
  require(shape.stages == shape.ranks, ErrorCode::kConfig, "pipeline schedule ", to_string(order),
          " runs one stage on each pipeline rank, and there are ", shape.stages, " stages for ",
          shape.ranks, shape.ranks == 1 ? " rank" : " ranks");
  return row_of(order).passes(shape, rank);
}

std::vector<std::vector<StageEvent>> with_messages(
    const std::vector<std::vector<StagePass>>& passes, const PipelineShape& shape, int prefetch) {
  return Lowering(passes, shape, prefetch).run();
}

}  // namespace tessera
