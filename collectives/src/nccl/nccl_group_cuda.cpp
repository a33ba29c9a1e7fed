#include "nccl/nccl_group_cuda.h"

#include <cstring>
#include <utility>

#include "call_group.h"
#include "nccl/nccl_comm_cuda.h"
#include "nccl/nccl_operation_cuda.h"

namespace tessera::cuda {
namespace {

class NcclGroupCuda : public CallGroup<NcclGroup> {
 public:
  /// `origin` has the same ranks, and is split instead of `comm` if it is not null.
  NcclGroupCuda(std::shared_ptr<NcclFamily> family, std::shared_ptr<NcclComm> origin,
                std::shared_ptr<NcclComm> comm, bool deterministic)
      : family_(std::move(family)),
        origin_(std::move(origin)),
        comm_(std::move(comm)),
        deterministic_(deterministic) {}
  ~NcclGroupCuda() override {
    family_->await(*comm_);
    if (origin_ != nullptr) family_->await(*origin_);
  }

  int rank() const override { return comm_->rank(); }
  int size() const override { return comm_->size(); }

  std::unique_ptr<ProcessGroup> split(int color, int key) override {
    require(color >= 0, ErrorCode::kInvalidArgument, "split(", color, ", ", key,
            "): NCCL takes colors from 0 on");
    NcclComm& whole = origin_ != nullptr ? *origin_ : *comm_;
    return std::make_unique<NcclGroupCuda>(family_, nullptr, whole.split(color, key),
                                           deterministic_);
  }
  void abort(std::string_view reason) noexcept override {
    family_->abort(ErrorCode::kAborted, reason);
  }
  std::string register_buffer(void* address, std::size_t bytes) override {
    return comm_->register_buffer(address, bytes);
  }
  void watch_replay(std::string_view what, std::chrono::milliseconds allowance, CudaStream& stream,
                    const std::function<void()>& launch) override {
    NcclFamily::Watch watch(*family_, stream);
    launch();
    watch.end(comm_, concat(what, " on rank ", rank(), " of ", size()), size(),
              family_->timeout() + allowance);
  }

 private:
  std::int64_t issue(const CollectiveCall& call, Stream& stream) override {
    auto* const cuda = dynamic_cast<CudaStream*>(&stream);
    require(cuda != nullptr && cuda->ordinal() == family_->gpu(), ErrorCode::kInvalidArgument,
            to_string(call.kind), " of an NCCL group needs a stream of its GPU ", family_->gpu());
    const OperationName name{
        .kind = call.kind, .sequence = sequence_++, .rank = rank(), .size = size()};
    stream.submit({.name = to_string(call.kind)}, [&] {
      NcclFamily::Watch watch(*family_, *cuda);
      NcclOperation(*comm_, name, call, deterministic_, *cuda).enqueue();
      watch.end(comm_, to_string(name), size(), family_->timeout());
    });
    return staged_bytes(call, size(), deterministic_);
  }

  const std::shared_ptr<NcclFamily> family_;  // dies after its communicators
  const std::shared_ptr<NcclComm> origin_, comm_;
  const bool deterministic_;
  std::uint64_t sequence_ = 0;
};

}  // namespace

NcclId make_nccl_id() {
  ncclUniqueId unique{};
  const ncclResult_t result = nccl().get_unique_id(&unique);
  require(result == ncclSuccess, ErrorCode::kUnavailable, "NCCL cannot start a group: '",
          nccl().get_error_string(result), "'; NCCL_DEBUG=WARN tells more");
  NcclId id;
  static_assert(sizeof unique == sizeof id);
  std::memcpy(id.bytes.data(), &unique, sizeof unique);
  return id;
}

NcclGroup* make_nccl_group(const NcclId& id, int rank, int size, const NcclGroupOptions& options) {
  ncclUniqueId unique{};
  std::memcpy(&unique, id.bytes.data(), sizeof unique);
  static_cast<void>(nccl());  // says at once if there is none
  auto family = std::make_shared<NcclFamily>(options);
  auto origin = NcclComm::make(*family, unique, rank, size);
  std::shared_ptr<NcclComm> comm;
  try {
    comm = origin->split(0, rank);
  } catch (...) {
    family->await(*origin);  // until it is aborted
    throw;
  }
  return new NcclGroupCuda(std::move(family), std::move(origin), std::move(comm),
                           options.deterministic);
}

}  // namespace tessera::cuda
