#include "cpu/attention_blocks.h"
#include "tessera/kernels/kernel_table.h"

namespace tessera {

std::int64_t attention_workspace_bytes(std::int64_t batch, std::int64_t length, std::int64_t heads,
                                       std::int64_t head_dim, DType dtype, int threads) {
  if (batch * length * heads * head_dim == 0) return 0;
  return threads * cpu::attention_scratch_bytes(length, head_dim, dtype);
}

}  // namespace tessera
