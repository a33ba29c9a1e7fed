#include <algorithm>
#include <utility>
#include <vector>

#include "passes/pass_tools.h"
#include "tessera/sharding/factored_table.h"
#include "tessera/sharding/passes.h"

// [Note: factored optimizers]
//
// 1. An update needs sums over whole matrices: of squared gradients in each row and column, and of
//    squared updates. Shards end inside of rows, so each rank adds up what it has, and two
//    all-reduces of words join the ranks' sums. The sums are exact, so the bits depend neither on
//    the strategy nor on the number of ranks.
// 2. All flat parameters share the two messages: the sums begin when all gradients are there and
//    clipped, as the norm is part of their fixed point.
// 3. Moments are a number for each row and column. Every rank keeps and updates all of them, which
//    costs less than to send them.
namespace tessera {
namespace {

class Factoring {
 public:
  explicit Factoring(Schedule& schedule) : schedule_(schedule), table_(schedule) {}

  void run();

 private:
  struct Update {
    Action step;
    FlatId id;
    int entry;
    Operand gradient;
  };

  Operand add_statistics(BufferKind kind, DType format);
  void add_up(const Update& update);
  void update_moments(const Update& update);
  void add_up_update(const Update& update);
  void join(const Operand& sums);
  Operand master(const Update& update) const;
  static Operand adding(Operand operand, const Update& update) {
    operand.adds = update.entry > 0;
    return operand;
  }

  Schedule& schedule_;
  const FactoredTable table_;
  std::vector<Action> actions_;
  Operand results_, squares_, factors_, update_squares_;
};

Operand Factoring::add_statistics(BufferKind kind, DType format) {
  return {.buffer = add_buffer(schedule_, {.name = std::string(to_string(kind)),
                                           .kind = kind,
                                           .role = Role::kStatistics,
                                           .format = format,
                                           .numel = table_.numel(kind)})};
}

/// The values that are updated: master weights, or fp32 parameters.
Operand Factoring::master(const Update& update) const {
  const auto found = std::ranges::find_if(update.step.writes, [&](const Operand& operand) {
    return schedule_.role(operand.buffer) == Role::kMaster;
  });
  return found == update.step.writes.end() ? update.step.writes.front() : *found;
}

void Factoring::add_up(const Update& update) {
  Action squares{.operation = &operations::kSquareSums,
                 .lane = update.step.lane,
                 .reads = {update.gradient, results_},
                 .writes = {adding(squares_, update)}};
  if (schedule_.scale_parameter) squares.reads.push_back(master(update));
  actions_.push_back(std::move(squares));
}

void Factoring::join(const Operand& sums) {
  if (table_.axes().empty()) return;
  actions_.push_back({.operation = &operations::kAllReduce,
                      .lane = Lane::kReduce,
                      .reads = {sums},
                      .writes = {sums},
                      .axes = table_.axes()});
}

void Factoring::update_moments(const Update& update) {
  const auto kept = std::ranges::find_if(schedule_.buffers, [&](const ScheduleBuffer& buffer) {
    return buffer.persistent && buffer.is_factored() && buffer.unit == update.id.unit &&
           buffer.flat == update.id.flat;
  });
  const Operand moments{.buffer = static_cast<int>(kept - schedule_.buffers.begin()),
                        .unit = update.id.unit};
  actions_.push_back({.operation = &operations::kMoments,
                      .lane = update.step.lane,
                      .reads = {squares_, results_, moments},
                      .writes = {moments, adding(factors_, update)}});
}

void Factoring::add_up_update(const Update& update) {
  actions_.push_back({.operation = &operations::kUpdateSquares,
                      .lane = update.step.lane,
                      .reads = {update.gradient, results_, factors_},
                      .writes = {adding(update_squares_, update)}});
}

void Factoring::run() {
  if (table_.empty()) return;
  std::vector<Update> updates;
  for (const Action& action : schedule_.actions) {
    if (action.operation != &operations::kOptimizerStep) continue;
    const FlatId id = id_of(schedule_, action.reads.front());
    updates.push_back({action, id, table_.find(id), action.reads.front()});
  }
  std::ranges::sort(updates, {}, &Update::entry);
  results_ = updates.front().step.reads[1];
  squares_ = add_statistics(BufferKind::kSquares, DType::kInt64);
  factors_ = add_statistics(BufferKind::kFactors, DType::kFloat32);
  update_squares_ = add_statistics(BufferKind::kUpdateSquares, DType::kInt64);
  bool begins = true;
  for (Action& action : std::exchange(schedule_.actions, {})) {
    if (action.operation != &operations::kOptimizerStep) {
      actions_.push_back(std::move(action));
      continue;
    }
    if (std::exchange(begins, false)) {
      for (const Update& update : updates) add_up(update);
      join(squares_);
      for (const Update& update : updates) update_moments(update);
      for (const Update& update : updates) add_up_update(update);
      join(update_squares_);
    }
    action.reads.insert(action.reads.end(), {factors_, update_squares_});
    if (schedule_.scale_parameter) action.reads.push_back(squares_);
    actions_.push_back(std::move(action));
  }
  schedule_.actions = std::move(actions_);
}

}  // namespace

Schedule factored(Schedule schedule) {
  Factoring(schedule).run();
  return schedule;
}

}  // namespace tessera
