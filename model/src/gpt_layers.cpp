#include "gpt_layers.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>

#include "gpt_config.h"
#include "prompt_encoder.h"
#include "tessera/autograd/ops.h"
#include "tessera/core/error.h"

namespace tessera::gpt {
namespace {

bool is_gpt2(const GptConfig& config) { return config.family == GptFamily::kGpt2; }

/// Tokens to vectors; in GPT-2 with positions.
class Embedding : public CachingLayer {
 public:
  explicit Embedding(const GptConfig& config)
      : CachingLayer("embedding", "Embedding"), dropout_(config.dropout) {
    if (family_of(config).scaled_embedding) {
      scale_ = static_cast<float>(std::sqrt(static_cast<double>(config.width)));
    }
    parameters_ = {vocabulary_matrix(std::string(embedding_name(config)), config)};
    if (is_gpt2(config)) {
      parameters_.push_back(
          matrix("wpe.weight", config.context_length, config.width, kInitialStddev));
    }
    freeze(config, parameters_);
    own_ = parameters_.size();
    add_adapter(config);
    prefix_ = config.adapter.prefix_tokens();
    if (config.adapter.prompt_rows() > 0) {
      has_prompt_ = true;
      for (ParameterSpec& spec : prompt_parameters(config)) parameters_.push_back(std::move(spec));
    }
    splits_backward_ = true;
  }

  /// A prompt's encoder has layers of its own, and LoRA a product.
  bool backward_reads_parameters() const override {
    return adapter_ || (has_prompt_ && !is_prompt_alone());
  }

  Value run(Tape& tape, const Value& /*input*/, std::span<Parameter> parameters,
            const CachedPass* pass) const override {
    check_parameters(*this, parameters);
    Parameter* const positions = own_ > 1 ? &parameters[1] : nullptr;
    TokenInputs inputs = inputs_of(tape);
    if (pass != nullptr) {
      const TensorView row = inputs.tokens.flat().narrow(0, pass->first, pass->tokens);
      inputs.tokens = row.reshape(Shape{1, pass->tokens});
    }
    if (has_prompt_ && pass != nullptr && pass->first > 0) {
      return later_rows(tape, inputs.tokens, parameters[0], positions, *pass);
    }
    require(!inputs.starts || (!has_prompt_ && prefix_ == 0), ErrorCode::kConfig,
            "a tuned prompt stands in front of a sequence, not of each document of a packed "
            "sample; leave out `packing`");
    if (has_prompt_) {
      Value x = is_prompt_alone() ? ops::prompted_embedding(tape, inputs.tokens, parameters[0],
                                                            positions, parameters[own_], scale_)
                                  : ops::prompted_embedding(
                                        tape, inputs.tokens, parameters[0], positions,
                                        encoded_prompt(tape, parameters.subspan(own_)), scale_);
      return ops::dropout(tape, std::move(x), dropout_);
    }
    if (pass != nullptr) {
      return adapted(tape, later_rows(tape, inputs.tokens, parameters[0], positions, *pass),
                     inputs.tokens, parameters);
    }
    Value x = ops::embedding(tape, inputs.tokens, parameters[0], positions, inputs.starts, scale_,
                             prefix_);
    x = adapted(tape, std::move(x), inputs.tokens, parameters);
    return ops::dropout(tape, std::move(x), dropout_);
  }

 private:
  void add_adapter(const GptConfig& config) {
    for (adapter::ModuleAdapter& found : adapter::module_adapters(config, parameters_[0])) {
      adapter_ = true;
      adapter_scale_ = found.scale;
      std::ranges::move(found.parameters, std::back_inserter(parameters_));
    }
  }
  /// x with LoRA's rows of the tokens.
  Value adapted(Tape& tape, Value x, const TensorView& tokens,
                std::span<Parameter> parameters) const {
    if (!adapter_) return x;
    const Value rows =
        ops::embedding(tape, tokens, parameters[own_], nullptr, {}, adapter_scale_ * scale_);
    return ops::linear(tape, rows, parameters[own_ + 1], nullptr, &x);
  }
  bool is_prompt_alone() const { return parameters_.size() == own_ + 1; }

  /// The embedding of tokens that do not begin at position 0.
  Value later_rows(Tape& tape, const TensorView& tokens, Parameter& embedding,
                   const Parameter* positions, const CachedPass& pass) const {
    if (positions == nullptr) return ops::embedding(tape, tokens, embedding, nullptr, {}, scale_);
    const std::int64_t first = pass.first == 0 ? prefix_ : pass.first_position();
    Parameter later = *positions;  // nothing is recorded that would keep its address
    later.value = later.value.narrow(0, first, pass.tokens);
    return ops::embedding(tape, tokens, embedding, &later, {}, scale_);
  }

  float dropout_;
  float scale_ = 1.0F;
  std::int64_t prefix_ = 0;  ///< positions before the first
  std::size_t own_ = 0;      ///< parameters that are neither a prompt's nor an adapter's
  bool has_prompt_ = false;
  bool adapter_ = false;  ///< LoRA's A and B are behind its own
  float adapter_scale_ = 1.0F;
};

/// The last norm, and the losses of the next tokens, or of a sequence's class.
class Head : public Layer {
 public:
  explicit Head(const GptConfig& config)
      : Layer("head", "Head"),
        rms_(!is_gpt2(config)),
        epsilon_(config.norm_epsilon),
        norm_offset_(family_of(config).norm_offset),
        soft_cap_(config.labels.empty() ? static_cast<float>(config.logit_cap) : 0.0F),
        classes_(std::ssize(config.labels)) {
    if (rms_) {
      parameters_ = {vector("norm.weight", config.width, 1.0F - norm_offset_)};
    } else {
      parameters_ = {vector("ln_f.weight", config.width, 1.0F),
                     vector("ln_f.bias", config.width, 0.0F)};
    }
    if (!config.labels.empty()) {
      parameters_.push_back(
          matrix(std::string(kScoreParameter), classes_, config.width, kInitialStddev));
    } else if (config.tie_embedding) {
      tied_parameters_ = {std::string(embedding_name(config))};
    } else {
      parameters_.push_back(vocabulary_matrix("lm_head.weight", config));
    }
    freeze(config, parameters_);
    weight_ = parameters_.size() - 1;
    if (config.labels.empty()) add_adapter(config);
    if (!tied_parameters_.empty()) weight_ = parameters_.size();
    splits_backward_ = true;
  }

  Value forward(Tape& tape, const Value& input, std::span<Parameter> parameters) const override {
    check_parameters(*this, parameters);
    require(input.shape().rank() == 3, ErrorCode::kInvalidArgument,
            "layer 'head' takes (B, L, C), got ", input.shape());
    // A tuned prompt has no targets. Sampling hands in single positions.
    const TensorView tokens = inputs_of(tape).tokens;
    const std::int64_t prompt = tokens ? input.shape()[1] - tokens.shape[1] : 0;
    const Value rows = prompt > 0 ? ops::without_first(tape, input, prompt) : input;
    Value x = rms_ ? ops::rms_norm(tape, rows, parameters[0], epsilon_, norm_offset_)
                   : ops::layer_norm(tape, rows, parameters[0], parameters[1]);
    Parameter& weight = parameters[weight_];
    std::optional<ops::LowRankLogits> low_rank;
    if (adapter_ > 0) {
      low_rank.emplace(ops::LowRankLogits{
          .hidden = ops::low_rank_hidden(tape, ops::dropout(tape, x, adapter_dropout_),
                                         parameters[adapter_], adapter_scale_),
          .b = parameters[adapter_ + 1]});
    }
    const Tensor& targets = tape.batch().targets;
    if (!targets) {
      require(!tape.recording(), ErrorCode::kInvalidArgument,
              "layer 'head' needs targets to record a loss");
      return logits_of(tape, x, weight, nullptr, soft_cap_, low_rank ? &*low_rank : nullptr);
    }
    return ops::linear_cross_entropy(tape, std::move(x), weight, targets, -1, soft_cap_, nullptr,
                                     low_rank ? &*low_rank : nullptr);
  }

  std::int64_t counted_classes() const override { return classes_; }

 private:
  void add_adapter(const GptConfig& config) {
    for (adapter::ModuleAdapter& found :
         adapter::module_adapters(config, adapter::head_matrix(config))) {
      adapter_ = parameters_.size();
      adapter_scale_ = found.scale;
      adapter_dropout_ = found.dropout;
      std::ranges::move(found.parameters, std::back_inserter(parameters_));
    }
  }

  bool rms_;
  float epsilon_, norm_offset_, soft_cap_;
  std::int64_t classes_;     ///< labels; 0: it tells tokens
  std::size_t weight_ = 0;   ///< index of the matrix of logits
  std::size_t adapter_ = 0;  ///< that of LoRA's A, before B; 0: there is none
  float adapter_scale_ = 1.0F, adapter_dropout_ = 0.0F;
};

}  // namespace

Value attend(Tape& tape, const Value& qkv, const AttentionSizes& sizes, const TensorView& starts,
             const CachedPass* pass) {
  if (pass == nullptr) {
    return ops::attention(tape, qkv, sizes.heads, sizes.window, starts, true, sizes.scores);
  }
  const TensorView& kept = tape.options().kept;
  const std::int64_t heads = 2 * sizes.kv_heads;
  const TensorView cache = kept.reshape(
      Shape{heads, kept.numel() / std::max<std::int64_t>(1, heads * sizes.width), sizes.width});
  return ops::cached_attention(tape, qkv, sizes.heads, sizes.window,
                               {.keys = cache.narrow(0, 0, sizes.kv_heads),
                                .values = cache.narrow(0, sizes.kv_heads, sizes.kv_heads),
                                .positions = pass->first_position()},
                               sizes.scores);
}

ParameterSpec matrix(std::string name, std::int64_t outputs, std::int64_t inputs, float stddev) {
  return {.name = std::move(name),
          .shape = {outputs, inputs},
          .initializer = Initializer::normal(stddev)};
}

// Tensor cores want the head's products in whole tiles, so zeros fill the
// last one, unless there are too few tiles for that to pay.
ParameterSpec vocabulary_matrix(std::string name, const GptConfig& config) {
  constexpr std::int64_t kTile = 128;
  ParameterSpec spec = matrix(std::move(name), config.vocab_size, config.width, kInitialStddev);
  if (config.vocab_size >= 16 * kTile) spec.row_multiple = kTile;
  return spec;
}

ParameterSpec vector(std::string name, std::int64_t size, float value) {
  return {.name = std::move(name),
          .shape = {size},
          .initializer = Initializer::constant(value),
          .weight_decay_scale = 0.0F};
}

Value logits_of(Tape& tape, const Value& x, const Parameter& weight, const Parameter* bias,
                float soft_cap, const ops::LowRankLogits* low_rank) {
  const Shape& shape = x.shape();
  const std::int64_t rows = shape[0] * shape[1];
  const std::int64_t vocab_size = weight.value.shape[0];
  Tensor logits = tape.activation(Shape{shape[0], shape[1], vocab_size}, DType::kFloat32, "logits");
  tape.kernels().gemm({.a = x.tensor.view().reshape(Shape{rows, shape[2]}),
                       .b = weight.value,
                       .c = logits.view().reshape(Shape{rows, vocab_size}),
                       .bias = bias == nullptr ? TensorView() : bias->value,
                       .transpose_b = true},
                      tape.stream());
  if (low_rank != nullptr) {
    const TensorView hidden = low_rank->hidden.tensor.view();
    tape.kernels().gemm({.a = hidden.reshape(Shape{rows, low_rank->b.value.shape[1]}),
                         .b = low_rank->b.value,
                         .c = logits.view().reshape(Shape{rows, vocab_size}),
                         .transpose_b = true,
                         .accumulate = true},
                        tape.stream());
  }
  if (soft_cap != 0.0F) {
    tape.kernels().soft_cap({.x = logits, .y = logits, .cap = soft_cap}, tape.stream());
  }
  return tape.output(std::move(logits), nullptr);
}

void check_parameters(const Layer& layer, std::span<const Parameter> parameters) {
  const std::size_t wanted = layer.parameters().size() + layer.tied_parameters().size();
  require(parameters.size() == wanted, ErrorCode::kInvalidArgument, "layer '", layer.name(),
          "' takes ", wanted, " parameters, got ", parameters.size());
}

TokenInputs inputs_of(const Tape& tape) {
  const TensorView inputs = tape.batch().inputs;
  if (inputs.shape.rank() != 3) return {inputs, {}};
  const Shape shape{inputs.shape[1], inputs.shape[2]};
  return {inputs.narrow(0, 0, 1).reshape(shape), inputs.narrow(0, 1, 1).reshape(shape)};
}

std::vector<std::unique_ptr<Layer>> make_layers(const GptConfig& config) {
  const auto make_block = is_encoder(config) ? make_bert_block
                          : is_gpt2(config)  ? make_gpt2_block
                                             : make_llama_block;
  std::vector<std::unique_ptr<Layer>> layers;
  if (is_encoder(config)) {
    layers.push_back(make_bert_embedding(config));
  } else {
    layers.push_back(std::make_unique<Embedding>(config));
  }
  for (std::int64_t i = 0; i < config.layers; ++i) layers.push_back(make_block(config, i));
  if (is_encoder(config)) {
    layers.push_back(make_bert_head(config));
  } else {
    layers.push_back(std::make_unique<Head>(config));
  }
  return layers;
}

}  // namespace tessera::gpt
