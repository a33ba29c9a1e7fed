#include "execution/parameter_export.h"

#include <algorithm>
#include <deque>

#include "tessera/core/cpu_device.h"
#include "tessera/kernels/kernel_table.h"

namespace tessera {

/// Sends what a pipeline rank has put together to all others.
void ParameterExport::share_flat(const FlatId& id, const TensorView& whole) {
  if (schedule_.pipeline_ranks() == 1) return;
  const int owner = schedule_.units[static_cast<std::size_t>(id.unit)].rank;
  const ShardNesting& nesting = state_.nesting();
  const int first = owner * (schedule_.mesh.world_size() / schedule_.pipeline_ranks());
  groups_.control()->broadcast(whole, nesting.index(nesting.all_axes(), first), stream_);
}

/// An unsharded flat parameter in fp32, put together from the finest shards of all ranks; `whole`
/// has room for it, and holds it afterwards.
std::span<const float> ParameterExport::gather_flat(const FlatId& id, DeviceArray<float>& whole) {
  const std::int64_t numel = layout_.flat_of({id.unit, id.flat}).padded_numel;
  if (has_unit(id.unit)) gather_own_flat(id, numel, whole);
  share_flat(id, whole.view(0, numel));
  whole.download_first(numel, stream_);
  stream_.synchronize();
  return {whole.host(), static_cast<std::size_t>(numel)};
}

void ParameterExport::gather_own_flat(const FlatId& id, std::int64_t numel,
                                      DeviceArray<float>& whole) {
  const ShardNesting& nesting = state_.nesting();
  const StateTensor* const master = state_.find(Role::kMaster, id);
  const StateTensor& tensor = master != nullptr ? *master : *state_.find(Role::kParameter, id);
  const Range finest = nesting.range(numel, nesting.state_axes(), state_.rank());
  const TensorView mine = tensor.view.narrow(0, finest.begin - tensor.range.begin, finest.numel);
  ProcessGroup* const ranks = groups_.state();
  const std::int64_t first = ranks != nullptr ? ranks->rank() * mine.numel() : 0;
  const TensorView shard = whole.view(first, mine.numel());
  if (tensor.tier != Tier::kDisk) {
    stream_.submit({.name = "export"},
                   [&] { kernels_.cast({.src = mine, .dst = shard}, stream_); });
  } else {
    state_.read(tensor.name, finest.begin,
                {whole.host() + first, static_cast<std::size_t>(mine.numel())}, stream_);
    whole.upload_first(numel, stream_);
  }
  if (ranks != nullptr) ranks->all_gather(shard, whole.view(0, numel), stream_);
  stream_.synchronize();  // the task refers to what is here
}

/// Gathers a quantised flat parameter, in bytes.
std::vector<std::byte> ParameterExport::gather_quantized(const FlatId& id) {
  const std::int64_t bytes = layout_.flat_of({id.unit, id.flat}).padded_numel;
  DeviceArray<std::uint8_t> whole(device_, bytes);
  if (has_unit(id.unit)) gather_own_bytes(id, whole);
  share_flat(id, whole.view());
  whole.download(stream_);
  stream_.synchronize();
  const auto from = std::as_bytes(std::span(whole.host(), static_cast<std::size_t>(bytes)));
  return {from.begin(), from.end()};
}

void ParameterExport::gather_own_bytes(const FlatId& id, DeviceArray<std::uint8_t>& whole) {
  const ShardNesting& nesting = state_.nesting();
  const StateTensor& tensor = *state_.find(Role::kParameter, id);
  const Range finest = nesting.range(whole.numel(), nesting.state_axes(), state_.rank());
  const std::int64_t offset = finest.begin - tensor.range.begin;
  const TensorView mine = tensor.view.narrow(0, offset, finest.numel);
  ProcessGroup* const ranks = groups_.state();
  const std::int64_t first = ranks != nullptr ? ranks->rank() * mine.numel() : 0;
  const TensorView shard = whole.view(first, mine.numel());
  if (tensor.tier != Tier::kDisk) {
    stream_.copy(shard.data, mine.data, static_cast<std::size_t>(mine.bytes()));
  } else {
    const std::span own(whole.host() + first, static_cast<std::size_t>(finest.numel));
    state_.disk()->read(tensor.extent, std::as_writable_bytes(own), offset);
    whole.upload(stream_);
  }
  if (ranks != nullptr) ranks->all_gather(shard, whole.view(), stream_);
}

std::vector<float> ParameterExport::decoded(const FlatTensor& tensor,
                                            std::span<const std::byte> flat) {
  std::vector<float> values(static_cast<std::size_t>(tensor.spec.shape.numel()));
  auto* const from = const_cast<std::byte*>(flat.data()) + tensor.offset;
  cpu_kernels().dequantize({.format = tensor.spec.format,
                            .src = TensorView(from, DType::kUInt8, Shape{tensor.numel()}),
                            .dst = TensorView(values.data(), DType::kFloat32, tensor.spec.shape),
                            .joined = tensor.spec.joined},
                           stream_);
  return values;
}

/// Layers are in order of declaration, and so are units: each unit's layers follow one another.
void ParameterExport::run(const std::function<void(FullParameter)>& receive) {
  std::vector<std::int64_t>
      largest;  // by index in a unit: elements of those that are not quantised
  for (const Unit& unit : layout_.units) {
    largest.resize(std::max(largest.size(), unit.flats.size()), 1);
    for (std::size_t f = 0; f < unit.flats.size(); ++f) {
      if (!unit.flats[f].quantized) largest[f] = std::max(largest[f], unit.flats[f].padded_numel);
    }
  }
  std::deque<DeviceArray<float>> whole;
  for (const std::int64_t numel : largest) whole.emplace_back(device_, numel);
  int gathered = -1;
  std::vector<std::span<const float>> values(largest.size());
  std::vector<std::vector<std::byte>> bytes(largest.size());
  for (std::size_t l = 0; l < layout_.layers.size(); ++l) {
    for (std::size_t p = 0; p < model_.layers[l]->parameters().size(); ++p) {
      const ParameterAddress& a = layout_.layers[l].parameters[p];
      const Unit& unit = layout_.units[static_cast<std::size_t>(a.unit)];
      for (std::size_t f = 0; a.unit != gathered && f < unit.flats.size(); ++f) {
        const FlatId id{a.unit, static_cast<int>(f)};
        if (unit.flats[f].quantized) {
          bytes[f] = gather_quantized(id);
        } else {
          values[f] = gather_flat(id, whole[f]);
        }
      }
      gathered = a.unit;
      if (!receive) continue;
      const FlatTensor& tensor = layout_.tensor_of(a);
      const auto flat = static_cast<std::size_t>(a.flat);
      if (tensor.is_quantized()) {
        receive({tensor.spec.name, tensor.spec.shape, decoded(tensor, bytes[flat])});
        continue;
      }
      const auto first = values[flat].begin() + tensor.offset;
      receive({tensor.spec.name, tensor.spec.shape,
               std::vector<float>(first, first + tensor.spec.shape.numel())});
    }
  }
}

}  // namespace tessera
