#include "tessera/collectives/sim_group.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "call_group.h"
#include "sim_communicator.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

void check_rank(int rank, int size) {
  require(size >= 1 && rank >= 0 && rank < size, ErrorCode::kInvalidArgument, "rank ", rank,
          " is outside of a simulated group of ", size);
}

class SimGroup : public CallGroup<> {
 public:
  /// `communicator`: null if the rank meets nobody.
  SimGroup(int rank, int size, std::shared_ptr<AbortReason> aborted,
           std::shared_ptr<SimCommunicator> communicator)
      : rank_(rank),
        size_(size),
        aborted_(std::move(aborted)),
        communicator_(std::move(communicator)) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  std::unique_ptr<ProcessGroup> split(int color, int key) override {
    fail(ErrorCode::kInvalidArgument, "split(", color, ", ", key,
         ") of a simulated group: only rank ", rank_, " of ", size_,
         " takes part, so the colors of the others are unknown; call make_sim_group(rank, size) "
         "with the subgroup's numbers");
  }

  void abort(std::string_view reason) noexcept override { aborted_->set(reason); }

 private:
  std::int64_t issue(const CollectiveCall& call, Stream& stream) override {
    if (communicator_ != nullptr && !aborted_->get()) communicator_->meet(rank_, call, stream);
    // After the meeting, so that a span that goes on with it lasts until then.
    stream.submit({.name = to_string(call.kind)}, [aborted = aborted_, kind = call.kind] {
      if (const auto reason = aborted->get()) {
        fail(ErrorCode::kAborted, to_string(kind), ": ", *reason);
      }
    });
    return 0;
  }

  const int rank_;
  const int size_;
  const std::shared_ptr<AbortReason> aborted_;
  const std::shared_ptr<SimCommunicator> communicator_;
};

}  // namespace

std::unique_ptr<ProcessGroup> make_sim_group(int rank, int size) {
  check_rank(rank, size);
  return std::make_unique<SimGroup>(rank, size, std::make_shared<AbortReason>(), nullptr);
}

std::unique_ptr<ProcessGroup> make_sim_group(int rank, int size, SimMeetings& meetings,
                                             std::string name, int present) {
  check_rank(rank, size);
  require(present >= 1 && present <= size, ErrorCode::kInvalidArgument, "communicator '", name,
          "' of ", size, " ranks cannot have ", present, " simulated ones");
  SimMeetings::Family& family = *meetings.family_;
  return std::make_unique<SimGroup>(rank, size, family.aborted(),
                                    family.join(name, rank, size, present));
}

}  // namespace tessera
