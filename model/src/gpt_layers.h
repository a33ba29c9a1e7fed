#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tessera/autograd/layer.h"
#include "tessera/model/gpt.h"

// What the layers of a GPT share, and its blocks.
namespace tessera::gpt {

inline constexpr float kInitialStddev = 0.02F;

ParameterSpec matrix(std::string name, std::int64_t outputs, std::int64_t inputs, float stddev);
/// Without weight decay.
ParameterSpec vector(std::string name, std::int64_t size, float value);

/// Throws Error{kInvalidArgument} unless there are as many as the layer has, tied ones included.
void check_parameters(const Layer& layer, std::span<const Parameter> parameters);

/// Freezes what config.lora does not train, and checks that all that it trains can be trained.
void freeze(const GptConfig& config, std::vector<ParameterSpec>& parameters);

/// The adapters of a block's matrices. A block declares its own parameters, and these add theirs.
class BlockAdapters {
 public:
  BlockAdapters(const GptConfig& config, std::vector<ParameterSpec>& parameters);

  /// Adds to y = x weight^T what the adapters of `weight` add. `weight` is one of `parameters`, the
  /// block's.
  Value add(Tape& tape, Value y, const Value& x, const Parameter& weight,
            std::span<Parameter> parameters) const;
  /// Whether the parameter at this index has adapters.
  bool adapt(std::size_t parameter) const;

 private:
  struct Adapter {
    std::size_t weight = 0;  ///< index of the parameter
    std::size_t a = 0;       ///< index of A; B is behind it
    std::int64_t first_row = 0;
    float scale = 1.0F;
  };
  std::vector<Adapter> adapters_;
  float dropout_;
};

/// All layers of make_gpt().
std::vector<std::unique_ptr<Layer>> make_layers(const GptConfig& config);

/// Block `index` of a GPT-2, and of any other family.
std::unique_ptr<Layer> make_gpt2_block(const GptConfig& config, std::int64_t index);
std::unique_ptr<Layer> make_llama_block(const GptConfig& config, std::int64_t index);

}  // namespace tessera::gpt
