#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tessera/autograd/parameter.h"
#include "tessera/core/device.h"
#include "tessera/core/memory.h"
#include "tessera/model/gpt.h"

namespace tessera {

/// Reads from values by name, which must outlive the result. Throws Error{kNotFound} on a name that
/// is missing and Error{kInvalidArgument} on a wrong number of values.
ReadParameter read_from(const std::map<std::string, std::vector<float>>& values);

struct GptSamplerOptions {
  DType dtype = DType::kFloat32;  ///< compute precision, fp32, bf16 or fp16
  int threads = 1;
};

/// A GPT with its unsharded parameters on the host, for trying out what it has learned: gives
/// `generate` its logits. Every token runs the model over the context again; nothing is cached.
/// Used by one thread at a time.
class GptSampler {
 public:
  GptSampler(const GptConfig& config, const ReadParameter& read, GptSamplerOptions options = {});
  ~GptSampler();
  GptSampler(const GptSampler&) = delete;
  GptSampler& operator=(const GptSampler&) = delete;

  /// Logits (vocab_size) of the token after `context`; valid until the next call. Throws
  /// Error{kInvalidArgument} if the context is empty, longer than GptConfig::context_length or has
  /// a token outside of the vocabulary.
  std::span<const float> next_logits(std::span<const std::int32_t> context);

  /// The memory that parameters and activations take.
  const Memory& memory() const { return memory_; }

 private:
  void load(const ReadParameter& read);
  void check(std::span<const std::int32_t> context) const;

  GptConfig config_;
  GptSamplerOptions options_;
  Model model_;
  // In order of dependence: tensors die before the memory that they are from.
  std::unique_ptr<Device> device_;
  Memory memory_;
  std::unique_ptr<Stream> stream_;
  std::vector<Tensor> tensors_;
  std::vector<std::vector<Parameter>> parameters_;  ///< per layer, as its forward takes them
  std::vector<float> logits_;
};

}  // namespace tessera
