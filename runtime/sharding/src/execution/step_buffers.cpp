#include "execution/step_buffers.h"

#include <algorithm>

#include "tessera/core/error.h"
#include "tessera/sharding/account.h"
#include "tessera/sharding/operation.h"

namespace tessera {
namespace {

bool is_pooled(const ScheduleBuffer& buffer) {
  return !buffer.persistent && buffer.role != Role::kScalars && buffer.role != Role::kBatch &&
         !buffer.is_activation() && buffer.kind != BufferKind::kSnapshot;
}

}  // namespace

BufferPool::BufferPool(std::span<const Schedule* const> schedules, Memory& memory, Stream& stream) {
  std::map<std::string, const ScheduleBuffer*> largest;
  for (const Schedule* const schedule : schedules) {
    for (const ScheduleBuffer& buffer : schedule->buffers) {
      if (!is_pooled(buffer)) continue;
      const ScheduleBuffer*& known = largest[buffer.name];
      require(known == nullptr || known->format == buffer.format, ErrorCode::kInvalidArgument,
              "two schedules have a buffer '", buffer.name, "' of different formats");
      if (known == nullptr || known->numel < buffer.numel) known = &buffer;
    }
  }
  for (const auto& [name, buffer] : largest) {
    Tensor tensor = Tensor::empty(memory, Shape{buffer->numel}, buffer->format,
                                  category_of(*buffer), name, buffer->tier);
    const bool is_words = buffer->format == DType::kInt32 || buffer->format == DType::kInt64;
    const bool has_padding = !buffer->is_slot() && !is_words;
    if (has_padding) kernels_for(memory.device()).fill({.dst = tensor}, stream);
    buffers_.emplace(name, std::move(tensor));
  }
}

SnapshotBuffers::SnapshotBuffers(const Schedule& schedule, Device& device)
    : device_(device),
      bytes_(static_cast<std::size_t>(account_snapshot(schedule))),
      memory_(device.allocate_host(bytes_)) {
  auto* next = static_cast<std::byte*>(memory_);
  for (const ScheduleBuffer& buffer : schedule.buffers) {
    if (buffer.kind != BufferKind::kSnapshot) continue;
    const TensorView view(next, buffer.format, Shape{buffer.numel});
    views_.emplace(schedule.state_of(buffer).name, view);
    next += view.bytes();
  }
}

SnapshotBuffers::~SnapshotBuffers() { device_.deallocate_host(memory_, bytes_); }

void StepBuffers::take(const SnapshotBuffers& snapshot) {
  for (std::size_t b = 0; b < schedule_.buffers.size(); ++b) {
    const ScheduleBuffer& buffer = schedule_.buffers[b];
    if (buffer.kind != BufferKind::kSnapshot) continue;
    bases_[b] = snapshot.at(schedule_.state_of(buffer).name);
  }
}

StepBuffers::StepBuffers(const Schedule& schedule, const TrainingState& state,
                         const BufferPool& pool)
    : schedule_(schedule),
      nesting_(schedule.mesh, schedule.placement),
      rank_(state.rank()),
      bases_(schedule.buffers.size()),
      disk_(state.disk()),
      extents_(schedule.buffers.size()) {
  require(schedule.mesh == state.options().mesh, ErrorCode::kInvalidArgument,
          "the schedule was planned for another state, on a mesh of ", to_string(schedule.mesh),
          "; this one is on ", to_string(state.options().mesh));
  std::size_t persistent = 0;
  for (std::size_t b = 0; b < schedule.buffers.size(); ++b) {
    const ScheduleBuffer& buffer = schedule.buffers[b];
    if (is_pooled(buffer)) bases_[b] = pool.at(buffer.name);
    if (!buffer.persistent) continue;
    const StateTensor& tensor = state.at(buffer.name);
    require(tensor.tier == buffer.tier, ErrorCode::kInvalidArgument,
            "the schedule was planned for another state: '", buffer.name, "' is on the ",
            to_string(buffer.tier), " there, and here on the ", to_string(tensor.tier));
    require(tensor.format == buffer.format && tensor.block == buffer.block &&
                tensor.sharded == buffer.sharded && tensor.unit == buffer.unit &&
                tensor.flat == buffer.flat && tensor.view.numel() == buffer.numel,
            ErrorCode::kInvalidArgument, "the schedule was planned for another state: '",
            buffer.name, "' has ", buffer.numel, " elements in ", format_of(buffer),
            " there, and here ", tensor.view.numel(), " in ", to_string(tensor.format));
    require(state.nesting().order(tensor.sharded) == nesting_.order(buffer.sharded),
            ErrorCode::kInvalidArgument, "the schedule was planned for another state: it shards '",
            buffer.name, "' along the same axes in another order");
    bases_[b] = tensor.view;
    extents_[b] = tensor.extent;
    ++persistent;
  }
  const auto tensors = static_cast<std::size_t>(state.end() - state.begin());
  require(persistent == tensors, ErrorCode::kInvalidArgument,
          "the schedule was planned for another state, of ", persistent, " tensors; this one has ",
          tensors);
}

TensorView StepBuffers::view(const Operand& operand) const {
  if (operand.unit < 0) return whole(operand.buffer);
  return view(operand, schedule_.flats(operand).front());
}

std::int64_t StepBuffers::first_element(const Operand& operand) const {
  return nesting_.range(schedule_.numel(operand), operand.sharded, rank_).begin;
}

DiskPlace StepBuffers::disk_place(const Operand& operand) const {
  const ScheduleBuffer& buffer = schedule_.buffer(operand);
  const std::int64_t origin = nesting_.range(schedule_.numel(operand), buffer.sharded, rank_).begin;
  return {.store = disk_,
          .extent = extents_[static_cast<std::size_t>(operand.buffer)],
          .offset = (first_element(operand) - origin) *
                    static_cast<std::int64_t>(size_of(buffer.format))};
}

TensorView StepBuffers::view(const Operand& operand, int flat) const {
  const ScheduleBuffer& buffer = schedule_.buffer(operand);
  const std::int64_t numel = schedule_.numel_in(buffer, schedule_.flat(operand.unit, flat));
  const Range range = nesting_.range(numel, operand.sharded, rank_);
  const TensorView base = whole(operand.buffer);
  if (buffer.is_slot() && !buffer.keeps_places()) {
    std::int64_t first = 0;  // behind those before it
    for (const int other : flats_of(schedule_, operand)) {
      if (other == flat) break;
      first += schedule_.numel_in(buffer, schedule_.flat(operand.unit, other));
    }
    return base.narrow(0, first / schedule_.mesh.size(operand.sharded), range.numel);
  }
  const std::int64_t origin = nesting_.range(numel, buffer.sharded, rank_).begin;
  return base.narrow(0, range.begin - origin, range.numel);
}

}  // namespace tessera
