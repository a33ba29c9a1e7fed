#pragma once

#include <cstdint>

#include "bench/collective_case.h"
#include "tessera/core/device.h"
#include "tessera/core/memory.h"
#include "tessera/core/tensor.h"

namespace tessera::bench {

/// One rank's buffers, as large as the largest size: what collectives read, write and are checked
/// on.
class CollectiveBuffers {
 public:
  /// `numel` elements each, which begin `unalign` elements behind an aligned address.
  CollectiveBuffers(Device& device, Stream& stream, std::int64_t numel, int unalign, DType dtype);
  ~CollectiveBuffers();
  CollectiveBuffers(const CollectiveBuffers&) = delete;
  CollectiveBuffers& operator=(const CollectiveBuffers&) = delete;

  /// Operands of a collective whose whole buffer has `numel` elements.
  CollectiveOperands operands(const CollectiveCase& collective, const ProcessGroup& group,
                              std::int64_t numel, bool in_place, int root) const;

  /// Fills the input with this rank's values, and the rest of the output with what is wrong.
  void fill(const CollectiveOperands& operands, int rank);
  /// Elements of the output that are not what they must be. Waits for the stream.
  std::int64_t count_wrong(const CollectiveCase& collective, const CollectiveOperands& operands,
                           int rank, int n);

  /// Copies `bytes` as a memcpy of `threads` does, or on a GPU within its memory, in pieces as
  /// long as `numel` elements.
  void copy(std::int64_t bytes, std::int64_t numel, int threads);

 private:
  void to_device(const TensorView& view);
  void from_device(const TensorView& view);

  Device& device_;
  Stream& stream_;
  Memory memory_;
  const int unalign_;
  Tensor first_, second_;  // with `unalign` more elements
  std::byte* host_ = nullptr;
  std::size_t host_bytes_ = 0;
};

}  // namespace tessera::bench
