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
/// alike derive from. Calls are checked before they are issued, and counted after.
class CallGroup : public ProcessGroup {
 public:
  void all_gather(TensorView input, TensorView output, Stream& stream) final;
  void reduce_scatter(TensorView input, TensorView output, bool accumulate, Stream& stream) final;
  void all_reduce(TensorView data, Stream& stream) final;
  void broadcast(TensorView data, int root, Stream& stream) final;
  void all_to_all(TensorView input, TensorView output, Stream& stream) final;
  void send(TensorView data, int destination, Stream& stream) final;
  void recv(TensorView data, int source, Stream& stream) final;
  void barrier(Stream& stream) final;

  Traffic traffic() const override { return traffic_; }

 protected:
  /// Puts a call that fits this group on the stream.
  virtual void issue(const CollectiveCall& call, Stream& stream) = 0;

  /// To add the bytes that only the backend knows of.
  Traffic& counted() { return traffic_; }

 private:
  void start(const CollectiveCall& call, Stream& stream);

  Traffic traffic_;
};

}  // namespace tessera
