#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "tessera/collectives/process_group.h"
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

}  // namespace tessera::bench
