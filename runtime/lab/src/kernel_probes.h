#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tessera/core/memory.h"
#include "tessera/core/tensor.h"
#include "tessera/kernels/kernel_table.h"
#include "tessera/lab/kernel_calls.h"

namespace tessera {

/// Tensors for kernels to be timed with: views of one rank's memory that goes round.
class ProbeOperands {
 public:
  /// `stream` is of the memory's device.
  ProbeOperands(Memory& memory, Stream& stream);

  /// The memory goes round in a short ring again, however large the last probe's operands were:
  /// small operands stay in a core's caches.
  void begin_probe();

  TensorView input(Shape shape, DType dtype);   ///< normal numbers; to be read only
  TensorView tokens(Shape shape);               ///< int32 zeros; to be read only
  TensorView output(Shape shape, DType dtype);  ///< to be written first
  /// Zeros, to be updated.
  TensorView state(Shape shape, DType dtype = DType::kFloat32);
  /// Zeros at first; scalars that a kernel reads or adds to.
  TensorView scalars(Shape shape, DType dtype);

 private:
  struct Ring {
    Tensor bytes{};
    std::int64_t window = 0;  ///< bytes of it in use
    std::int64_t next = 0;
  };
  TensorView take(Ring& ring, Shape shape, DType dtype, float deviation);

  Memory& memory_;
  Stream& stream_;
  std::vector<Tensor> outgrown_;
  Ring fp32_, bf16_, fp16_, outputs_, states_, tokens_, scalars_;
};

/// A kernel at one size. `run` calls it once.
struct KernelProbe {
  KernelCall call;
  std::function<void(const KernelTable& kernels, ProbeOperands& operands, Stream& stream)> run;
};

/// Every kernel of a training step but GEMMs, for a dtype, at some sizes, of which every
/// `coarseness`-th is taken. `threads` of a rank; 0: for a GPU.
std::vector<KernelProbe> step_kernel_probes(DType dtype, int threads, int coarseness);
/// GEMMs as a linear layer's forward (nt), and backward for its input (nn) and weight (tn), for a
/// dtype and a grid of sizes.
std::vector<KernelProbe> gemm_probes(DType dtype, int coarseness);

}  // namespace tessera
