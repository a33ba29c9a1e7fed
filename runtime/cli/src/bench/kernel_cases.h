#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tessera/core/device.h"
#include "tessera/core/tensor.h"
#include "tessera/kernels/kernel_table.h"

namespace tessera::bench {

/// The sizes of kernels' operands; by default those of GPT-2 124M with 1024 tokens.
struct KernelSizes {
  std::int64_t batch = 1, length = 1024, channels = 768, heads = 12;
  std::int64_t loss_rows = 256;                ///< the head runs in chunks
  std::int64_t shard = std::int64_t{8} << 20;  ///< elements of a flat shard
  std::int64_t tokens() const { return batch * length; }
};

/// Bytes of the views that are there.
double bytes_of(std::initializer_list<TensorView> views);

/// A device on which kernels are timed: its operands, its clock and its limits.
class KernelLab {
 public:
  /// `threads`: of kernels on a CPU.
  KernelLab(std::unique_ptr<Device> device, int threads, const KernelSizes& sizes = {});
  KernelLab(const KernelLab&) = delete;
  KernelLab& operator=(const KernelLab&) = delete;

  bool on_gpu() const { return device_->kind() == DeviceKind::kCuda; }
  int threads() const { return threads_; }
  const KernelSizes& sizes() const { return sizes_; }
  const KernelTable& kernels() const { return kernels_; }
  Stream& stream() { return *stream_; }
  Memory& memory() { return memory_; }

  Tensor empty(const Shape& shape, DType dtype);
  /// Normal numbers, fp32, bf16 or fp16.
  Tensor random(const Shape& shape, DType dtype, float stddev = 1.0F);
  Tensor constant(const Shape& shape, DType dtype, float value);
  /// int32 below `limit`, in no order that a cache could use.
  Tensor tokens(const Shape& shape, std::int32_t limit);
  /// int64 that are all `value`.
  Tensor integers(std::int64_t numel, std::int64_t value);
  /// (sequences, length) int32: where the document of each token begins.
  Tensor document_starts(const std::vector<std::vector<std::int64_t>>& documents);

  /// Seconds of `calls` of `kernel` that follow each other on the device's stream.
  double seconds(const std::function<void(Stream&)>& kernel, int calls);

  /// Bytes per second, reads and writes together, at which the device moves memory where as many
  /// are touched as `bytes`: on a CPU the fastest of STREAM's triad, a memcpy and an update in
  /// place, with all threads; on a GPU a copy. Measured once for each power of two. If `written` of
  /// the bytes are written, on a CPU no more than they allow at the rate of stores alone: DRAM
  /// often takes writes at half the rate of reads.
  double memory_limit(double bytes, double written = 0.0);
  /// Floating-point operations per second of a large square GEMM with operands of `dtype`. Measured
  /// once.
  double gemm_limit(DType dtype);

 private:
  template <typename T, typename Value>
  Tensor filled(const Shape& shape, DType dtype, const Value& value);
  double best_seconds(const std::function<void(Stream&)>& work);
  double measured_memory_limit(std::int64_t bytes);
  double measured_store_limit(std::int64_t bytes);

  const std::unique_ptr<Device> device_;
  const int threads_;
  const KernelSizes sizes_;
  const KernelTable& kernels_;
  Memory memory_;
  const std::unique_ptr<Stream> stream_;
  std::uint64_t fillings_ = 0;
  std::map<int, double> memory_limits_, store_limits_;  // by the power of two
  std::map<DType, double> gemm_limits_;
};

/// Lengths of the documents that fill each of `sequences`: 200 to 1000 tokens, but for the last one
/// of a sequence, which is cut. bench/gpu/compare_attention.py has the same.
std::vector<std::vector<std::int64_t>> packed_documents(std::int64_t sequences,
                                                        std::int64_t length);

inline constexpr std::int64_t kVocabulary = 50257, kVocabularyStride = 50304;

/// A kernel with its operands, ready to be called again and again.
struct PreparedKernel {
  std::function<void(Stream&)> call;
  double bytes = 0.0;             ///< that it must read and write, each operand once
  double flops = 0.0;             ///< of one that GEMMs bound; 0: memory bounds it
  DType dtype = DType::kFloat32;  ///< of a GEMM's operands
  double written = 0.0;           ///< of `bytes`, where most are: then stores bound it
};

/// A kernel of the table with operands of a lab's sizes and one type. The name begins with the
/// kernel's name in KernelTable and '/': "gelu_forward/bf16".
struct KernelCase {
  std::string name;
  std::function<PreparedKernel(KernelLab&)> prepare;
};

/// Every kernel of the table, forward and backward, in fp32, bf16 and fp16; GEMMs are those of a
/// step of GPT-2 124M's block and head. All programs that time kernels have them from here.
std::vector<KernelCase> kernel_cases();
/// The one of this name.
KernelCase kernel_case(const std::string& name);

/// The GEMMs of a step of GPT-2 124M's block and head over `tokens` tokens, as the step asks for
/// them, with what it wants along with the product: "gemm/forward/bf16/768->2304" is that of a
/// linear layer x (T, 768) -> y (T, 2304).
std::vector<KernelCase> gemm_cases(std::int64_t tokens, DType dtype);

}  // namespace tessera::bench
