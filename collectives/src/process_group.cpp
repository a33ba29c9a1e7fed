#include "tessera/collectives/process_group.h"

#include "tessera/core/error.h"

namespace tessera {

std::string_view to_string(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllGather:
      return "all_gather";
    case CollectiveKind::kReduceScatter:
      return "reduce_scatter";
    case CollectiveKind::kAllReduce:
      return "all_reduce";
    case CollectiveKind::kBroadcast:
      return "broadcast";
    case CollectiveKind::kAllToAll:
      return "all_to_all";
    case CollectiveKind::kSend:
      return "send";
    case CollectiveKind::kRecv:
      return "recv";
    case CollectiveKind::kBarrier:
      return "barrier";
  }
  return "unknown";
}

std::int64_t sent_bytes(CollectiveKind kind, std::int64_t bytes, int world_size) {
  require(world_size >= 1, ErrorCode::kInvalidArgument, "a world size of ", world_size,
          " is not positive");
  const std::int64_t peers = world_size - 1;
  switch (kind) {
    case CollectiveKind::kAllGather:
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kAllToAll:
      return bytes * peers / world_size;
    case CollectiveKind::kAllReduce:
      return 2 * bytes * peers / world_size;
    case CollectiveKind::kSend:
      return bytes;
    case CollectiveKind::kRecv:
    case CollectiveKind::kBarrier:
      return 0;
  }
  fail(ErrorCode::kInternal, "unknown collective ", static_cast<int>(kind));
}

Traffic& Traffic::operator+=(const Traffic& other) {
  for (std::size_t i = 0; i < calls.size(); ++i) {
    calls[i] += other.calls[i];
    sent_bytes[i] += other.sent_bytes[i];
  }
  copied_bytes += other.copied_bytes;
  to_host_bytes += other.to_host_bytes;
  to_device_bytes += other.to_device_bytes;
  to_disk_bytes += other.to_disk_bytes;
  from_disk_bytes += other.from_disk_bytes;
  return *this;
}

}  // namespace tessera
