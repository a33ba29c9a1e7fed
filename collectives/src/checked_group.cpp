#include "tessera/collectives/checked_group.h"

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "collective_call.h"
#include "tessera/collectives/nccl_group.h"
#include "tessera/core/cuda_device.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

/// The facts that ranks must agree on, as numbers that any group can carry.
struct Signature {
  std::int64_t kind = 0;
  std::int64_t input_dtype = 0;
  std::int64_t input_numel = 0;
  std::int64_t output_dtype = 0;
  std::int64_t output_numel = 0;
  std::int64_t root = 0;
  std::int64_t accumulate = 0;
  bool operator==(const Signature&) const = default;
};
constexpr std::int64_t kSignatureNumel = sizeof(Signature) / sizeof(std::int64_t);

Signature signature_of(const CollectiveCall& call) {
  return {.kind = static_cast<std::int64_t>(call.kind),
          .input_dtype = static_cast<std::int64_t>(call.input.dtype),
          .input_numel = call.input.numel(),
          .output_dtype = static_cast<std::int64_t>(call.output.dtype),
          .output_numel = call.output.numel(),
          .root = is_pairwise(call.kind) ? -1 : call.peer,
          .accumulate = call.accumulate ? 1 : 0};
}

/// A signature that both ends of a pair have, one of which sends while the other receives.
Signature without_direction(Signature s) {
  const auto recv = static_cast<std::int64_t>(CollectiveKind::kRecv);
  if (s.kind == recv) s.kind = static_cast<std::int64_t>(CollectiveKind::kSend);
  return s;
}

std::string describe(const Signature& s) {
  const auto kind = static_cast<CollectiveKind>(s.kind);
  std::string text = concat(to_string(kind), "(", s.input_numel, " ",
                            to_string(static_cast<DType>(s.input_dtype)));
  const bool has_output = kind == CollectiveKind::kAllGather ||
                          kind == CollectiveKind::kReduceScatter ||
                          kind == CollectiveKind::kAllToAll;
  if (has_output) {
    text += concat(" -> ", s.output_numel, " ", to_string(static_cast<DType>(s.output_dtype)));
  }
  if (s.root >= 0) text += concat(", root ", s.root);
  if (s.accumulate != 0) text += ", accumulate";
  return text + ")";
}

TensorView view_of(Signature* signatures, std::int64_t count) {
  return TensorView(signatures, DType::kInt64, Shape{count * kSignatureNumel});
}

void compare(const std::vector<Signature>& signatures, const std::vector<int>& ranks) {
  const bool same = std::ranges::all_of(signatures, [&](const Signature& signature) {
    return without_direction(signature) == without_direction(signatures[0]);
  });
  if (same) return;
  std::string text = "ranks disagree about an operation:";
  for (std::size_t i = 0; i < signatures.size(); ++i) {
    text += concat(i == 0 ? " " : "; ", "rank ", ranks[i], " issued ", describe(signatures[i]));
  }
  throw Error(ErrorCode::kInvalidArgument, text);
}

/// `Interface` is ProcessGroup or derives from it.
template <typename Interface = ProcessGroup>
class CheckedGroup : public Interface {
 public:
  explicit CheckedGroup(std::unique_ptr<Interface> group) : group_(std::move(group)) {
    for (int rank = 0; rank < group_->size(); ++rank) all_ranks_.push_back(rank);
  }

  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  void set_label(const std::string& label) override { group_->set_label(label); }

  void all_gather(TensorView input, TensorView output, Stream& stream) override {
    check({.kind = CollectiveKind::kAllGather, .input = input, .output = output}, stream);
    group_->all_gather(input, output, stream);
  }
  void reduce_scatter(TensorView input, TensorView output, bool accumulate,
                      Stream& stream) override {
    check({.kind = CollectiveKind::kReduceScatter,
           .input = input,
           .output = output,
           .accumulate = accumulate},
          stream);
    group_->reduce_scatter(input, output, accumulate, stream);
  }
  void all_reduce(TensorView data, Stream& stream) override {
    check({.kind = CollectiveKind::kAllReduce, .input = data}, stream);
    group_->all_reduce(data, stream);
  }
  void broadcast(TensorView data, int root, Stream& stream) override {
    check({.kind = CollectiveKind::kBroadcast, .input = data, .peer = root}, stream);
    group_->broadcast(data, root, stream);
  }
  void all_to_all(TensorView input, TensorView output, Stream& stream) override {
    check({.kind = CollectiveKind::kAllToAll, .input = input, .output = output}, stream);
    group_->all_to_all(input, output, stream);
  }
  void send(TensorView data, int destination, Stream& stream) override {
    check_pair({.kind = CollectiveKind::kSend, .input = data, .peer = destination}, stream);
    group_->send(data, destination, stream);
  }
  void recv(TensorView data, int source, Stream& stream) override {
    check_pair({.kind = CollectiveKind::kRecv, .input = data, .peer = source}, stream);
    group_->recv(data, source, stream);
  }
  void barrier(Stream& stream) override {
    check({.kind = CollectiveKind::kBarrier}, stream);
    group_->barrier(stream);
  }

  std::unique_ptr<ProcessGroup> split(int color, int key) override {
    return make_checked_group(group_->split(color, key));
  }
  void abort(std::string_view reason) noexcept override { group_->abort(reason); }
  Traffic traffic() const override {
    Traffic result = traffic_;
    result.copied_bytes = group_->traffic().copied_bytes;  // the wrapped group's to count
    return result;
  }

 protected:
  Interface& wrapped() { return *group_; }

 private:
  // [Note: checks before signatures] What this rank can see to be wrong by itself is thrown at the
  // call, as by the wrapped group, before peers are involved.

  void check(const CollectiveCall& call, Stream& stream) {
    check_call(call, rank(), size());
    count_call(call, size(), traffic_);
    if (auto* const cuda = dynamic_cast<CudaStream*>(&stream)) {
      check_on_gpu(
          std::vector<Signature>(all_ranks_.size(), signature_of(call)), all_ranks_, *cuda,
          [&](TensorView all) { group_->all_gather(part_of(all, rank(), size()), all, stream); });
      return;
    }
    // Last in the closure of the comparison, the signatures live as long as they are used.
    auto own = std::make_shared<Signature>(signature_of(call));
    auto all = std::make_shared<std::vector<Signature>>(all_ranks_.size());
    group_->all_gather(view_of(own.get(), 1), view_of(all->data(), size()), stream);
    stream.submit({.name = "check"}, [own, all, ranks = all_ranks_] { compare(*all, ranks); });
  }

  /// Only two ranks are involved. The sender speaks first on both ends, as a send waits for its
  /// recv.
  void check_pair(const CollectiveCall& call, Stream& stream) {
    check_call(call, rank(), size());
    count_call(call, size(), traffic_);
    const auto exchange = [&](TensorView both) {
      if (call.kind == CollectiveKind::kSend) group_->send(part_of(both, 0, 2), call.peer, stream);
      group_->recv(part_of(both, 1, 2), call.peer, stream);
      if (call.kind == CollectiveKind::kRecv) group_->send(part_of(both, 0, 2), call.peer, stream);
    };
    const std::vector<int> ranks{rank(), call.peer};
    if (auto* const cuda = dynamic_cast<CudaStream*>(&stream)) {
      return check_on_gpu(std::vector<Signature>(2, signature_of(call)), ranks, *cuda, exchange);
    }
    auto both = std::make_shared<std::vector<Signature>>(2, signature_of(call));
    exchange(view_of(both->data(), 2));
    stream.submit({.name = "check"}, [both, ranks] { compare(*both, ranks); });
  }

  /// Checks through device memory. The host waits: it cannot compare before signatures are there.
  static void check_on_gpu(std::vector<Signature> signatures, const std::vector<int>& ranks,
                           CudaStream& stream,
                           const std::function<void(TensorView signatures)>& communicate) {
    stream.submit({.name = "check"}, [&] {
      const std::size_t bytes = signatures.size() * sizeof(Signature);
      auto* const there = static_cast<Signature*>(stream.scratch(bytes));
      stream.copy(there, signatures.data(), bytes);
      communicate(view_of(there, static_cast<std::int64_t>(signatures.size())));
      stream.copy(signatures.data(), there, bytes);
      stream.synchronize();
      compare(signatures, ranks);
    });
  }

  const std::unique_ptr<Interface> group_;
  std::vector<int> all_ranks_;
  Traffic traffic_;
};

class CheckedNcclGroup : public CheckedGroup<NcclGroup> {
 public:
  using CheckedGroup::CheckedGroup;
  std::string register_buffer(void* address, std::size_t bytes) override {
    return wrapped().register_buffer(address, bytes);
  }
  void watch_replay(std::string_view what, std::chrono::milliseconds allowance, CudaStream& stream,
                    const std::function<void()>& launch) override {
    wrapped().watch_replay(what, allowance, stream, launch);
  }
};

}  // namespace

std::unique_ptr<ProcessGroup> make_checked_group(std::unique_ptr<ProcessGroup> group) {
  require(group != nullptr, ErrorCode::kInvalidArgument, "there is no group to check");
  if (auto* const nccl = dynamic_cast<NcclGroup*>(group.get())) {
    static_cast<void>(group.release());
    return std::make_unique<CheckedNcclGroup>(std::unique_ptr<NcclGroup>(nccl));
  }
  return std::make_unique<CheckedGroup<>>(std::move(group));
}

}  // namespace tessera
