#include "tessera/sharding/account.h"

#include <algorithm>
#include <map>
#include <string_view>

#include "tessera/sharding/operation.h"

namespace tessera {
namespace {

std::int64_t bytes_of(const ScheduleBuffer& buffer) {
  return buffer.numel * static_cast<std::int64_t>(size_of(buffer.format));
}

std::int64_t allocated(const ScheduleBuffer& buffer) { return allocation_bytes(bytes_of(buffer)); }

}  // namespace

MemoryCategory category_of(const ScheduleBuffer& buffer) {
  switch (buffer.role) {
    case Role::kParameter:
    case Role::kDecoded:
    case Role::kCode:
      return buffer.is_slot() ? MemoryCategory::kUnshardedParameters : MemoryCategory::kParameters;
    case Role::kScales:
      return MemoryCategory::kUnshardedParameters;
    case Role::kGradient:
      return buffer.is_slot() ? MemoryCategory::kUnshardedGradients : MemoryCategory::kGradients;
    case Role::kHistory:
    case Role::kMaxima:
    case Role::kStatistics:
    case Role::kMaster:
    case Role::kOptimizer:
      return MemoryCategory::kOptimizer;
    case Role::kActivation:
    case Role::kActivationGradient:
      return MemoryCategory::kActivations;
    case Role::kBatch:
      return MemoryCategory::kData;
    case Role::kScalars:
      break;
  }
  return MemoryCategory::kWorkspace;
}

Traffic account_traffic(const Schedule& schedule) {
  Traffic traffic;
  for (const Action& action : schedule.actions) {
    if (action.operation->charge != nullptr) action.operation->charge(schedule, action, traffic);
  }
  return traffic;
}

std::int64_t account_gradient_sums(const Schedule& schedule) {
  std::int64_t bytes = 0;
  for (const Action& action : schedule.actions) {
    if (action.operation == &operations::kCast) bytes += operand_bytes(schedule, action);
  }
  return bytes;
}

std::int64_t account_snapshot(const Schedule& schedule) {
  std::int64_t bytes = 0;
  for (const ScheduleBuffer& buffer : schedule.buffers) {
    if (buffer.kind == BufferKind::kSnapshot) bytes += bytes_of(buffer);
  }
  return bytes;
}

std::vector<DiskExtent> disk_extents(std::span<const ScheduleBuffer> buffers) {
  std::vector<DiskExtent> extents;
  for (const ScheduleBuffer& buffer : buffers) {
    if (buffer.tier == Tier::kDisk) extents.push_back({buffer.name, bytes_of(buffer)});
  }
  return extents;
}

std::int64_t account_disk(const Schedule& schedule) {
  const std::vector<DiskExtent> extents = disk_extents(schedule.buffers);
  return extents.empty() ? 0 : disk_store_bytes(extents);
}

MemoryUse account_memory(const Schedule& schedule, Tier tier) {
  const Schedule* const one = &schedule;
  return account_memory(std::span(&one, 1), tier);
}

MemoryUse account_memory(std::span<const Schedule* const> schedules, Tier tier) {
  MemoryUse use;
  std::map<std::string_view, std::int64_t> counted;  // by name: buffers that schedules share
  for (const Schedule* const schedule : schedules) {
    for (const ScheduleBuffer& buffer : schedule->buffers) {
      if (buffer.tier != tier || buffer.kind == BufferKind::kSnapshot) continue;
      if (buffer.role == Role::kScalars) continue;  // workspace, which the run shows
      const std::int64_t bytes = allocated(buffer);
      std::int64_t& known = counted[buffer.name];
      use[category_of(buffer)] += std::max<std::int64_t>(bytes - known, 0);
      known = std::max(known, bytes);
    }
  }
  return use;
}

}  // namespace tessera
