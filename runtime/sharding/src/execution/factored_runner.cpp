#include "execution/factored_runner.h"

#include <algorithm>

#include "execution/step_exchange.h"
#include "passes/pass_tools.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

/// The part of a matrix that lies in a shard of its flat parameter; of no elements: none does.
FactoredPart part_in(const PlacedMatrix& placed, const Range& shard) {
  const std::int64_t begin = std::max(shard.begin, placed.offset);
  const std::int64_t end = std::min(shard.end(), placed.offset + placed.matrix.numel());
  return {.matrix = placed.matrix,
          .begin = begin - shard.begin,
          .first = begin - placed.offset,
          .numel = std::max<std::int64_t>(end - begin, 0)};
}

TensorView part_of(const TensorView& view, const Range& range) {
  return view.narrow(0, range.begin, range.numel);
}

TensorView rows_of(const TensorView& words, std::int64_t columns) {
  return words.reshape(Shape{words.numel() / columns, columns});
}

/// int64 words as fp32 zeros, which have the same bits.
void clear(const KernelTable& kernels, const TensorView& words, Stream& stream) {
  kernels.fill(
      {.dst = TensorView(words.data, DType::kFloat32, Shape{2 * words.numel()}), .value = 0.0F},
      stream);
}

}  // namespace

FactoredRunner::FactoredRunner(const TrainingState& state, const RatesOf& rates_of,
                               bool scale_parameter, bool stochastic_rounding)
    : table_(schedule_units(state.layout(), state.options()), state.options(), scale_parameter),
      stochastic_rounding_(stochastic_rounding) {
  const std::int64_t alignment = flat_alignment(state.options().optimizer_tensors);
  std::int64_t elements = 0;
  const ModelLayout& layout = state.layout();
  for (int u = 0; u < static_cast<int>(layout.units.size()); ++u) {
    const std::vector<FlatParameter>& flats = layout.units[static_cast<std::size_t>(u)].flats;
    for (int f = 0; f < static_cast<int>(flats.size()); ++f) {
      const FlatParameter& flat = flats[static_cast<std::size_t>(f)];
      if (!flat.trainable) continue;
      const Range shard = state.nesting().range(
          flat.padded_numel, state.nesting().placement().optimizer, state.rank());
      Flat& own = flats_[{u, f}];
      own.first_element = elements + shard.begin;
      for (PlacedMatrix& placed : factored_matrices(flat)) {
        placed.matrix.rates = rates_of(flat.tensors[static_cast<std::size_t>(placed.tensor)].spec);
        own.matrices.push_back(placed.matrix);
        const FactoredPart part = part_in(placed, shard);
        if (part.numel > 0) own.parts.push_back(part);
      }
      elements += (flat.numel + alignment - 1) / alignment * alignment;
    }
  }
}

const FactoredTable::Entry& FactoredRunner::entry_of(const FlatId& id) const {
  const int entry = table_.find(id);
  require(entry >= 0, ErrorCode::kInternal, "a flat parameter without moments");
  return table_.entries()[static_cast<std::size_t>(entry)];
}

TensorView FactoredRunner::statistics(StepContext& context, const std::vector<Operand>& operands,
                                      BufferKind kind, const FlatId& id) const {
  const Operand& operand = *context.schedule().find(operands, kind);
  return part_of(context.view(operand), table_.part(kind, entry_of(id)));
}

TensorView FactoredRunner::parameter_squares(StepContext& context,
                                             const std::vector<Operand>& operands,
                                             const FlatId& id) const {
  const Range range = table_.parameter_part(entry_of(id));
  if (range.numel == 0) return {};
  const Operand& operand = *context.schedule().find(operands, BufferKind::kSquares);
  return rows_of(part_of(context.view(operand), range), kExactSumWords);
}

void FactoredRunner::add_squares(StepContext& context, const Action& action, Stream& stream) const {
  const Operand& gradient = action.reads.front();
  const FlatId id = id_of(context.schedule(), gradient);
  const Operand& to = action.writes.front();
  const StepExchange& exchange = context.exchange();
  if (!to.adds) clear(context.kernels(), context.view(to), stream);
  const std::vector<FactoredPart>& parts = flats_.at(id).parts;
  context.kernels().factored_squares(
      {.gradient = context.view(gradient),
       .gradient_scale = exchange.clip_factor(Tier::kDevice),
       .gradient_norm = exchange.norm(),
       .parts = parts,
       .sums =
           rows_of(statistics(context, action.writes, BufferKind::kSquares, id), kFactoredWords)},
      stream);
  const TensorView squares = parameter_squares(context, action.writes, id);
  if (!squares) return;
  context.kernels().factored_update_squares(
      {.gradient = context.view(action.reads[2]), .parts = parts, .words = squares}, stream);
}

void FactoredRunner::update_moments(StepContext& context, const Action& action,
                                    Stream& stream) const {
  const Operand& kept = action.writes.front();
  const FlatId id = id_of(context.schedule(), kept);
  StepExchange& exchange = context.exchange();
  const DeviceLossScaler* const scaler = exchange.scaler();
  context.kernels().factored_moments(
      {.gradient_norm = exchange.norm(),
       .scalars = exchange.optimizer_scalars(Tier::kDevice),
       .skip = scaler != nullptr ? scaler->skip(Tier::kDevice) : TensorView(),
       .matrices = flats_.at(id).matrices,
       .sums = rows_of(statistics(context, action.reads, BufferKind::kSquares, id), kFactoredWords),
       .moments = context.view(kept),
       .factors = statistics(context, action.writes, BufferKind::kFactors, id)},
      stream);
}

void FactoredRunner::add_update_squares(StepContext& context, const Action& action,
                                        Stream& stream) const {
  const Operand& gradient = action.reads.front();
  const FlatId id = id_of(context.schedule(), gradient);
  const Operand& to = action.writes.front();
  if (!to.adds) clear(context.kernels(), context.view(to), stream);
  context.kernels().factored_update_squares(
      {.gradient = context.view(gradient),
       .gradient_scale = context.exchange().clip_factor(Tier::kDevice),
       .parts = flats_.at(id).parts,
       .factors = statistics(context, action.reads, BufferKind::kFactors, id),
       .words = rows_of(statistics(context, action.writes, BufferKind::kUpdateSquares, id),
                        kExactSumWords)},
      stream);
}

void FactoredRunner::step(StepContext& context, const Action& action, Stream& stream) const {
  const Schedule& schedule = context.schedule();
  const Operand& gradient = *std::ranges::find_if(action.reads, [&](const Operand& operand) {
    return schedule.role(operand.buffer) == Role::kGradient;
  });
  const FlatId id = id_of(schedule, gradient);
  StepExchange& exchange = context.exchange();
  const DeviceLossScaler* const scaler = exchange.scaler();
  TensorView master, parameter;
  for (const Operand& operand : action.writes) {
    (schedule.role(operand.buffer) == Role::kMaster ? master : parameter) = context.view(operand);
  }
  const bool has_copy = static_cast<bool>(master);
  const Flat& flat = flats_.at(id);
  context.kernels().factored_step(
      {.master = has_copy ? master : parameter,
       .gradient = context.view(gradient),
       .parameter = has_copy ? parameter : TensorView(),
       .gradient_scale = exchange.clip_factor(Tier::kDevice),
       .parts = flat.parts,
       .factors = statistics(context, action.reads, BufferKind::kFactors, id),
       .update_squares = rows_of(statistics(context, action.reads, BufferKind::kUpdateSquares, id),
                                 kExactSumWords),
       .parameter_squares = parameter_squares(context, action.reads, id),
       .scalars = exchange.optimizer_scalars(Tier::kDevice),
       .skip = scaler != nullptr ? scaler->skip(Tier::kDevice) : TensorView(),
       .stochastic_rounding = stochastic_rounding_,
       .rounding_key = exchange.rounding_key(Tier::kDevice),
       .first_index = flat.first_element},
      stream);
}

}  // namespace tessera
