#include "tessera/sharding/training_state.h"

#include <algorithm>
#include <cstring>

#include "execution/device_array.h"
#include "tessera/core/error.h"
#include "tessera/core/nearest_name.h"
#include "tessera/kernels/philox.h"
#include "tessera/sharding/account.h"

namespace tessera {
namespace {

constexpr std::int64_t kFloatBytes = sizeof(float);

/// Elements to write at a time: what fits a core's cache, or keeps a GPU busy; enough for all of a
/// rank's threads.
std::int64_t chunk_numel(const Device& device) {
  return std::int64_t{1} << (device.host_accessible() ? 18 : 20);
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
                             Memory& memory, DiskStoreOptions disk, HostWork* work)
    : layout_(layout),
      options_(options),
      nesting_(options.mesh, options.placement),
      rank_(rank),
      device_(memory.device()),
      kernels_(kernels_for(memory.device())),
      work_(work) {
  const std::vector<ScheduleBuffer> buffers = state_buffers(layout, options);
  const std::vector<DiskExtent> extents = disk_extents(buffers);
  if (!extents.empty() && device_.kind() != DeviceKind::kSim) {
    require(!disk.folder.empty(), ErrorCode::kConfig,
            "training state goes to disk, and nobody has said where: set `offload_path` to a "
            "folder on it");
    disk.rank = rank;
    disk_ = std::make_unique<DiskStore>(std::move(disk), extents);
  }
  std::size_t next_extent = 0;
  for (const ScheduleBuffer& buffer : buffers) {
    const bool on_disk = buffer.tier == Tier::kDisk;
    if (!on_disk) {
      storage_.push_back(Tensor::empty(memory, Shape{buffer.numel}, buffer.format,
                                       category_of(buffer), buffer.name, buffer.tier));
    }
    StateTensor tensor{.name = buffer.name,
                       .role = buffer.role,
                       .unit = buffer.unit,
                       .flat = buffer.flat,
                       .tensor = buffer.tensor,
                       .format = buffer.format,
                       .block = buffer.block,
                       .sharded = buffer.sharded,
                       .tier = buffer.tier,
                       .range = {},
                       .view = on_disk ? TensorView(nullptr, buffer.format, Shape{buffer.numel})
                                       : storage_.back().view(),
                       .extent = on_disk ? next_extent++ : 0};
    tensor.range = buffer.is_factored() ? Range{0, buffer.numel}
                                        : nesting_.range(flat(tensor).padded_numel / buffer.block,
                                                         buffer.sharded, rank);
    tensors_.push_back(std::move(tensor));
  }
}

const FlatParameter& TrainingState::flat(const StateTensor& tensor) const {
  return layout_.flat_of({tensor.unit, tensor.flat});
}

bool TrainingState::is_offloaded() const {
  return std::ranges::any_of(
      tensors_, [](const StateTensor& tensor) { return tensor.tier != Tier::kDevice; });
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

const StateTensor* TrainingState::find(Role role, const FlatId& id) const {
  const auto found = std::ranges::find_if(tensors_, [&](const StateTensor& tensor) {
    return tensor.role == role && FlatId{tensor.unit, tensor.flat} == id;
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

TensorView TrainingState::master(const FlatId& id) const {
  if (const StateTensor* const master = find(Role::kMaster, id)) return master->view;
  const StateTensor* const parameter = find(Role::kParameter, id);
  if (parameter == nullptr) return {};
  return part(*parameter,
              nesting_.range(flat(*parameter).padded_numel, nesting_.placement().optimizer, rank_));
}

std::vector<StatePiece> TrainingState::pieces(const StateTensor& tensor) const {
  std::vector<StatePiece> pieces;
  if (tensor.block == kFactoredBlock) {
    std::int64_t first = 0;
    for (const FlatTensor& parameter : flat(tensor).tensors) {
      const Range elements{0, factored_counts(parameter.spec).numbers};
      pieces.push_back({.parameter = &parameter.spec,
                        .elements = elements,
                        .first = first,
                        .view = part(tensor, {first, elements.numel})});
      first += elements.numel;
    }
    return pieces;
  }
  for (const FlatTensor& parameter : flat(tensor).tensors) {
    const std::int64_t offset = parameter.offset / tensor.block;
    const std::int64_t numel = (parameter.numel() + tensor.block - 1) / tensor.block;
    const std::int64_t begin = std::max(tensor.range.begin, offset);
    const std::int64_t end = std::min(tensor.range.end(), offset + numel);
    if (begin >= end) continue;
    pieces.push_back({.parameter = &parameter.spec,
                      .elements = {begin - offset, end - begin},
                      .first = begin,
                      .view = part(tensor, {begin, end - begin})});
  }
  return pieces;
}

void TrainingState::read(std::string_view name, std::int64_t first, std::span<float> values,
                         Stream& stream) const {
  const auto numel = static_cast<std::int64_t>(values.size());
  const StateTensor& tensor = at(name);
  const TensorView from = part(tensor, {first, numel});
  if (tensor.tier == Tier::kDisk) {
    stream.synchronize();
    return read_from_disk(tensor, first, values, stream);
  }
  DeviceArray<float> copy(device_, numel);
  kernels_.cast({.src = from, .dst = copy.view()}, stream);
  copy.download(stream);
  stream.synchronize();
  std::copy_n(copy.host(), numel, values.begin());
}

void TrainingState::write(std::string_view name, std::int64_t first, std::span<const float> values,
                          Stream& stream) {
  const auto numel = static_cast<std::int64_t>(values.size());
  const StateTensor& tensor = at(name);
  const TensorView to = part(tensor, {first, numel});
  if (tensor.tier == Tier::kDisk) {
    stream.synchronize();
    return write_to_disk(tensor, first, values, stream);
  }
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

void TrainingState::write_bytes(std::string_view name, std::int64_t first,
                                std::span<const std::byte> bytes, Stream& stream) {
  const StateTensor& tensor = at(name);
  const TensorView to = part(tensor, {first, static_cast<std::int64_t>(bytes.size())});
  require(to.dtype == DType::kUInt8, ErrorCode::kInvalidArgument, "'", name, "' is in ",
          to_string(to.dtype), ", not in bytes");
  if (tensor.tier == Tier::kDisk) {
    stream.synchronize();
    return disk_->write(tensor.extent, bytes, first - tensor.range.begin);
  }
  DeviceArray<std::uint8_t> copy(device_, to.numel());
  std::memcpy(copy.host(), bytes.data(), bytes.size());
  copy.upload(stream);
  stream.copy(to.data, copy.view().data, bytes.size());
  stream.synchronize();  // the copy dies here
}

void TrainingState::write_quantized(const StateTensor& tensor, const ProduceBytes& produce,
                                    Stream& stream) {
  if (device_.kind() == DeviceKind::kSim) return;
  std::vector<std::byte> bytes;
  for (const StatePiece& piece : pieces(tensor)) {
    const ParameterSpec& spec = *piece.parameter;
    bytes.resize(static_cast<std::size_t>(quantized_sizes(spec).bytes));
    produce(spec, bytes);
    write_bytes(
        tensor.name, piece.first,
        std::span<const std::byte>(bytes).subspan(static_cast<std::size_t>(piece.elements.begin),
                                                  static_cast<std::size_t>(piece.elements.numel)),
        stream);
  }
}

/// All of them, of whole parameters in fp32.
void TrainingState::quantize_parameters(const ReadParameter& read, Stream& stream) {
  std::vector<float> values;
  for (const StateTensor& tensor : tensors_) {
    if (tensor.role != Role::kParameter || !flat(tensor).quantized) continue;
    write_quantized(
        tensor,
        [&](const ParameterSpec& spec, std::span<std::byte> bytes) {
          values.resize(static_cast<std::size_t>(spec.shape.numel()));
          read(spec, values);
          quantize(spec.format, spec.shape, values, bytes, spec.name, spec.joined);
          advance_work(work_, HostTask::kInitialize, spec.shape.numel() * kFloatBytes);
        },
        stream);
  }
}

/// In pieces: the first write to memory of the host takes its pages, which may be long.
void TrainingState::fill_zero(const StateTensor& tensor, Stream& stream) {
  constexpr std::int64_t kPieceBytes = std::int64_t{64} << 20;
  const bool is_bytes = tensor.format == DType::kUInt8;  // a multiple of kFlatAlignment
  const TensorView all = is_bytes ? TensorView(tensor.view.data, DType::kFloat32,
                                               Shape{tensor.view.numel() / kFloatBytes})
                                  : tensor.view;
  const auto most = kPieceBytes / static_cast<std::int64_t>(size_of(all.dtype));
  for (std::int64_t begin = 0; begin < all.numel(); begin += most) {
    const TensorView piece = all.narrow(0, begin, std::min(most, all.numel() - begin));
    kernels_.fill({.dst = piece}, stream);
    advance_work(work_, HostTask::kInitialize, piece.bytes());
  }
}

/// All of it is zero then, padding included.
void TrainingState::clear(Stream& stream) {
  std::vector<std::byte> zeros;
  for (const StateTensor& tensor : tensors_) {
    if (tensor.tier != Tier::kDisk) {
      fill_zero(tensor, stream);
    } else if (disk_ != nullptr) {
      zeros.resize(static_cast<std::size_t>(tensor.view.bytes()));
      disk_->write(tensor.extent, zeros);
      advance_work(work_, HostTask::kInitialize, tensor.view.bytes());
    }
  }
}

/// Zeros, whole parameters before they are quantised, and fp32 values of the others.
std::int64_t TrainingState::bytes_to_initialize() const {
  std::int64_t bytes = 0;
  for (const StateTensor& tensor : tensors_) {
    if (tensor.tier != Tier::kDisk || disk_ != nullptr) bytes += tensor.view.bytes();
    if (tensor.role == Role::kOptimizer || device_.kind() == DeviceKind::kSim) continue;
    for (const StatePiece& piece : pieces(tensor)) {
      bytes += (flat(tensor).quantized ? piece.parameter->shape.numel() : piece.elements.numel) *
               kFloatBytes;
    }
  }
  return bytes;
}

void TrainingState::initialize(std::uint64_t seed, Stream& stream) {
  begin_work(work_, HostTask::kInitialize, bytes_to_initialize());
  clear(stream);
  quantize_parameters(
      [&](const ParameterSpec& spec, std::span<float> values) {
        const TensorView view(values.data(), DType::kFloat32,
                              Shape{static_cast<std::int64_t>(values.size())});
        const Initializer& init = spec.initializer;
        if (init.kind == Initializer::Kind::kConstant) {
          std::ranges::fill(values, init.mean);
          return;
        }
        require(init.kind == Initializer::Kind::kNormal, ErrorCode::kInvalidArgument, "'",
                spec.name, "' is quantised, and begins as uniform numbers");
        cpu_kernels().fill_normal({.dst = view,
                                   .mean = init.mean,
                                   .stddev = init.spread,
                                   .key = {seed, stream_of(spec.name)}},
                                  stream);
      },
      stream);
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
  quantize_parameters(
      [&](const ParameterSpec& spec, std::span<float> to) {
        const std::span<const float> values = values_of(spec.name);
        require(values.size() == to.size(), ErrorCode::kInvalidArgument, "parameter '", spec.name,
                "' has ", to.size(), " elements, but ", values.size(), " were given");
        std::ranges::copy(values, to.begin());
      },
      stream);
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
    if (tensor.role == Role::kOptimizer || flat(tensor).quantized) continue;
    if (tensor.tier == Tier::kDisk) {
      produce_on_disk(tensor, produce, stream);
      continue;
    }
    for (const StatePiece& piece : pieces(tensor)) {
      for (std::int64_t e = 0; e < piece.elements.numel; e += most) {
        const std::int64_t count = std::min(most, piece.elements.numel - e);
        const TensorView values = chunk.view(0, count);
        produce(*piece.parameter, {piece.elements.begin + e, count}, values);
        kernels_.cast({.src = values, .dst = piece.view.narrow(0, e, count)}, stream);
        advance_work(work_, HostTask::kInitialize, count * kFloatBytes);
      }
    }
  }
  stream.synchronize();  // the chunk dies here
}

/// Produces a tensor on disk: blocks of a file are written whole.
void TrainingState::produce_on_disk(const StateTensor& tensor, const ProduceChunk& produce,
                                    Stream& stream) {
  const std::int64_t most = chunk_numel(device_);
  DeviceArray<float> chunk(device_, most);
  std::vector<float> all(static_cast<std::size_t>(tensor.range.numel));
  for (const StatePiece& piece : pieces(tensor)) {
    for (std::int64_t e = 0; e < piece.elements.numel; e += most) {
      const std::int64_t count = std::min(most, piece.elements.numel - e);
      produce(*piece.parameter, {piece.elements.begin + e, count}, chunk.view(0, count));
      chunk.download(stream);
      stream.synchronize();
      std::copy_n(chunk.host(), count, all.begin() + (piece.first + e - tensor.range.begin));
      advance_work(work_, HostTask::kInitialize, count * kFloatBytes);
    }
  }
  write_to_disk(tensor, tensor.range.begin, all, stream);
}

/// Elements from `first` on, in the tensor's format.
void TrainingState::write_to_disk(const StateTensor& tensor, std::int64_t first,
                                  std::span<const float> values, Stream& stream) {
  const std::int64_t width = static_cast<std::int64_t>(size_of(tensor.format));
  const std::int64_t offset = (first - tensor.range.begin) * width;
  if (tensor.format == DType::kFloat32) {
    return disk_->write(tensor.extent, std::as_bytes(values), offset);
  }
  const Shape shape{static_cast<std::int64_t>(values.size())};
  std::vector<std::byte> bytes(values.size_bytes() / sizeof(float) *
                               static_cast<std::size_t>(width));
  const TensorView from(const_cast<float*>(values.data()), DType::kFloat32, shape);  // NOLINT: read
  cpu_kernels().cast({.src = from, .dst = {bytes.data(), tensor.format, shape}}, stream);
  disk_->write(tensor.extent, bytes, offset);
}

void TrainingState::read_from_disk(const StateTensor& tensor, std::int64_t first,
                                   std::span<float> values, Stream& stream) const {
  const std::int64_t width = static_cast<std::int64_t>(size_of(tensor.format));
  const std::int64_t offset = (first - tensor.range.begin) * width;
  if (tensor.format == DType::kFloat32) {
    return disk_->read(tensor.extent, std::as_writable_bytes(values), offset);
  }
  const Shape shape{static_cast<std::int64_t>(values.size())};
  std::vector<std::byte> bytes(values.size() * static_cast<std::size_t>(width));
  disk_->read(tensor.extent, bytes, offset);
  cpu_kernels().cast(
      {.src = {bytes.data(), tensor.format, shape}, .dst = {values.data(), DType::kFloat32, shape}},
      stream);
}

}  // namespace tessera
