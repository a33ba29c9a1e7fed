#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tessera/kernels/kernel_table.h"
#include "tessera/sharding/executor.h"

namespace tessera {

/// A call of a kernel that passes through layers make, by its shape; no memory is behind it.
struct KernelCall {
  std::string kernel;              ///< as KernelTable names it; with ", residual" if it adds one
  std::vector<std::int64_t> dims;  ///< of gemm: m, n, k; else of its main tensor
  DType dtype = DType::kFloat32;   ///< of its operands
  double flops = 0.0;  ///< of matrix products; 0: it is bound by memory. Attention: the causal half
  double bytes = 0.0;  ///< that it must move, each tensor once
  std::optional<GemmArgs> gemm{};
};

/// Bytes of what a GEMM's epilogue reads and writes beside its result; counted in
/// KernelCall::bytes.
double gemm_epilogue_bytes(const GemmArgs& args);

/// While it lives, recording_kernels() on this thread append to a list.
class KernelRecording {
 public:
  explicit KernelRecording(std::vector<KernelCall>& calls);
  ~KernelRecording();
  KernelRecording(const KernelRecording&) = delete;
  KernelRecording& operator=(const KernelRecording&) = delete;
};

/// The sim device's kernels, which note what they are called for.
KernelTable recording_kernels();

/// By action of the schedule: the kernels of its pass through a layer, as the device that `options`
/// name would run it. Norms, casts and updates have none here: they move their operands once
/// (operand_bytes).
std::vector<std::vector<KernelCall>> record_kernels(const Program& program,
                                                    const ModelLayout& layout, const Model& model,
                                                    const ExecutorOptions& options);

}  // namespace tessera
