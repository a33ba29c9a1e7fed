#include "collective_call.h"

#include <algorithm>
#include <functional>
#include <initializer_list>

#include "tessera/core/error.h"

namespace tessera {
namespace {

void check_contiguous(const CollectiveCall& call) {
  for (const TensorView* view : {&call.input, &call.output}) {
    if (view->is_contiguous()) continue;
    fail(ErrorCode::kInvalidArgument, to_string(call.kind), ": a buffer of shape ", view->shape,
         " is not contiguous");
  }
}

void check_dtype(const CollectiveCall& call, const TensorView& view,
                 std::initializer_list<DType> allowed) {
  for (DType dtype : allowed) {
    if (view.dtype == dtype) return;
  }
  fail(ErrorCode::kInvalidArgument, to_string(call.kind), " cannot sum ", to_string(view.dtype));
}

void check_same_dtype(const CollectiveCall& call) {
  require(call.input.dtype == call.output.dtype, ErrorCode::kInvalidArgument, to_string(call.kind),
          ": input is ", to_string(call.input.dtype), " but output is ",
          to_string(call.output.dtype));
}

void check_parts(const CollectiveCall& call, const TensorView& whole, const char* whole_name,
                 const TensorView& part, const char* part_name, int size) {
  require(whole.numel() == part.numel() * size, ErrorCode::kInvalidArgument, to_string(call.kind),
          " over ", size, " ranks: ", whole_name, " has ", whole.numel(), " elements, expected ",
          part.numel() * size, " = ", size, " x the ", part.numel(), " of ", part_name);
}

bool overlap(const TensorView& a, const TensorView& b) {
  if (a.bytes() == 0 || b.bytes() == 0) return false;
  const std::less<const std::byte*> before;
  return before(a.data, b.data + b.bytes()) && before(b.data, a.data + a.bytes());
}

/// `part` must lie outside of `whole`, or be exactly this rank's part of it.
void check_in_place(const CollectiveCall& call, const TensorView& whole, const TensorView& part,
                    int rank, int size) {
  if (!overlap(whole, part)) return;
  const bool own_part = whole.dtype == part.dtype && part.data == part_of(whole, rank, size).data;
  require(own_part, ErrorCode::kInvalidArgument, to_string(call.kind),
          ": input and output overlap but the small one is not part ", rank, " of the large one");
  require(!call.accumulate, ErrorCode::kInvalidArgument, to_string(call.kind),
          ": accumulating in place would count rank ", rank, " twice");
}

void check_peer(const CollectiveCall& call, int size) {
  require(call.peer >= 0 && call.peer < size, ErrorCode::kInvalidArgument, to_string(call.kind),
          ": rank ", call.peer, " is outside of a group of ", size);
}

}  // namespace

void check_call(const CollectiveCall& call, int rank, int size) {
  check_contiguous(call);
  switch (call.kind) {
    case CollectiveKind::kAllGather:
      check_same_dtype(call);
      check_parts(call, call.output, "output", call.input, "input", size);
      check_in_place(call, call.output, call.input, rank, size);
      break;
    case CollectiveKind::kReduceScatter:
      check_dtype(call, call.input, {DType::kFloat32, DType::kBFloat16, DType::kFloat16});
      check_dtype(call, call.output, {DType::kFloat32, DType::kBFloat16, DType::kFloat16});
      check_parts(call, call.input, "input", call.output, "output", size);
      check_in_place(call, call.input, call.output, rank, size);
      break;
    case CollectiveKind::kAllReduce:
      check_dtype(
          call, call.input,
          {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kFloat64, DType::kInt64});
      break;
    case CollectiveKind::kAllToAll:
      check_same_dtype(call);
      require(call.input.numel() == call.output.numel() && call.input.numel() % size == 0,
              ErrorCode::kInvalidArgument, "all_to_all: input has ", call.input.numel(),
              " elements and output ", call.output.numel(),
              "; both must be the same multiple of the group size ", size);
      require(!overlap(call.input, call.output), ErrorCode::kInvalidArgument,
              "all_to_all: input and output overlap");
      break;
    case CollectiveKind::kBroadcast:
      check_peer(call, size);
      break;
    case CollectiveKind::kSend:
    case CollectiveKind::kRecv:
      check_peer(call, size);
      require(call.peer != rank, ErrorCode::kInvalidArgument, to_string(call.kind), ": rank ", rank,
              " cannot exchange with itself");
      break;
    case CollectiveKind::kBarrier:
      break;
  }
}

CallSummary summary_of(const CollectiveCall& call) {
  return {.kind = static_cast<std::int32_t>(call.kind),
          .peer = is_pairwise(call.kind) ? -1 : call.peer,
          .numel = call.input.numel(),
          .dtype = static_cast<std::int32_t>(call.input.dtype),
          .on_gpu = call.gpu >= 0 ? 1 : 0};
}

bool fits(const CallSummary& a, const CallSummary& b) {
  CallSummary wanted = a;
  const auto kind = static_cast<CollectiveKind>(a.kind);
  if (kind == CollectiveKind::kSend) wanted.kind = static_cast<int>(CollectiveKind::kRecv);
  if (kind == CollectiveKind::kRecv) wanted.kind = static_cast<int>(CollectiveKind::kSend);
  return wanted == b;
}

std::string describe(const CallSummary& summary) {
  const auto kind = static_cast<CollectiveKind>(summary.kind);
  if (kind == CollectiveKind::kBarrier) return "barrier";
  return concat(to_string(kind), " of ", summary.numel, " ",
                to_string(static_cast<DType>(summary.dtype)),
                kind == CollectiveKind::kBroadcast ? concat(" from rank ", summary.peer) : "",
                summary.on_gpu != 0 ? " on a GPU" : "");
}

void count_call(const CollectiveCall& call, int size, Traffic& traffic) {
  traffic.calls_of(call.kind) += 1;
  traffic.sent_of(call.kind) += sent_bytes(call.kind, call.buffer_bytes(), size);
}

TensorView chunk_of(const TensorView& data, int rank, int size) {
  constexpr std::int64_t kAlign = 64;
  const std::int64_t blocks = (data.numel() + kAlign - 1) / kAlign;
  const std::int64_t begin = std::min(blocks * rank / size * kAlign, data.numel());
  const std::int64_t end = std::min(blocks * (rank + 1) / size * kAlign, data.numel());
  return data.flat().narrow(0, begin, end - begin);
}

std::string list_ranks(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(ranks[i]);
  }
  return text;
}

}  // namespace tessera
