#include "step_exchange.h"

#include <algorithm>
#include <cmath>

#include "tessera/kernels/norm_tree.h"

namespace tessera {
namespace {

template <typename T>
TensorView view_of(std::vector<T>& values) {
  return TensorView(values.data(), dtype_of<T>(), Shape{static_cast<std::int64_t>(values.size())});
}

BlockRange blocks_of(const Range& range) {
  return {range.begin / kNormBlock, range.numel / kNormBlock};
}

}  // namespace

StepExchange::StepExchange(const Schedule& schedule, const RankState& state, ProcessGroup* control,
                           Memory& memory)
    : schedule_(schedule),
      state_(state),
      kernels_(kernels_for(memory.device())),
      control_(control),
      members_(control == nullptr ? 1 : control->size()),
      losses_(static_cast<std::size_t>(schedule.micro_steps)) {
  message_numel_ = schedule.micro_steps;
  std::int64_t most_blocks = 0;
  for (const ScheduleUnit& unit : schedule.units) {
    const std::int64_t finest = unit.trainable_numel / schedule.mesh.world_size();
    std::int64_t most_nodes = 0;
    for (std::int64_t r = 0; control != nullptr && r < members_; ++r) {
      const auto nodes = norm_nodes(blocks_of({r * finest, finest}));
      most_nodes = std::max(most_nodes, static_cast<std::int64_t>(nodes.size()));
    }
    offsets_.push_back(message_numel_);
    node_counts_.push_back(most_nodes);
    message_numel_ += most_nodes;
    most_blocks = std::max(most_blocks, finest / kNormBlock);
    nodes_.emplace_back(static_cast<std::size_t>(kNormNodes));
  }
  items_.resize(static_cast<std::size_t>(members_ * schedule.micro_steps));
  mine_.resize(static_cast<std::size_t>(message_numel_));
  all_.resize(static_cast<std::size_t>(message_numel_ * members_));
  workspace_ = Tensor::empty(memory, Shape{most_blocks}, DType::kFloat64,
                             MemoryCategory::kWorkspace, "block sums of the gradient norm");
}

void StepExchange::exchange_items(const std::vector<std::int64_t>& items, Stream& stream) {
  my_items_ = items;
  if (control_ == nullptr) {
    items_ = items;
    return;
  }
  control_->all_gather(view_of(my_items_), view_of(items_), stream);
}

void StepExchange::finish_items() {
  total_items_ = 0;
  for (const std::int64_t count : items_) total_items_ += count;
}

float StepExchange::loss_scale() const {
  return total_items_ > 0 ? static_cast<float>(1.0 / static_cast<double>(total_items_)) : 0.0F;
}

TensorView StepExchange::loss_sum(int micro_step) {
  return TensorView(&losses_[static_cast<std::size_t>(micro_step)], DType::kFloat64, Shape{1});
}

void StepExchange::squares(int unit, Stream& stream) {
  const Range finest = state_.finest_range(unit, true);
  const TensorView gradient = state_.gradient_range(unit, state_.nesting().all_axes());
  kernels_.norm_nodes({.x = gradient,
                       .first_block = finest.begin / kNormBlock,
                       .workspace = workspace_,
                       .nodes = view_of(nodes_[static_cast<std::size_t>(unit)])},
                      stream);
}

void StepExchange::exchange_results(Stream& stream) {
  stream.submit({.name = "pack"}, [this] { pack(); });
  if (control_ != nullptr) control_->all_gather(view_of(mine_), view_of(all_), stream);
  stream.submit({.name = "combine"}, [this] { unpack(); });
}

void StepExchange::pack() {
  std::ranges::copy(losses_, mine_.begin());
  for (std::size_t u = 0; u < nodes_.size(); ++u) {
    std::copy_n(nodes_[u].begin(), node_counts_[u], mine_.begin() + offsets_[u]);
  }
  if (control_ == nullptr) all_ = mine_;
}

/// Losses in the order of the micro-batches: micro-step by micro-step, rank by rank, as one rank
/// that accumulates would add them. Norms unit by unit.
void StepExchange::unpack() {
  double loss = 0.0;
  for (int m = 0; m < schedule_.micro_steps; ++m) {
    for (std::int64_t r = 0; r < members_; ++r) {
      loss += all_[static_cast<std::size_t>(r * message_numel_ + m)];
    }
  }
  mean_loss_ = total_items_ > 0 ? loss / static_cast<double>(total_items_) : 0.0;
  double squares = 0.0;
  for (std::size_t u = 0; u < nodes_.size(); ++u) squares += unit_squares(u);
  gradient_norm_ = std::sqrt(squares);
}

double StepExchange::unit_squares(std::size_t unit) const {
  if (schedule_.units[unit].trainable_numel == 0) return 0.0;
  if (control_ == nullptr) {
    const BlockRange mine = blocks_of(state_.finest_range(static_cast<int>(unit), true));
    return combine_norm_nodes(std::span(&mine, 1), nodes_[unit]);
  }
  const std::int64_t finest = schedule_.units[unit].trainable_numel / members_;
  std::vector<BlockRange> ranges;
  std::vector<double> nodes(static_cast<std::size_t>(members_ * kNormNodes));
  for (std::int64_t r = 0; r < members_; ++r) {
    ranges.push_back(blocks_of({r * finest, finest}));
    std::copy_n(all_.begin() + r * message_numel_ + offsets_[unit], node_counts_[unit],
                nodes.begin() + r * kNormNodes);
  }
  return combine_norm_nodes(ranges, nodes);
}

}  // namespace tessera
