#include "tessera/collectives/world.h"

#include <utility>

#include "tessera/collectives/checked_group.h"
#include "tessera/core/cpu_device.h"
#include "tessera/core/error.h"
#include "world/world_core.h"
#include "world/world_group.h"

namespace tessera {
namespace {

/// A CPU device that allocates where the other processes of this machine can read.
class SharedDevice : public Device {
 public:
  explicit SharedDevice(std::shared_ptr<WorldCore> core) : core_(std::move(core)) {}

  DeviceKind kind() const override { return DeviceKind::kCpu; }
  void* allocate(std::size_t bytes) override { return core_->arena().allocate(bytes); }
  void deallocate(void* address, std::size_t bytes) noexcept override {
    core_->arena().deallocate(address, bytes);
  }
  bool host_accessible() const override { return true; }
  void* allocate_host(std::size_t bytes) override { return allocate(bytes); }
  void deallocate_host(void* address, std::size_t bytes) noexcept override {
    deallocate(address, bytes);
  }
  std::unique_ptr<Stream> create_stream(StreamOptions options) override {
    return cpu_->create_stream(std::move(options));
  }

 private:
  const std::shared_ptr<WorldCore> core_;
  const std::unique_ptr<Device> cpu_ = make_cpu_device();
};

class ProcessWorld : public World {
 public:
  ProcessWorld(std::unique_ptr<Messenger> messenger, const WorldOptions& options)
      : core_(std::make_shared<WorldCore>(std::move(messenger), options)) {
    std::vector<int> ranks;
    for (int rank = 0; rank < core_->size(); ++rank) ranks.push_back(rank);
    const SharedBuffer shared = share_root_state();
    for (int i = 0; i < options.local_ranks; ++i) {
      auto group = make_world_group(
          std::make_shared<WorldGroupState>(core_, 0, ranks, first_rank() + i, shared));
      groups_.push_back(options.check ? make_checked_group(std::move(group)) : std::move(group));
    }
  }

  ~ProcessWorld() override { core_->abort_if_unwinding(); }

  int size() const override { return core_->size(); }
  int process() const override { return core_->process(); }
  int processes() const override { return core_->processes(); }
  int first_rank() const override { return core_->process() * local_ranks(); }
  int local_ranks() const override { return core_->options().local_ranks; }
  int ranks_on_host() const override { return core_->ranks_on_host(); }
  int first_local_rank() const override { return core_->first_local_rank(); }
  int machine_of(int rank) const override { return core_->machine_of(rank); }
  const std::vector<std::unique_ptr<ProcessGroup>>& groups() const override { return groups_; }
  std::unique_ptr<Device> make_device() override { return std::make_unique<SharedDevice>(core_); }
  std::string failure() const override { return core_->reason(); }

 private:
  /// Each machine's first process makes the memory of the group of all ranks.
  SharedBuffer share_root_state() {
    const int maker = core_->first_process_on_host();
    std::size_t offset = 0;
    if (core_->process() == maker) {
      const auto size = static_cast<std::size_t>(core_->size());
      SharedArena& arena = core_->arena();
      offset = arena.offset_of(arena.allocate_for_good(WorldGroupState::shared_bytes(size)));
    }
    const std::vector<std::string> offsets = core_->messenger().exchange(std::to_string(offset));
    return {.process = maker, .offset = std::stoull(offsets[static_cast<std::size_t>(maker)])};
  }

  const std::shared_ptr<WorldCore> core_;
  std::vector<std::unique_ptr<ProcessGroup>> groups_;
};

}  // namespace

std::unique_ptr<World> make_world(std::unique_ptr<Messenger> messenger,
                                  const WorldOptions& options) {
  return std::make_unique<ProcessWorld>(std::move(messenger), options);
}

}  // namespace tessera
