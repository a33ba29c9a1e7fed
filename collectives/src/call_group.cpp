#include "call_group.h"

namespace tessera {

void CallGroup::start(const CollectiveCall& call, Stream& stream) {
  check_call(call, rank(), size());
  issue(call, stream);
  count_call(call, size(), traffic_);
}

void CallGroup::all_gather(TensorView input, TensorView output, Stream& stream) {
  start({.kind = CollectiveKind::kAllGather, .input = input, .output = output}, stream);
}

void CallGroup::reduce_scatter(TensorView input, TensorView output, bool accumulate,
                               Stream& stream) {
  start({.kind = CollectiveKind::kReduceScatter,
         .input = input,
         .output = output,
         .accumulate = accumulate},
        stream);
}

void CallGroup::all_reduce(TensorView data, Stream& stream) {
  start({.kind = CollectiveKind::kAllReduce, .input = data}, stream);
}

void CallGroup::broadcast(TensorView data, int root, Stream& stream) {
  start({.kind = CollectiveKind::kBroadcast, .input = data, .peer = root}, stream);
}

void CallGroup::all_to_all(TensorView input, TensorView output, Stream& stream) {
  start({.kind = CollectiveKind::kAllToAll, .input = input, .output = output}, stream);
}

void CallGroup::send(TensorView data, int destination, Stream& stream) {
  start({.kind = CollectiveKind::kSend, .input = data, .peer = destination}, stream);
}

void CallGroup::recv(TensorView data, int source, Stream& stream) {
  start({.kind = CollectiveKind::kRecv, .input = data, .peer = source}, stream);
}

void CallGroup::barrier(Stream& stream) { start({.kind = CollectiveKind::kBarrier}, stream); }

}  // namespace tessera
