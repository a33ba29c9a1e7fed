#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tessera/kernels/kernel_table.h"
#include "tessera/sharding/executor.h"

namespace tessera {

/// A call of a kernel, by its shape; no memory is behind it.
struct KernelCall {
  std::string kernel;              ///< as KernelTable names it; with ", residual", ", erf", ...
  std::vector<std::int64_t> dims;  ///< of gemm: m, n, k; else of its main tensor
  DType dtype = DType::kFloat32;   ///< of its operands
  double flops = 0.0;  ///< of matrix products; 0: it is bound by memory. Attention: the causal half
  double bytes = 0.0;  ///< that it must move, each tensor once
  std::optional<GemmArgs> gemm{};
};

/// The name under which KernelRates has a call: "gemm nt" says which operands are transposed.
std::string rates_name(const KernelCall& call);
/// The sizes by which KernelRates looks up a call's rate: m, n, k of a GEMM; batch * heads, length,
/// head size of attention; rows and columns of kernels that go by rows; else the number of
/// elements.
std::vector<double> rates_size(const KernelCall& call);

/// The name under which StepTimes has a call: rates_name(), with what accompanies a GEMM:
/// "gemm nt, bias, gelu".
std::string step_name(const KernelCall& call);

/// The kernels that a CPU runs for a call: of a GEMM the product and, one after another, what
/// accompanies it.
std::vector<KernelCall> cpu_kernels_of(const KernelCall& call);

/// Bytes of what a GEMM's epilogue reads and writes beside its result; counted in
/// KernelCall::bytes.
double gemm_epilogue_bytes(const GemmArgs& args);

/// Told of each call of a kernel, which `run` makes; `call` describes it, whenever it is asked.
using KernelObserver = std::function<void(const std::function<KernelCall()>& call,
                                          const std::function<void()>& run, Stream& stream)>;
/// A table whose kernels of passes are handed to `observe`.
KernelTable observed_kernels(KernelTable table, KernelObserver observe);
/// The sim device's kernels; those of passes hand `take` each call.
KernelTable recording_kernels(std::function<void(KernelCall)> take);

/// The one kernel of an action that is no pass: it moves its operands once.
KernelCall call_of(const Schedule& schedule, const Action& action,
                   const OptimizerOptions& optimizer);

/// By action of the schedule: its kernels, as the device that `options` name would run it. Those of
/// passes are recorded. A norm, cast, copy or update is one that moves its operands once
/// (operand_bytes), of the dtype of the parameters, by the name of its operation or of its
/// optimizer; its dims are the bytes. Collectives have none.
std::vector<std::vector<KernelCall>> record_kernels(const Program& program,
                                                    const ModelLayout& layout, const Model& model,
                                                    const ExecutorOptions& options);

}  // namespace tessera
