#include "bench/collective_bench.h"

#include <algorithm>
#include <array>

#include "tessera/core/error.h"

namespace tessera::bench {
namespace {

double one(int /*n*/) { return 1.0; }
double crossing(int n) { return static_cast<double>(n - 1) / n; }
double twice_crossing(int n) { return 2.0 * crossing(n); }

void copy_view(const TensorView& to, const TensorView& from, Stream& stream) {
  if (from.bytes() > 0) stream.copy(to.data, from.data, static_cast<std::size_t>(from.bytes()));
}

void all_gather(ProcessGroup& group, const CollectiveOperands& o, Stream& stream) {
  group.all_gather(o.input, o.output, stream);
}

void reduce_scatter(ProcessGroup& group, const CollectiveOperands& o, Stream& stream) {
  group.reduce_scatter(o.input, o.output, /*accumulate=*/false, stream);
}

void all_reduce(ProcessGroup& group, const CollectiveOperands& o, Stream& stream) {
  if (o.output.data != o.input.data) copy_view(o.output, o.input, stream);
  group.all_reduce(o.output, stream);
}

void broadcast(ProcessGroup& group, const CollectiveOperands& o, Stream& stream) {
  if (o.output.data != o.input.data && group.rank() == o.root) {
    copy_view(o.output, o.input, stream);
  }
  group.broadcast(o.output, o.root, stream);
}

/// The input, or a copy of it where the output will overwrite it.
TensorView input_apart(const CollectiveOperands& o, Stream& stream) {
  if (o.output.data != o.input.data) return o.input;
  copy_view(o.staging, o.input, stream);
  return o.staging;
}

void all_to_all(ProcessGroup& group, const CollectiveOperands& o, Stream& stream) {
  group.all_to_all(input_apart(o, stream), o.output, stream);
}

int previous_of(int rank, int n) { return (rank + n - 1) % n; }

/// Even ranks send first, so that a ring needs one stream and one group only.
void sendrecv(ProcessGroup& group, const CollectiveOperands& o, Stream& stream) {
  const int n = group.size();
  const TensorView input = input_apart(o, stream);
  if (n == 1) return copy_view(o.output, input, stream);
  const int next = (group.rank() + 1) % n;
  const bool sends_first = group.rank() % 2 == 0;
  if (sends_first) group.send(input, next, stream);
  group.recv(o.output, previous_of(group.rank(), n), stream);
  if (!sends_first) group.send(input, next, stream);
}

void barrier(ProcessGroup& group, const CollectiveOperands& /*operands*/, Stream& stream) {
  group.barrier(stream);
}

double sum_over_ranks(int n, std::int64_t i) {
  double sum = 0.0;
  for (int rank = 0; rank < n; ++rank) sum += input_value(rank, i);
  return sum;
}

const std::array<CollectiveCase, 7>& table() {
  static const std::array<CollectiveCase, 7> kCases{{
      {.name = "all_gather",
       .parted = true,
       .input_is_part = true,
       .busbw_factor = crossing,
       .reads = [](int n, bool in_place) { return in_place ? crossing(n) : 1.0; },
       .issue = all_gather,
       .expected =
           [](int, int, int, std::int64_t part, std::int64_t i) {
             return input_value(static_cast<int>(i / part), i % part);
           }},
      {.name = "reduce_scatter",
       .sums = true,
       .parted = true,
       .output_is_part = true,
       .busbw_factor = crossing,
       .reads = [](int, bool) { return 1.0; },
       .issue = reduce_scatter,
       .expected = [](int rank, int n, int, std::int64_t part,
                      std::int64_t i) { return sum_over_ranks(n, rank * part + i); }},
      {.name = "all_reduce",
       .sums = true,
       .busbw_factor = twice_crossing,
       .reads = [](int n, bool in_place) { return 1.0 + crossing(n) + (in_place ? 0.0 : 1.0); },
       .issue = all_reduce,
       .expected = [](int, int n, int, std::int64_t,
                      std::int64_t i) { return sum_over_ranks(n, i); }},
      {.name = "broadcast",
       .rooted = true,
       .busbw_factor = one,
       .reads = [](int, bool) { return 1.0; },
       .issue = broadcast,
       .expected = [](int, int, int root, std::int64_t,
                      std::int64_t i) { return input_value(root, i); }},
      {.name = "all_to_all",
       .parted = true,
       .busbw_factor = crossing,
       .reads = [](int, bool in_place) { return in_place ? 2.0 : 1.0; },
       .issue = all_to_all,
       .expected =
           [](int rank, int, int, std::int64_t part, std::int64_t i) {
             return input_value(static_cast<int>(i / part), rank * part + i % part);
           }},
      {.name = "sendrecv",
       .busbw_factor = one,
       .reads = [](int, bool in_place) { return in_place ? 2.0 : 1.0; },
       .issue = sendrecv,
       .expected = [](int rank, int n, int, std::int64_t,
                      std::int64_t i) { return input_value(previous_of(rank, n), i); }},
      {.name = "barrier",
       .has_data = false,
       .busbw_factor = one,
       .reads = [](int, bool) { return 0.0; },
       .issue = barrier,
       .expected = [](int, int, int, std::int64_t, std::int64_t) { return 0.0; }},
  }};
  return kCases;
}

}  // namespace

std::span<const CollectiveCase> collective_cases() { return table(); }

const CollectiveCase& find_collective(std::string_view name) {
  std::string wanted(name);
  std::replace(wanted.begin(), wanted.end(), '-', '_');
  std::string all;
  for (const CollectiveCase& collective : collective_cases()) {
    if (collective.name == wanted) return collective;
    all += concat(all.empty() ? "" : ", ", collective.name);
  }
  fail(ErrorCode::kConfig, "there is no collective '", name, "'; there are: ", all,
       ", and all of them: all");
}

bool takes(const CollectiveCase& collective, DType dtype) {
  if (!collective.sums || is_compute_dtype(dtype)) return true;
  return collective.name == "all_reduce" && (dtype == DType::kFloat64 || dtype == DType::kInt64);
}

}  // namespace tessera::bench
