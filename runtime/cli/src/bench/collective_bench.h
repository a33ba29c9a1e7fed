#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/collectives/process_group.h"
#include "tessera/core/device.h"
#include "tessera/core/tensor.h"

namespace tessera::bench {

/// Where an operation finds its data on one rank. In place, `input` and `output` overlap as
/// nccl-tests has them: one is this rank's part of the other, or they are the same.
struct CollectiveOperands {
  TensorView input{}, output{};
  TensorView staging{};  ///< as large as `input`, and apart from both
  int root = 0;          ///< of a rooted operation
};

/// A collective as nccl-tests counts it. `numel` below is that of the whole buffer: n parts where
/// the operation has parts.
struct CollectiveCase {
  std::string_view name;          ///< "all_gather"
  bool sums = false;              ///< the column redop is "sum"
  bool rooted = false;            ///< the column root is the root
  bool parted = false;            ///< the column count is that of one rank's part
  bool has_data = true;           ///< false: a barrier
  bool input_is_part = false;     ///< else the input is whole
  bool output_is_part = false;    ///< else the output is whole
  double (*busbw_factor)(int n);  ///< busbw / algbw
  /// Bytes that a rank reads for each byte of the whole buffer, copies of ours included.
  double (*reads)(int n, bool in_place);
  /// Every rank of the group calls it. Where the library has no such form, it copies: all_reduce
  /// and broadcast work in place, all_to_all and sendrecv do not.
  void (*issue)(ProcessGroup& group, const CollectiveOperands& operands, Stream& stream);
  /// Element `i` of the output of `rank`; `part` is the elements of one part.
  double (*expected)(int rank, int n, int root, std::int64_t part, std::int64_t i);
};

/// Every collective of the library: all_gather, reduce_scatter, all_reduce, broadcast, all_to_all,
/// sendrecv (each rank to the next one) and barrier.
std::span<const CollectiveCase> collective_cases();

/// Throws Error{kConfig}, which names those that there are. Hyphens count as underscores.
const CollectiveCase& find_collective(std::string_view name);

/// Element `i` of the input of `rank`: a small whole number, so that sums of them are exact.
inline double input_value(int rank, std::int64_t i) {
  return static_cast<double>((i % 61 + rank * 7) % 32);
}

/// Whether the library's collective takes the dtype.
bool takes(const CollectiveCase& collective, DType dtype);

/// How each collective and size is measured, in the words of nccl-tests.
struct CollectiveOptions {
  std::int64_t min_bytes = std::int64_t{64} << 10;
  std::int64_t max_bytes = std::int64_t{64} << 20;
  std::int64_t step_bytes = 0;  ///< above 0: from one size to the next, instead of the factor
  int step_factor = 4;
  int iterations = 20;    ///< calls of a timing
  int warm_ups = 5;       ///< calls before the first timing of a size
  int repeats = 5;        ///< timings, in turns out of place, in place and as a memcpy
  bool check = true;      ///< compare every element with what it must be
  bool blocking = false;  ///< the time is the mean of calls that start together, not of a pipeline
  int root = 0;
  int unalign = 0;  ///< elements by which buffers begin behind an aligned address
  DType dtype = DType::kFloat32;
  int threads = 1;  ///< of a rank
  /// Hold a CPU rank of one thread to a core, where there are enough: left alone, the system now
  /// and then puts two ranks that wait for each other on one core.
  bool bind_threads = false;
  bool contended = false;  ///< measure once more beside GEMMs
};

/// A collective beside GEMMs of the same rank, and they beside it.
struct ContendedTimes {
  double seconds = 0.0;              ///< of a call
  double collective_slowdown = 0.0;  ///< over the same pipeline without GEMMs
  double gemm_slowdown = 0.0;        ///< of the slowest rank's, over GEMMs without the collective
};

/// Times of one call, each the longest of all ranks.
struct PlaceTimes {
  double seconds = 0.0;         ///< mean
  std::vector<double> repeats;  ///< of each timing, the mean of its calls in a pipeline
  std::vector<double> calls;    ///< each from a common start to its end on the slowest rank
  std::int64_t wrong = 0;       ///< elements, over all ranks
  double copy_seconds = 0.0;    ///< of a memcpy by all ranks of what the call reads; 0: reads none
  std::optional<ContendedTimes> contended{};

  /// The collective's share of memcpy's speed; 0 if it copies nothing.
  double fraction() const;
};

/// A line of the table.
struct CollectiveRow {
  const CollectiveCase* collective = nullptr;
  int ranks = 1;           ///< of the group
  std::int64_t bytes = 0;  ///< of the whole buffer
  std::int64_t count = 0;  ///< elements, as nccl-tests counts them
  DType dtype = DType::kFloat32;
  int root = -1;
  PlaceTimes out_of_place{}, in_place{};

  double algbw(const PlaceTimes& place) const;  ///< bytes per second
  double busbw(const PlaceTimes& place) const;
};

/// The groups of one rank: the collectives run over `group`, in all such groups at once; the start
/// of each timing and the exchange of times over `world`. They may be the same.
struct BenchGroups {
  ProcessGroup& world;
  ProcessGroup& group;
};

/// Measures a collective at each size of the options. Every rank of the world must call it, with
/// the same options; each gets the same rows. Throws Error{kConfig} if the collective does not take
/// the dtype or the root.
std::vector<CollectiveRow> measure_collective(
    const CollectiveCase& collective, const BenchGroups& groups, Device& device,
    const CollectiveOptions& options, const std::function<void(const CollectiveRow&)>& on_row = {});

/// The table of nccl-tests: each line that is no row of numbers begins with '#'. The columns are
/// size, count, type, redop and root, then time, algbw, busbw and #wrong, out of place and in
/// place. With `statistics`, as nccl-tests -I has them behind each group of four, min, p50 and p99
/// of single calls, their cv and the fraction of memcpy's speed.
class CollectiveTable {
 public:
  CollectiveTable(std::ostream& out, const CollectiveOptions& options, bool statistics)
      : out_(out), options_(options), statistics_(statistics) {}

  /// Names the collective and the group, "shard, 2 groups of 4 ranks", and the columns.
  void heading(const CollectiveCase& collective, const std::string& group);
  void row(const CollectiveRow& row);
  /// Wrong elements, the mean of busbw and of the fraction of memcpy's speed.
  void ending(const std::vector<CollectiveRow>& rows);

 private:
  std::ostream& out_;
  const CollectiveOptions& options_;
  bool statistics_;
};

/// Wrong elements of all rows.
std::int64_t wrong_elements(const std::vector<CollectiveRow>& rows);
/// Throws Error{kInternal}, with which the program fails, if an element of any row is wrong.
void require_right(const std::vector<CollectiveRow>& rows);

/// Mean of busbw over rows with data, both places, in GB/s; 0 if there are none.
double average_busbw(const std::vector<CollectiveRow>& rows);

/// A row as nccl-tests -J has it, and beside it the group, quantiles of single calls, the mean of
/// each timing ("repetitions"), the fraction of memcpy's speed and the times beside GEMMs. Times
/// in microseconds, bandwidths in GB/s.
nlohmann::ordered_json to_json(const CollectiveRow& row, const std::string& group,
                               const CollectiveOptions& options);

/// A dtype's name in nccl-tests: "float", "half", "bfloat16", "double", "int32", "int64", "uint8".
std::string nccl_type(DType dtype);
/// Inverse of nccl_type; takes our own names as well. Throws Error{kConfig}.
DType parse_nccl_type(const std::string& name);

}  // namespace tessera::bench
