#include "tessera/sharding/pipeline.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>

#include "tessera/core/error.h"

namespace tessera {
namespace {

using Passes = std::vector<StagePass>;

std::string name_of(const StagePass& pass) {
  return concat(pass.kind == PassKind::kForward ? "the forward" : "the backward", " of micro-step ",
                pass.micro_step, " through stage ", pass.stage);
}

/// The pass that uses what a pass makes, if one of another stage does. A backward stands for its
/// first part, too.
std::optional<StagePass> user_of(const PipelineShape& shape, const StagePass& pass) {
  if (pass.kind == PassKind::kBackwardWeight) return std::nullopt;
  StagePass user = pass;
  user.stage += pass.is_backward() ? -1 : 1;
  if (user.stage < 0 || user.stage >= shape.stages) return std::nullopt;
  if (pass.is_backward() && !shape.has_backward(user.stage)) return std::nullopt;
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
        unsent_(2 * static_cast<std::size_t>(shape.stages), 0),
        next_(passes.size(), 0),
        events_(passes.size()) {
    for (const Passes& own : passes) {
      for (std::size_t p = 0; p < own.size(); ++p) place_.at(key(own[p])) = p;
    }
  }

  std::vector<std::vector<StageEvent>> run() {
    while (!is_done()) {
      const bool moved = move_messages();
      if (run_passes(true) || moved) continue;
      // The order has stages make more messages than others can take yet: they wait here.
      if (!run_passes(false)) fail_at_a_standstill();
    }
    return std::move(events_);
  }

 private:
  static constexpr std::size_t kKinds = 3;  // forward, backward or its first part, the second part
  static constexpr std::size_t kNowhere = std::numeric_limits<std::size_t>::max();

  /// The index of a pass among all that there can be.
  std::size_t key(const StagePass& pass) const {
    return (static_cast<std::size_t>(pass.stage) * static_cast<std::size_t>(shape_.micro_steps) +
            static_cast<std::size_t>(pass.micro_step)) *
               kKinds +
           (pass.is_backward()                       ? 1U
            : pass.kind == PassKind::kBackwardWeight ? 2U
                                                     : 0U);
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
    bool moved = false;
    const auto moves = [&](const StagePass& made) {
      const StagePass user = *user_of(shape_, made);
      const std::size_t from = rank_of(made.stage), to = rank_of(user.stage);
      const std::size_t place = place_.at(key(user));
      if (place == kNowhere || next_[to] + prefetch_ < place) return false;
      if (!is_next_to_arrive(to, place)) return false;
      events_[from].push_back({StageEvent::Kind::kSend, made, static_cast<int>(to)});
      events_[to].push_back({StageEvent::Kind::kReceive, made, static_cast<int>(from)});
      there_[key(user)] = 1;
      --unsent(made);
      return true;
    };
    while (std::erase_if(waiting_, moves) > 0) moved = true;
    return moved;
  }

  /// Whether all passes of a rank before this one have what they need from other ranks in the same
  /// direction.
  bool is_next_to_arrive(std::size_t rank, std::size_t place) const {
    const bool backward = passes_[rank][place].is_backward();
    for (std::size_t p = next_[rank]; p < place; ++p) {
      const StagePass& pass = passes_[rank][p];
      if (pass.kind != PassKind::kBackwardWeight && pass.is_backward() == backward &&
          !has_input(pass) && rank_of(giver_of(pass)) != rank) {
        return false;
      }
    }
    return true;
  }

  /// The stage that makes what a pass needs of another one; there must be one.
  static int giver_of(const StagePass& pass) { return pass.stage + (pass.is_backward() ? 1 : -1); }

  bool has_input(const StagePass& pass) const {
    const int giver = giver_of(pass);
    return giver < 0 || giver == shape_.stages || there_[key(pass)] != 0;
  }

  /// Messages that a stage has made in the direction of a pass's and that wait. Each stage has
  /// slots of its own for them.
  std::size_t& unsent(const StagePass& pass) {
    return unsent_[2 * static_cast<std::size_t>(pass.stage) + (pass.is_backward() ? 1 : 0)];
  }

  /// Whether a pass has what it needs, of its own stage, too, and a slot where that is asked for.
  bool is_ready(const StagePass& pass, bool with_slot) {
    if (pass.kind == PassKind::kBackwardWeight) {
      return done_[key({pass.stage, pass.micro_step, PassKind::kBackward})] != 0;
    }
    if (pass.is_backward() && done_[key({pass.stage, pass.micro_step, PassKind::kForward})] == 0) {
      return false;
    }
    return has_input(pass) && (!with_slot || !sends(pass) || unsent(pass) <= prefetch_);
  }

  bool sends(const StagePass& pass) const {
    const std::optional<StagePass> user = user_of(shape_, pass);
    return user && shape_.rank_of(user->stage) != shape_.rank_of(pass.stage);
  }

  /// One of each rank, of those that are ready as this begins.
  bool run_passes(bool with_slots) {
    std::vector<StagePass> ran;
    for (std::size_t r = 0; r < passes_.size(); ++r) {
      if (next_[r] == passes_[r].size()) continue;
      const StagePass& pass = passes_[r][next_[r]];
      if (is_ready(pass, with_slots)) ran.push_back(pass);
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
      fail(ErrorCode::kConfig, "the order of passes cannot go on: pipeline rank ", r,
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
  std::vector<char> there_;          ///< passes that have what they need of another stage
  std::vector<StagePass> waiting_;   ///< passes whose messages are to be sent
  std::vector<std::size_t> unsent_;  ///< how many of them, by stage and direction
  std::vector<std::size_t> next_;    ///< by rank
  std::vector<std::vector<StageEvent>> events_;
};

}  // namespace

std::vector<std::vector<StageEvent>> with_messages(
    const std::vector<std::vector<StagePass>>& passes, const PipelineShape& shape, int prefetch) {
  return Lowering(passes, shape, prefetch).run();
}

}  // namespace tessera
