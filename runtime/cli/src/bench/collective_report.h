#pragma once

#include <iosfwd>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/collective_bench.h"

namespace tessera::bench {

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
