#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bench/kernel_lab.h"

namespace tessera::bench {

/// A kernel with its operands, ready to be called again and again.
struct PreparedKernel {
  std::function<void(Stream&)> call;
  double bytes = 0.0;             ///< that it must read and write, each operand once
  double flops = 0.0;             ///< of one that GEMMs bound; 0: memory bounds it
  DType dtype = DType::kFloat32;  ///< of a GEMM's operands
  double written = 0.0;           ///< of `bytes`, where most are: then stores bound it
};

/// A kernel of the table with operands of one size and type. The name begins with the kernel's name
/// in KernelTable and '/': "gelu_forward/bf16".
struct KernelCase {
  std::string name;
  std::function<PreparedKernel(KernelLab&)> prepare;
};

/// Every kernel of the table, forward and backward, in fp32, bf16 and fp16, at the sizes of GPT-2
/// 124M with 1024 tokens; GEMMs are those of a step of one block and the head.
std::vector<KernelCase> kernel_cases();

}  // namespace tessera::bench
