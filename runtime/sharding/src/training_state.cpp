#include "tessera/sharding/training_state.h"

#include <algorithm>

#include "device_array.h"
#include "tessera/core/error.h"
#include "tessera/core/nearest_name.h"
#include "tessera/kernels/philox.h"
#include "tessera/sharding/account.h"

namespace tessera {
namespace {

/// Elements to write at a time: what fits the first-level cache, or keeps a GPU busy.
std::int64_t chunk_numel(const Device& device) {
  return device.host_accessible() ? 8192 : std::int64_t{1} << 20;
}

/// dst[i] = bound * (2 u - 1) for u = (word + 1/2) / 2^32 of element first + i. Made on the host:
/// only adapters start so, which are small. Blocks.
void fill_uniform(const TensorView& dst, float bound, RandomKey key, std::int64_t first,
                  Device& device, Stream& stream) {
  DeviceArray<float> values(device, dst.numel());
  for (std::int64_t i = 0; i < dst.numel(); ++i) {
    const double unit = (static_cast<double>(random_word(key, first + i)) + 0.5) * 0x1p-31 - 1.0;
    values.host()[i] = static_cast<float>(unit * static_cast<double>(bound));
  }
  values.upload(stream);
  kernels_for(device).cast({.src = values.view(), .dst = dst}, stream);
  stream.synchronize();
}

}  // namespace

// [Note: state on the host] Memory for copies is mapped for a GPU: its kernels read and write it in
// place, over the bus. So what is done between steps is the same for both tiers.
TrainingState::TrainingState(const ModelLayout& layout, const StateOptions& options, int rank,
                             Memory& memory)
    : layout_(layout),
      options_(options),
      nesting_(options.mesh, options.placement),
      rank_(rank),
      device_(memory.device()),
      kernels_(kernels_for(memory.device())) {
  for (const ScheduleBuffer& buffer : state_buffers(layout, options)) {
    storage_.push_back(Tensor::empty(memory, Shape{buffer.numel}, buffer.format,
                                     category_of(buffer), buffer.name, buffer.tier));
    StateTensor tensor{.name = buffer.name,
                       .role = buffer.role,
                       .unit = buffer.unit,
                       .format = buffer.format,
                       .sharded = buffer.sharded,
                       .tier = buffer.tier,
                       .range = {},
                       .view = storage_.back()};
    tensor.range = nesting_.range(flat(tensor).padded_numel, buffer.sharded, rank);
    tensors_.push_back(std::move(tensor));
  }
}

const FlatParameter& TrainingState::flat(const StateTensor& tensor) const {
  const Unit& unit = layout_.units[static_cast<std::size_t>(tensor.unit)];
  return tensor.role == Role::kFrozen ? unit.frozen : unit.trainable;
}

bool TrainingState::is_offloaded() const {
  return std::ranges::find(tensors_, Tier::kHost, &StateTensor::tier) != tensors_.end();
}

const StateTensor& TrainingState::at(std::string_view name) const {
  const auto found = std::ranges::find(tensors_, name, &StateTensor::name);
  if (found == tensors_.end()) {
    std::vector<std::string> names;
    for (const StateTensor& tensor : tensors_) names.push_back(tensor.name);
    const std::string nearest = nearest_name(name, names);
    fail(ErrorCode::kInvalidArgument, "the training state has no tensor '", name, "'",
         nearest.empty() ? "" : concat("; did you mean '", nearest, "'?"));
  }
  return *found;
}

const StateTensor* TrainingState::find(Role role, int unit) const {
  const auto found = std::ranges::find_if(tensors_, [&](const StateTensor& tensor) {
    return tensor.role == role && tensor.unit == unit;
  });
  return found == tensors_.end() ? nullptr : &*found;
}

/// `range` of the flat parameter, all of which the tensor must hold.
TensorView TrainingState::part(const StateTensor& tensor, const Range& range) const {
  require(range.begin >= tensor.range.begin && range.end() <= tensor.range.end(),
          ErrorCode::kInvalidArgument, "this rank has elements ", tensor.range.begin, " to ",
          tensor.range.end(), " of '", tensor.name, "', not ", range.begin, " to ", range.end());
  return tensor.view.narrow(0, range.begin - tensor.range.begin, range.numel);
}

TensorView TrainingState::master(int unit) const {
  if (const StateTensor* const master = find(Role::kMaster, unit)) return master->view;
  const StateTensor* const parameter = find(Role::kParameter, unit);
  if (parameter == nullptr) return {};
  return part(*parameter,
              nesting_.range(flat(*parameter).padded_numel, nesting_.placement().optimizer, rank_));
}

std::vector<StatePiece> TrainingState::pieces(const StateTensor& tensor) const {
  std::vector<StatePiece> pieces;
  for (const FlatTensor& parameter : flat(tensor).tensors) {
    const std::int64_t begin = std::max(tensor.range.begin, parameter.offset);
    const std::int64_t end =
        std::min(tensor.range.end(), parameter.offset + parameter.spec.shape.numel());
    if (begin >= end) continue;
    pieces.push_back({.parameter = &parameter.spec,
                      .elements = {begin - parameter.offset, end - begin},
                      .first = begin,
                      .view = part(tensor, {begin, end - begin})});
  }
  return pieces;
}

void TrainingState::read(std::string_view name, std::int64_t first, std::span<float> values,
                         Stream& stream) const {
  const auto numel = static_cast<std::int64_t>(values.size());
  const TensorView from = part(at(name), {first, numel});
  DeviceArray<float> copy(device_, numel);
  kernels_.cast({.src = from, .dst = copy.view()}, stream);
  copy.download(stream);
  stream.synchronize();
  std::copy_n(copy.host(), numel, values.begin());
}

void TrainingState::write(std::string_view name, std::int64_t first, std::span<const float> values,
                          Stream& stream) {
  const auto numel = static_cast<std::int64_t>(values.size());
  const TensorView to = part(at(name), {first, numel});
  if (device_.host_accessible() && to.dtype == DType::kFloat32) {
    stream.synchronize();
    std::ranges::copy(values, to.as<float>());
    return;
  }
  DeviceArray<float> copy(device_, numel);
  std::ranges::copy(values, copy.host());
  copy.upload(stream);
  kernels_.cast({.src = copy.view(), .dst = to}, stream);
  stream.synchronize();  // the copy dies here
}

void TrainingState::initialize(std::uint64_t seed, Stream& stream) {
  for (const StateTensor& tensor : tensors_) {
    kernels_.fill({.dst = tensor.view}, stream);  // padding included
  }
  write_parameters(
      [&](const ParameterSpec& spec, const Range& elements, TensorView chunk) {
        const Initializer& init = spec.initializer;
        const RandomKey key{seed, stream_of(spec.name)};
        switch (init.kind) {
          case Initializer::Kind::kConstant:
            return kernels_.fill({.dst = chunk, .value = init.mean}, stream);
          case Initializer::Kind::kNormal:
            return kernels_.fill_normal({.dst = chunk,
                                         .mean = init.mean,
                                         .stddev = init.spread,
                                         .key = key,
                                         .first_index = elements.begin},
                                        stream);
          case Initializer::Kind::kUniform:
            return fill_uniform(chunk, init.spread, key, elements.begin, device_, stream);
        }
      },
      stream);
}

void TrainingState::set_parameters(const ParameterValues& values_of, Stream& stream) {
  DeviceArray<float> copy(device_, chunk_numel(device_));
  write_parameters(
      [&](const ParameterSpec& spec, const Range& elements, TensorView chunk) {
        const std::span<const float> values = values_of(spec.name);
        require(static_cast<std::int64_t>(values.size()) == spec.shape.numel(),
                ErrorCode::kInvalidArgument, "parameter '", spec.name, "' has ", spec.shape.numel(),
                " elements, but ", values.size(), " were given");
        stream.synchronize();  // the chunk before may still be on its way
        std::copy_n(values.begin() + elements.begin, elements.numel, copy.host());
        copy.upload_first(elements.numel, stream);
        kernels_.cast({.src = copy.view(0, elements.numel), .dst = chunk}, stream);
      },
      stream);
}

/// Writes this rank's part of all parameters and master weights, in chunks that `produce` makes.
void TrainingState::write_parameters(const ProduceChunk& produce, Stream& stream) {
  const std::int64_t most = chunk_numel(device_);
  if (device_.kind() == DeviceKind::kSim) {  // its memory has no contents, but the chunk takes some
    const std::size_t bytes = static_cast<std::size_t>(most) * sizeof(float);
    return device_.deallocate(device_.allocate(bytes), bytes);
  }
  DeviceArray<float> chunk(device_, most);
  for (const StateTensor& tensor : tensors_) {
    if (tensor.role == Role::kOptimizer) continue;
    for (const StatePiece& piece : pieces(tensor)) {
      for (std::int64_t e = 0; e < piece.elements.numel; e += most) {
        const std::int64_t count = std::min(most, piece.elements.numel - e);
        const TensorView values = chunk.view(0, count);
        produce(*piece.parameter, {piece.elements.begin + e, count}, values);
        kernels_.cast({.src = values, .dst = piece.view.narrow(0, e, count)}, stream);
      }
    }
  }
  stream.synchronize();  // the chunk dies here
}

}  // namespace tessera
