#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bench/kernel_lab.h"

namespace tessera::bench {

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

}  // namespace tessera::bench
