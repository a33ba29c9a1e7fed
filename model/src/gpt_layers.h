#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "adapter/adapter_modules.h"
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

/// A batch's tokens (B, L) int32 and, of packed samples, where the document of each begins.
struct TokenInputs {
  TensorView tokens, starts;
};
TokenInputs inputs_of(const Tape& tape);

/// Freezes what config.adapter does not train, and checks that all that it trains can be trained.
void freeze(const GptConfig& config, std::vector<ParameterSpec>& parameters);

/// The adapters of a block's matrices. A block declares its own parameters, and these add theirs.
class BlockAdapters {
 public:
  BlockAdapters(const GptConfig& config, std::vector<ParameterSpec>& parameters);

  /// x weight^T [+ bias] [+ residual] with what the adapters of `weight` do to it. `weight` is one
  /// of `parameters`, the block's.
  Value linear(Tape& tape, Value x, Parameter& weight, Parameter* bias,
               std::span<Parameter> parameters, const Value* residual = nullptr) const;
  /// Whether the parameter at this index has adapters.
  bool adapt(std::size_t parameter) const;

 private:
  using Place = adapter::ModuleAdapter::Place;
  struct Adapter {
    std::size_t weight = 0;  ///< index of the parameter
    std::size_t first = 0;   ///< index of its own; A is in front of B
    Place place = Place::kBeside;
    std::int64_t first_row = 0;
    float scale = 1.0F, dropout = 0.0F;  ///< of kBeside
  };
  std::vector<Adapter> adapters_;
};

/// All layers of make_gpt().
std::vector<std::unique_ptr<Layer>> make_layers(const GptConfig& config);

/// Block `index` of a GPT-2, and of any other family.
std::unique_ptr<Layer> make_gpt2_block(const GptConfig& config, std::int64_t index);
std::unique_ptr<Layer> make_llama_block(const GptConfig& config, std::int64_t index);

}  // namespace tessera::gpt
