#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <string>

#include "tessera/core/cuda_device.h"
#include "tessera/core/dtype.h"

// Options of the CUDA kernels, per stream, and the memory that they take: pure
// functions, so that a plan made without a GPU knows it.
namespace tessera {

struct GemmTable;  // gemm_table.h

enum class AttentionBackend : std::uint8_t {
  kAuto,   ///< cuDNN for the shapes of training that it takes, else our own kernels
  kOwn,    ///< our own kernels, for every shape
  kCudnn,  ///< cuDNN, or Error{kUnavailable} that says why not
};

struct CudaKernelOptions {
  AttentionBackend attention = AttentionBackend::kAuto;
  /// Equal bits on every run. cuDNN's attention backward then needs 2 B H L^2 bytes of scratch
  /// (otherwise 4 B H L D, and it adds in no fixed order).
  bool deterministic = true;
  /// kAuto leaves the backward pass to our own kernels where cuDNN would need more scratch.
  std::int64_t attention_scratch_limit = std::int64_t{1} << 30;
  /// Thread blocks of an optimizer's step that run at once, so that others find multiprocessors
  /// free; 0: as many as there is work for.
  int optimizer_blocks = 0;
  /// Linear layers multiply codes of fp8, as tensor cores do from compute capability 8.9 on; false:
  /// codes are decoded and multiplied in bf16.
  bool fp8_gemms = true;
  /// GemmArgs::fast_accumulation of forward passes in fp8.
  bool fp8_fast_accumulation = false;
  /// How to run GEMMs; null: as cuBLASLt's heuristic says. Error{kConfig} if it was made on another
  /// GPU or version of cuBLASLt.
  std::shared_ptr<const GemmTable> gemm_table{};
};

/// One pass of attention over qkv (B, L, 3, H, D).
struct CudaAttentionCall {
  std::int64_t batch = 0, length = 0, heads = 0, head_dim = 0;
  DType dtype = DType::kBFloat16;
  bool backward = false;
  std::int64_t window = 0;  ///< 0: none
  bool documents = false;   ///< several in a sequence
  bool causal = true;
  bool soft_cap = false;  ///< of the scores

  auto operator<=>(const CudaAttentionCall&) const = default;
};

/// Why cuDNN is not asked to run `call`, in one sentence; empty if it is. `options.attention` is
/// not kOwn.
std::string cudnn_objection(const CudaAttentionCall& call, const CudaKernelOptions& options);

/// The scratch that `call` takes, whoever runs it: AttentionForwardArgs::workspace and
/// AttentionBackwardArgs::workspace. Scratch that a call is not given, it takes from its stream.
std::int64_t cuda_attention_workspace_bytes(const CudaAttentionCall& call,
                                            const CudaKernelOptions& options);

/// The workspace that cuBLASLt may choose its algorithms for: as NVIDIA advises for Hopper, whose
/// split-K sums need most.
inline constexpr std::int64_t kCudaGemmWorkspaceBytes = std::int64_t{64} << 20;
/// The scratch that a training stream should be lent (CudaStream::lend_scratch): cuBLASLt's, and
/// behind it a bias gradient on its way into a sum. Partial sums of our own kernels fit, too.
inline constexpr std::int64_t kCudaScratchBytes = kCudaGemmWorkspaceBytes + (std::int64_t{1} << 20);

/// A stream's options and its state for attention, in CudaStream::Library::kAttention.
struct CudaAttention {
  CudaKernelOptions options{};
  /// Why the last call that asked for cuDNN ran on our own kernels, in one sentence; empty if it
  /// did not.
  std::string fallback{};
  /// The last such reason that cudnn_objection() does not give: no plan could tell it.
  std::string unforeseen{};
  std::shared_ptr<void> cudnn{};  ///< library handle and plans, made by the first use
};

inline CudaAttention& cuda_attention(CudaStream& stream) {
  std::shared_ptr<void>& slot = stream.library(CudaStream::Library::kAttention);
  if (!slot) slot = std::make_shared<CudaAttention>();
  return *static_cast<CudaAttention*>(slot.get());
}

/// For the kernels that are submitted from now on.
inline void set_cuda_kernel_options(CudaStream& stream, const CudaKernelOptions& options) {
  cuda_attention(stream).options = options;
}

}  // namespace tessera
