#include "execution/layer_parameters.h"

#include <algorithm>
#include <utility>

#include "tessera/sharding/operation.h"

namespace tessera {
namespace {

const Operand* find_operand(const Schedule& schedule, const std::vector<Operand>& operands,
                            const ParameterAddress& address, Role role) {
  const auto found = std::ranges::find_if(operands, [&](const Operand& operand) {
    return operand.unit == address.unit && schedule.role(operand.buffer) == role &&
           schedule.flats(operand).contains(address.flat);
  });
  return found == operands.end() ? nullptr : &*found;
}

TensorView tensor_of(TensorView flat, const FlatTensor& tensor) {
  const std::int64_t first = tensor.is_quantized() ? tensor.decoded_offset : tensor.offset;
  return flat.narrow(0, first, tensor.spec.shape.numel()).reshape(tensor.spec.shape);
}

/// The part of a range that is in a shard, counted from the shard's beginning.
Range part_of(const Range& range, const Range& shard) {
  const std::int64_t begin = std::max(shard.begin, range.begin);
  const std::int64_t end = std::min(shard.end(), range.end());
  if (begin >= end) return {};
  return {begin - shard.begin, end - begin};
}

}  // namespace

LayerParameters::LayerParameters(const Schedule& schedule, const ModelLayout& layout,
                                 const StepBuffers& buffers, const Fp8Options& fp8)
    : schedule_(schedule),
      layout_(layout),
      buffers_(buffers),
      fp8_(fp8_products(layout, fp8)),
      options_(fp8),
      scales_(schedule),
      histories_(schedule),
      written_(schedule.buffers.size()) {
  check_codes();
  number_histories();
  is_added_to_.resize(layout.layers.size());
  std::set<std::tuple<int, int, int>> behind;  // unit, flat parameter and tensor
  for (std::size_t l = layout.layers.size(); l-- > 0;) {
    for (const ParameterAddress& address : layout.layers[l].parameters) {
      contributed_.insert({address.unit, address.flat, address.tensor});
      const bool is_new = !layout.flat_of(address).trainable ||
                          behind.insert({address.unit, address.flat, address.tensor}).second;
      is_added_to_[l].push_back(is_new ? 0 : 1);
    }
  }
  for (const LayerLayout& layer : layout.layers) {
    parameters_.emplace_back(layer.parameters.size());
  }
}

/// Layers must take products in fp8 of all matrices whose codes alone are there.
void LayerParameters::check_codes() const {
  for (std::size_t l = 0; l < layout_.layers.size(); ++l) {
    for (const ParameterAddress& address : layout_.layers[l].parameters) {
      if (scales_.find({address.unit, address.flat}) < 0) continue;
      const Fp8Products& products = fp8_[l];
      require(products.forward && products.input_gradient, ErrorCode::kInvalidArgument, "layer '",
              layout_.layers[l].name, "' is planned to read ", layout_.tensor_of(address).spec.name,
              " in E4M3, but takes products of it in bf16: give the executor the fp8 options that "
              "the layout was made with, or plan without gather_codes");
    }
  }
}

/// Matrices have their histories in order of layers.
void LayerParameters::number_histories() {
  const bool trains = schedule_.purpose == Purpose::kTrain;
  require(!trains || (schedule_.fp8_history > 0) == options_.is_delayed(),
          ErrorCode::kInvalidArgument, "the schedule is planned with histories of ",
          schedule_.fp8_history, " steps, and the executor's recipe of fp8 is ",
          to_string(options_.recipe),
          ": give the executor the fp8 options that the schedule was planned with");
  for (std::size_t l = 0; l < layout_.layers.size(); ++l) {
    std::int64_t next = histories_.first_tensor(static_cast<int>(l));
    if (next < 0) continue;
    int matrices = 0;
    for (const ParameterAddress& address : layout_.layers[l].parameters) {
      if (!layout_.tensor_of(address).spec.fp8) continue;
      history_of_[{address.unit, address.flat, address.tensor}] = next;
      next += kFp8Tensors;
      ++matrices;
    }
    require(fp8_[l].any() && matrices == schedule_.layers[l].fp8_histories,
            ErrorCode::kInvalidArgument, "layer '", layout_.layers[l].name, "' has ", matrices,
            " matrices in fp8, and was planned with histories of ",
            schedule_.layers[l].fp8_histories,
            ": plan for the layout and the fp8 options that run");
  }
}

/// The operand from which a pass reads a parameter, and its flat parameter there; null: it reads
/// none. Of a mirror it is the unit's own where that is here.
std::pair<const Operand*, int> LayerParameters::find_value(const Action& action,
                                                           const ParameterAddress& address) const {
  const FlatParameter& flat = layout_.flat_of(address);
  const Role role = flat.quantized ? Role::kDecoded : Role::kParameter;
  const Operand* const own = find_operand(schedule_, action.reads, address, role);
  const int home = layout_.units[static_cast<std::size_t>(address.unit)].mirrors;
  if (own != nullptr || home < 0) return {own, address.flat};
  const std::vector<FlatParameter>& flats = layout_.units[static_cast<std::size_t>(home)].flats;
  const auto place = std::ranges::find(flats, flat.name, &FlatParameter::name) - flats.begin();
  const ParameterAddress there{home, static_cast<int>(place), address.tensor};
  return {find_operand(schedule_, action.reads, there, role), there.flat};
}

/// The word of a matrix among the scales that an action names.
TensorView LayerParameters::word_of(const std::vector<Operand>& operands, const FlatId& id,
                                    int matrix) const {
  if (!histories_.empty()) {
    const auto words = std::ranges::find_if(operands, [&](const Operand& operand) {
      const Role role = schedule_.role(operand.buffer);
      return role == Role::kHistory || role == Role::kMaxima;
    });
    return buffers_.whole(words->buffer).narrow(0, history_of_.at({id.unit, id.flat, matrix}), 1);
  }
  const ScaleTable::Entry& entry = scales_.entries()[static_cast<std::size_t>(scales_.find(id))];
  const auto found = std::ranges::find_if(operands, [&](const Operand& operand) {
    return schedule_.role(operand.buffer) == Role::kScales &&
           scales_.group_in(schedule_, operand.buffer) == entry.group;
  });
  return buffers_.whole(found->buffer).narrow(0, entry.first_word + matrix, 1);
}

/// The numbers of a parameter that a pass reads, or their codes.
void LayerParameters::bind_value(Parameter& parameter, const Action& action,
                                 const ParameterAddress& address) const {
  const FlatTensor& tensor = layout_.tensor_of(address);
  const FlatParameter& flat = layout_.flat_of(address);
  const Operand* const codes =
      flat.fp8 ? find_operand(schedule_, action.reads, address, Role::kCode) : nullptr;
  const auto [value, value_flat] = find_value(action, address);
  // A layer whose backward reads no parameters finds none: its unit may be in shards.
  parameter.value =
      value != nullptr
          ? tensor_of(buffers_.view(*value, value_flat), tensor)
          : TensorView(nullptr, flat.dtype.value_or(schedule_.parameter_dtype), tensor.spec.shape);
  parameter.codes = parameter.amax = {};
  if (codes == nullptr) return;
  parameter.codes = tensor_of(buffers_.view(*codes, address.flat), tensor);
  parameter.amax = word_of(action.reads, {address.unit, address.flat}, address.tensor);
}

/// The words of a matrix and its products that a pass reads and writes.
void LayerParameters::bind_history(Parameter& parameter, const Action& action,
                                   std::int64_t tensor) const {
  const auto words = [&](const std::vector<Operand>& operands, BufferKind kind) {
    const Operand* const found = schedule_.find(operands, kind);
    return found == nullptr ? TensorView()
                            : buffers_.whole(found->buffer).narrow(0, tensor, kFp8Tensors);
  };
  parameter.scale_words = words(action.reads, BufferKind::kHistory);
  parameter.maxima = words(action.writes, BufferKind::kMaxima);
}

std::span<Parameter> LayerParameters::bind(const Action& action) {
  const auto layer = static_cast<std::size_t>(action.layer);
  std::vector<Parameter>& parameters = parameters_[layer];
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    const ParameterAddress& address = layout_.layers[layer].parameters[p];
    const FlatTensor& tensor = layout_.tensor_of(address);
    const FlatParameter& flat = layout_.flat_of(address);
    bind_value(parameters[p], action, address);
    parameters[p].padded_rows = tensor.spec.row_multiple > 1 ? padded_rows(tensor.spec) : 0;
    parameters[p].trainable = flat.trainable;
    if (tensor.spec.fp8) parameters[p].fp8 = fp8_[layer];
    const auto history = history_of_.find({address.unit, address.flat, address.tensor});
    if (history != history_of_.end()) bind_history(parameters[p], action, history->second);
    parameters[p].gradient = {};
    parameters[p].gradient_written = is_added_to_[layer][p] != 0;
    const Operand* const gradient =
        flat.trainable ? find_operand(schedule_, action.writes, address, Role::kGradient) : nullptr;
    if (gradient == nullptr) continue;
    parameters[p].gradient = tensor_of(buffers_.view(*gradient), tensor);
    parameters[p].gradient_written = written_[static_cast<std::size_t>(gradient->buffer)]
                                             [static_cast<std::size_t>(address.tensor)] != 0;
  }
  return parameters;
}

void LayerParameters::decode(const Action& action, const KernelTable& kernels, Stream& stream) {
  const TensorView from = buffers_.view(action.reads.front());
  const TensorView to = buffers_.view(action.writes.front());
  const Operand& decoded = action.writes.front();
  const ParameterAddress address{decoded.unit, schedule_.flats(decoded).front(), 0};
  for (const FlatTensor& tensor : layout_.flat_of(address).tensors) {
    kernels.dequantize({.format = tensor.spec.format,
                        .src = from.narrow(0, tensor.offset, tensor.numel()),
                        .dst = tensor_of(to, tensor),
                        .joined = tensor.spec.joined},
                       stream);
  }
}

void LayerParameters::amax(const Action& action, const KernelTable& kernels, Stream& stream) const {
  const Operand& shard = action.reads.front();
  const FlatId id{shard.unit, schedule_.flats(shard).front()};
  const TensorView from = buffers_.view(shard);
  const Range own{buffers_.first_element(shard), from.numel()};
  const FlatParameter& flat = layout_.flat_of({id.unit, id.flat, 0});
  for (std::size_t t = 0; t < flat.tensors.size(); ++t) {
    const FlatTensor& tensor = flat.tensors[t];
    const Range part = part_of({tensor.offset, tensor.spec.shape.numel()}, own);
    kernels.amax({.x = from.narrow(0, part.begin, part.numel),
                  .amax = word_of(action.writes, id, static_cast<int>(t)),
                  .accumulate = !histories_.empty()},
                 stream);
  }
}

/// Zeros between and behind the matrices are encoded as well, with the matrix before them.
void LayerParameters::encode(const Action& action, const KernelTable& kernels,
                             Stream& stream) const {
  const Operand& shard = action.reads.front();
  const FlatId id{shard.unit, schedule_.flats(shard).front()};
  const TensorView from = buffers_.view(shard), to = buffers_.view(action.writes.front());
  const Range own{buffers_.first_element(shard), from.numel()};
  const FlatParameter& flat = layout_.flat_of({id.unit, id.flat, 0});
  for (std::size_t t = 0; t < flat.tensors.size(); ++t) {
    const std::int64_t end =
        t + 1 < flat.tensors.size() ? flat.tensors[t + 1].offset : flat.padded_numel;
    const Range part = part_of({flat.tensors[t].offset, end - flat.tensors[t].offset}, own);
    if (part.numel == 0) continue;
    kernels.fp8_encode({.x = from.narrow(0, part.begin, part.numel),
                        .amax = word_of(action.reads, id, static_cast<int>(t)),
                        .codes = to.narrow(0, part.begin, part.numel),
                        .format = Fp8Format::kE4M3,
                        .scales = options_.scales},
                       stream);
  }
}

void LayerParameters::roll_history(const Action& action, const KernelTable& kernels,
                                   Stream& stream) const {
  const TensorView history =
      buffers_.whole(schedule_.find(action.writes, BufferKind::kHistory)->buffer);
  const TensorView maxima =
      buffers_.whole(schedule_.find(action.writes, BufferKind::kMaxima)->buffer);
  const std::int64_t tensors = histories_.tensors(), before = schedule_.fp8_history - 1;
  kernels.roll_fp8_history(
      {.newest = maxima.narrow(0, 0, tensors),
       .history = history.narrow(0, tensors, tensors * before).reshape(Shape{tensors, before}),
       .scale_words = history.narrow(0, 0, tensors),
       .rule = options_.history_rule,
       .margin = options_.margin},
      stream);
}

/// Where a unit's gradient begins anew: what lies between and behind the tensors must not reach a
/// sum, for slots change hands.
void LayerParameters::begin_gradients(const Action& action, const KernelTable& kernels,
                                      Stream& stream) {
  for (const Operand& operand : action.writes) {
    if (schedule_.role(operand.buffer) != Role::kGradient || operand.adds) continue;
    const ParameterAddress address{operand.unit, schedule_.flats(operand).front(), 0};
    const FlatParameter& flat = layout_.flat_of(address);
    written_[static_cast<std::size_t>(operand.buffer)].assign(flat.tensors.size(), char{0});
    const TensorView gradient = buffers_.view(operand);
    std::int64_t end = 0;
    const auto clear_until = [&](std::int64_t begin) {
      if (begin > end) kernels.fill({.dst = gradient.narrow(0, end, begin - end)}, stream);
    };
    for (std::size_t t = 0; t < flat.tensors.size(); ++t) {
      const FlatTensor& tensor = flat.tensors[t];
      if (!contributed_.contains({address.unit, address.flat, static_cast<int>(t)})) continue;
      clear_until(tensor.offset);
      end = tensor.offset + tensor.spec.shape.numel();
    }
    clear_until(gradient.numel());
  }
}

/// A parameter of the layer that no operation used has gradient zero.
void LayerParameters::end_gradients(const Action& action, const KernelTable& kernels,
                                    Stream& stream) {
  const auto layer = static_cast<std::size_t>(action.layer);
  for (std::size_t p = 0; p < parameters_[layer].size(); ++p) {
    const ParameterAddress& address = layout_.layers[layer].parameters[p];
    if (!layout_.flat_of(address).trainable) continue;
    const Parameter& parameter = parameters_[layer][p];
    if (!parameter.gradient_written) kernels.fill({.dst = parameter.gradient}, stream);
    const Operand* const gradient =
        find_operand(schedule_, action.writes, address, Role::kGradient);
    written_[static_cast<std::size_t>(gradient->buffer)][static_cast<std::size_t>(address.tensor)] =
        1;
  }
}

}  // namespace tessera
