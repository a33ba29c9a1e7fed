#pragma once

#include <cstdint>
#include <vector>

#include "collective_call.h"

namespace tessera {

/// Numbers a rank's calls: those of all ranks, and those to and from each peer. Both ends of a call
/// arrive at the same number.
class CallNumbers {
 public:
  explicit CallNumbers(int size)
      : sends_(static_cast<std::size_t>(size)), recvs_(static_cast<std::size_t>(size)) {}

  std::uint64_t next(const CollectiveCall& call) {
    const auto peer = static_cast<std::size_t>(call.peer);
    if (call.kind == CollectiveKind::kSend) return sends_[peer]++;
    if (call.kind == CollectiveKind::kRecv) return recvs_[peer]++;
    return collectives_++;
  }

 private:
  std::uint64_t collectives_ = 0;
  std::vector<std::uint64_t> sends_, recvs_;
};

/// A process group to which every operation is a CollectiveCall: what backends that treat all kinds
/// alike derive from. Calls are checked before they are issued, and counted after. `Interface` is
/// ProcessGroup or derives from it.
template <typename Interface = ProcessGroup>
class CallGroup : public Interface {
 public:
  void all_gather(TensorView input, TensorView output, Stream& stream) final {
    start({.kind = CollectiveKind::kAllGather, .input = input, .output = output}, stream);
  }
  void reduce_scatter(TensorView input, TensorView output, bool accumulate, Stream& stream) final {
    start({.kind = CollectiveKind::kReduceScatter,
           .input = input,
           .output = output,
           .accumulate = accumulate},
          stream);
  }
  void all_reduce(TensorView data, Stream& stream) final {
    start({.kind = CollectiveKind::kAllReduce, .input = data}, stream);
  }
  void broadcast(TensorView data, int root, Stream& stream) final {
    start({.kind = CollectiveKind::kBroadcast, .input = data, .peer = root}, stream);
  }
  void all_to_all(TensorView input, TensorView output, Stream& stream) final {
    start({.kind = CollectiveKind::kAllToAll, .input = input, .output = output}, stream);
  }
  void send(TensorView data, int destination, Stream& stream) final {
    start({.kind = CollectiveKind::kSend, .input = data, .peer = destination}, stream);
  }
  void recv(TensorView data, int source, Stream& stream) final {
    start({.kind = CollectiveKind::kRecv, .input = data, .peer = source}, stream);
  }
  void barrier(Stream& stream) final { start({.kind = CollectiveKind::kBarrier}, stream); }

  Traffic traffic() const override { return traffic_; }

 protected:
  /// Puts a call that fits this group on the stream. Returns the bytes that it will copy in and out
  /// around the collective, as far as they are known by now.
  virtual std::int64_t issue(const CollectiveCall& call, Stream& stream) = 0;

 private:
  void start(const CollectiveCall& call, Stream& stream) {
    check_call(call, this->rank(), this->size());
    traffic_.copied_bytes += issue(call, stream);
    count_call(call, this->size(), traffic_);
  }

  Traffic traffic_;
};

}  // namespace tessera
