#include "tessera/collectives/sim_group.h"

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "call_group.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

/// Why the group was taken down. Outlives the group: submitted tasks look at it.
struct AbortReason {
  std::mutex mutex;
  std::optional<std::string> text;
};

class SimGroup : public CallGroup<> {
 public:
  SimGroup(int rank, int size) : rank_(rank), size_(size) {
    require(size >= 1 && rank >= 0 && rank < size, ErrorCode::kInvalidArgument, "rank ", rank,
            " is outside of a simulated group of ", size);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  std::unique_ptr<ProcessGroup> split(int color, int key) override {
    fail(ErrorCode::kInvalidArgument, "split(", color, ", ", key,
         ") of a simulated group: only rank ", rank_, " of ", size_,
         " exists, so the colors of the others are unknown; call make_sim_group(rank, size) with "
         "the "
         "subgroup's numbers");
  }

  void abort(std::string_view reason) noexcept override {
    const std::lock_guard lock(aborted_->mutex);
    if (!aborted_->text) aborted_->text.emplace(reason);
  }

 private:
  std::int64_t issue(const CollectiveCall& call, Stream& stream) override {
    stream.submit({.name = to_string(call.kind)}, [aborted = aborted_, kind = call.kind] {
      const std::lock_guard lock(aborted->mutex);
      require(!aborted->text.has_value(), ErrorCode::kAborted, to_string(kind), ": ",
              aborted->text.value_or(""));
    });
    return 0;
  }

  const int rank_;
  const int size_;
  std::shared_ptr<AbortReason> aborted_ = std::make_shared<AbortReason>();
};

}  // namespace

std::unique_ptr<ProcessGroup> make_sim_group(int rank, int size) {
  return std::make_unique<SimGroup>(rank, size);
}

}  // namespace tessera
