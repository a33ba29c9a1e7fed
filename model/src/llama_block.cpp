#include <optional>
#include <utility>
#include <vector>

#include "gpt_layers.h"
#include "tessera/autograd/ops.h"
#include "tessera/core/error.h"
#include "tessera/model/gpt_family.h"

namespace tessera::gpt {
namespace {

/// x + attention(norm(x)), then x + mlp(norm(x)), with RMS norms, rotary positions, grouped queries
/// and a gated MLP (Touvron et al. 2023); residuals as in [Note: residuals in projections].
class LlamaBlock : public CachingLayer {
 public:
  LlamaBlock(const GptConfig& config, std::int64_t index)
      : CachingLayer(concat("layers.", index), std::string(family_of(config).block_class)),
        config_(config),
        qkv_bias_(family_of(config).qkv_bias),
        head_norm_(family_of(config).head_norm),
        frequencies_(rotary_frequencies(config, 1)),
        amplitude_(rotary_amplitude(config)),
        attention_{.heads = config.heads,
                   .kv_heads = config.kv_heads_used(),
                   .width = config.head_width_used(),
                   .window = index < config.first_window_layer ? 0 : config.window} {
    if (config.rotary.scaling == RotaryConfig::Scaling::kLongRope) {
      long_frequencies_ = rotary_frequencies(config, config.rotary.trained_context + 1);
    }
    add_parameters();
    adapters_.emplace(config, parameters_);
    splits_backward_ = true;
    reads_batch_ = true;  // where documents begin, if samples are packed
  }

  std::int64_t cache_numel(std::int64_t positions) const override {
    return attention_.cache_numel(positions);
  }

  Value run(Tape& tape, const Value& input, std::span<Parameter> parameters,
            const CachedPass* pass) const override {
    check_parameters(*this, parameters);
    const float epsilon = config_.norm_epsilon;
    Parameter* next = parameters.data();
    Value x = ops::rms_norm(tape, input, *next++, epsilon);
    Parameter& qkv_weight = *next++;
    x = adapters_->linear(tape, std::move(x), qkv_weight, qkv_bias_ ? next++ : nullptr, parameters);
    const std::int64_t length = pass != nullptr ? pass->length : input.shape()[1];
    ops::HeadsOptions heads{.heads = attention_.heads,
                            .kv_heads = attention_.kv_heads,
                            .width = attention_.width,
                            .frequencies = frequencies_for(length),
                            .amplitude = amplitude_,
                            .epsilon = epsilon,
                            .starts = inputs_of(tape).starts,
                            .first_position = pass != nullptr ? pass->first_position() : 0};
    if (head_norm_) {
      heads.q_gamma = next++;
      heads.k_gamma = next++;
    }
    require(!heads.starts || heads.frequencies.data() == frequencies_.data(), ErrorCode::kConfig,
            "samples longer than ", config_.rotary.trained_context,
            " tokens have other rotary frequencies (longrope), which the documents of a packed "
            "sample may not; give a shorter `sequence_length`, or leave out `packing`");
    x = ops::heads(tape, x, heads);
    x = attend(tape, x, attention_, heads.starts, pass);
    const Value sum = add_residual(tape, std::move(x), *next++, input, parameters);
    x = ops::rms_norm(tape, sum, *next++, epsilon);
    x = adapters_->linear(tape, std::move(x), *next++, nullptr, parameters);
    x = ops::swiglu(tape, std::move(x));
    return add_residual(tape, std::move(x), *next++, sum, parameters);
  }

 private:
  /// In the order in which forward takes them.
  void add_parameters() {
    const std::int64_t c = config_.width, mlp = config_.mlp_width_used();
    const std::int64_t queries = config_.heads * config_.head_width_used();
    const std::int64_t packed = queries + 2 * config_.kv_heads_used() * config_.head_width_used();
    const std::string prefix = name() + ".", attention = prefix + "self_attn.";
    parameters_ = {vector(prefix + "input_layernorm.weight", c, 1.0F),
                   matrix(attention + "qkv_proj.weight", packed, c, kInitialStddev)};
    if (qkv_bias_) parameters_.push_back(vector(attention + "qkv_proj.bias", packed, 0.0F));
    if (head_norm_) {
      const std::int64_t width = config_.head_width_used();
      parameters_.push_back(vector(attention + "q_norm.weight", width, 1.0F));
      parameters_.push_back(vector(attention + "k_norm.weight", width, 1.0F));
    }
    parameters_.push_back(matrix(attention + "o_proj.weight", c, queries, kInitialStddev));
    parameters_.push_back(vector(prefix + "post_attention_layernorm.weight", c, 1.0F));
    parameters_.push_back(matrix(prefix + "mlp.gate_up_proj.weight", 2 * mlp, c, kInitialStddev));
    parameters_.push_back(matrix(prefix + "mlp.down_proj.weight", c, mlp, kInitialStddev));
  }

  /// residual + dropout(x weight^T).
  Value add_residual(Tape& tape, Value x, Parameter& weight, const Value& residual,
                     std::span<Parameter> parameters) const {
    if (config_.dropout == 0.0F) {
      return adapters_->linear(tape, std::move(x), weight, nullptr, parameters, &residual);
    }
    x = adapters_->linear(tape, std::move(x), weight, nullptr, parameters);
    x = ops::dropout(tape, std::move(x), config_.dropout);
    return ops::add(tape, std::move(x), residual);
  }

  std::span<const float> frequencies_for(std::int64_t length) const {
    const bool is_long = !long_frequencies_.empty() && length > config_.rotary.trained_context;
    return is_long ? long_frequencies_ : frequencies_;
  }

  GptConfig config_;
  bool qkv_bias_, head_norm_;
  std::vector<float> frequencies_;
  std::vector<float>
      long_frequencies_;  ///< of sequences beyond the trained context; empty if equal
  float amplitude_;
  AttentionSizes attention_;
  std::optional<BlockAdapters> adapters_;
};

}  // namespace

std::unique_ptr<Layer> make_llama_block(const GptConfig& config, std::int64_t index) {
  return std::make_unique<LlamaBlock>(config, index);
}

}  // namespace tessera::gpt
