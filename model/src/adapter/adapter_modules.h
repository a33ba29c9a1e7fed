#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/autograd/parameter.h"
#include "tessera/model/gpt.h"

// Which modules of a model have adapters, and what these do there. Layers and merging know places,
// not kinds.
namespace tessera::adapter {

/// A module of the published model: rows of one of our matrices.
struct Module {
  enum class Kind : std::uint8_t { kLinear, kEmbedding, kHead };
  std::string name;  ///< "layers.0.self_attn.q_proj"
  std::string path;  ///< with the family's prefix, as PEFT's patterns see it
  std::int64_t first_row = 0;
  std::int64_t rows = 0, inputs = 0;
  bool shares_input = false;  ///< our matrix has rows of other modules, too
  Kind kind = Kind::kLinear;  ///< of one in a block, of tokens' embedding, or of what makes logits
};

struct ModuleAdapter {
  enum class Place : std::uint8_t {
    kBeside,  ///< y += scale * B A dropout(x), with A (r, inputs) and B (rows, r)
    kOutput,  ///< y *= l, l (rows, 1)
    kInput,   ///< x *= l, l (1, inputs)
    kRows,    ///< embedding[token] += scale * B A[token], with A (rows, r) and B (inputs, r)
  };
  Module module;
  Place place = Place::kBeside;
  float scale = 1.0F;
  float dropout = 0.0F;
  bool has_magnitudes = false;  ///< of kBeside: the sum's columns are rescaled, by DoRA
  /// A, B and, if it has some, magnitudes (rows); or l.
  std::vector<ParameterSpec> parameters;
};

/// The adapters of one of our parameters, in order of rows; none if it is no matrix of a linear
/// module, of tokens' embedding or of the head, or no target. A tied head's is head_matrix().
/// Throws Error{kConfig} if a pattern is no regular expression.
std::vector<ModuleAdapter> module_adapters(const GptConfig& config, const ParameterSpec& matrix);

/// The matrix of the head as a module of its own, also where it is tied to the embedding.
ParameterSpec head_matrix(const GptConfig& config);

/// Whether config.adapter leaves a parameter to train. Throws Error{kConfig} where it names some of
/// the modules that are one matrix here, and leaves out others.
bool is_saved(const GptConfig& config, const std::string& parameter);

/// Whether a path is one of `ends`, or ends with a dot and one of them.
bool ends_with_one_of(std::string_view path, const std::vector<std::string>& ends);
/// The number of a module's block, as PEFT finds it: the first part of the path that is a number
/// with something before it, or behind one of `patterns`.
std::optional<std::int64_t> block_of(std::string_view path,
                                     const std::vector<std::string>& patterns);

}  // namespace tessera::adapter
