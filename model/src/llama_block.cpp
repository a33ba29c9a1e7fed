#include <cmath>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "block_prefix.h"
#include "gpt_layers.h"
#include "tessera/autograd/ops.h"
#include "tessera/core/error.h"
#include "tessera/model/gpt_family.h"

namespace tessera::gpt {
namespace {

/// Rotary frequencies of sequences longer than the trained context, made once for each length:
/// tapes keep spans of them.
class LongFrequencies {
 public:
  std::span<const float> of(const GptConfig& config, const RotaryConfig& rotary,
                            std::int64_t length) const {
    // The frequencies of longrope are the same for all lengths.
    const std::int64_t key = rotary.scaling == RotaryConfig::Scaling::kLongRope ? 0 : length;
    const std::lock_guard lock(mutex_);
    std::vector<float>& frequencies = by_length_[key];
    if (frequencies.empty()) frequencies = rotary_frequencies(config, rotary, length);
    return frequencies;
  }

 private:
  mutable std::mutex mutex_;
  mutable std::map<std::int64_t, std::vector<float>> by_length_;  ///< guarded; none is ever removed
};

/// x + attention(norm(x)), then x + mlp(norm(x)), with RMS norms, rotary positions, grouped queries
/// and a gated MLP (Touvron et al. 2023); residuals as in [Note: residuals in projections]. In
/// Gemma what is added to x is normalised, too, so that no projection can add the residual.
class LlamaBlock : public CachingLayer {
 public:
  LlamaBlock(const GptConfig& config, std::int64_t index)
      : CachingLayer(concat("layers.", index), std::string(family_of(config).block_class)),
        config_(config),
        family_(family_of(config)),
        rotary_(config.rotary_of(index)),
        frequencies_(rotary_frequencies(config, rotary_, 1)),
        attention_{.heads = config.heads,
                   .kv_heads = config.kv_heads_used(),
                   .width = config.head_width_used(),
                   .window = config.window_of(index),
                   .scores = scores_of(config)} {
    add_parameters();
    adapters_.emplace(config, parameters_);
    prefix_.emplace(config, name(), index, attention_, parameters_, tied_parameters_);
    splits_backward_ = true;
    reads_batch_ = true;  // where documents begin, if samples are packed
  }

  std::int64_t cache_numel(std::int64_t positions) const override {
    return attention_.cache_numel(positions);
  }

  Value run(Tape& tape, const Value& input, std::span<Parameter> parameters,
            const CachedPass* pass) const override {
    check_parameters(*this, parameters);
    Parameter* next = parameters.data();
    Value x = norm(tape, input, *next++);
    x = run_attention(tape, std::move(x), parameters, next, pass);
    if (family_.post_norms) return run_normalized(tape, std::move(x), input, parameters, next);
    const Value sum = add_residual(tape, std::move(x), *next++, input, parameters);
    x = norm(tape, sum, *next++);
    x = run_gate(tape, std::move(x), *next++, parameters);
    return add_residual(tape, std::move(x), *next++, sum, parameters);
  }

 private:
  static AttentionScores scores_of(const GptConfig& config) {
    AttentionScores scores{.soft_cap = static_cast<float>(config.attention_cap)};
    if (config.attention_scalar != 0.0) {
      scores.scale = static_cast<float>(1.0 / std::sqrt(config.attention_scalar));
    }
    return scores;
  }

  /// In the order in which forward takes them.
  void add_parameters() {
    const std::int64_t c = config_.width, mlp = config_.mlp_width_used();
    const std::int64_t queries = config_.heads * config_.head_width_used();
    const std::int64_t packed = queries + 2 * config_.kv_heads_used() * config_.head_width_used();
    const std::string prefix = name() + ".", attention = prefix + "self_attn.";
    const float one = 1.0F - family_.norm_offset;
    parameters_ = {vector(prefix + "input_layernorm.weight", c, one),
                   matrix(attention + "qkv_proj.weight", packed, c, kInitialStddev)};
    if (family_.qkv_bias) parameters_.push_back(vector(attention + "qkv_proj.bias", packed, 0.0F));
    if (family_.head_norm) {
      const std::int64_t width = config_.head_width_used();
      parameters_.push_back(vector(attention + "q_norm.weight", width, one));
      parameters_.push_back(vector(attention + "k_norm.weight", width, one));
    }
    parameters_.push_back(matrix(attention + "o_proj.weight", c, queries, kInitialStddev));
    parameters_.push_back(vector(prefix + "post_attention_layernorm.weight", c, one));
    if (family_.post_norms) {
      parameters_.push_back(vector(prefix + "pre_feedforward_layernorm.weight", c, one));
    }
    parameters_.push_back(matrix(prefix + "mlp.gate_up_proj.weight", 2 * mlp, c, kInitialStddev));
    parameters_.push_back(matrix(prefix + "mlp.down_proj.weight", c, mlp, kInitialStddev));
    if (family_.post_norms) {
      parameters_.push_back(vector(prefix + "post_feedforward_layernorm.weight", c, one));
    }
  }

  Value norm(Tape& tape, const Value& x, Parameter& weight) const {
    return ops::rms_norm(tape, x, weight, config_.norm_epsilon, family_.norm_offset);
  }

  /// The layers behind the first norm, up to the last projection; `next`: its parameters, which
  /// become those of what follows.
  Value run_attention(Tape& tape, Value x, std::span<Parameter> parameters, Parameter*& next,
                      const CachedPass* pass) const {
    const std::int64_t length = pass != nullptr ? pass->length : prefix_->tokens() + x.shape()[1];
    Parameter& qkv_weight = *next++;
    Parameter* const qkv_bias = family_.qkv_bias ? next++ : nullptr;
    x = adapters_->linear(tape, std::move(x), qkv_weight, qkv_bias, parameters);
    ops::HeadsOptions heads{.heads = attention_.heads,
                            .kv_heads = attention_.kv_heads,
                            .width = attention_.width,
                            .frequencies = frequencies_for(length),
                            .amplitude = rotary_amplitude(config_, rotary_),
                            .epsilon = config_.norm_epsilon,
                            .gamma_offset = family_.norm_offset,
                            .starts = inputs_of(tape).starts,
                            .first_position = pass != nullptr ? pass->first_position() : 0};
    if (family_.head_norm) {
      heads.q_gamma = next++;
      heads.k_gamma = next++;
    }
    require(!heads.starts || heads.frequencies.data() == frequencies_.data(), ErrorCode::kConfig,
            "samples longer than ", rotary_.trained_context,
            " tokens have other rotary frequencies (longrope, dynamic), which the documents of a "
            "packed sample may not; give a shorter `sequence_length`, or leave out `packing`");
    if (prefix_->precedes(pass)) {
      x = ops::heads(tape, prefix_->with_room(tape, x), heads);
      return prefix_->attend_behind(tape, x, true, pass, parameters);
    }
    x = ops::heads(tape, x, heads);
    return attend(tape, x, attention_, heads.starts, pass);
  }

  /// The first projection of the MLP and its gate.
  Value run_gate(Tape& tape, Value x, Parameter& weight, std::span<Parameter> parameters) const {
    x = adapters_->linear(tape, std::move(x), weight, nullptr, parameters);
    return family_.gate == GateFunction::kGelu ? ops::geglu(tape, std::move(x))
                                               : ops::swiglu(tape, std::move(x));
  }

  /// All behind attention where what is added to the residual is normalised.
  Value run_normalized(Tape& tape, Value x, const Value& input, std::span<Parameter> parameters,
                       Parameter* next) const {
    x = project(tape, std::move(x), *next++, parameters);
    x = ops::dropout(tape, norm(tape, x, *next++), config_.dropout);
    auto [sum, normalized] = ops::add_rms_norm(tape, std::move(x), input, *next++,
                                               config_.norm_epsilon, family_.norm_offset);
    x = run_gate(tape, std::move(normalized), *next++, parameters);
    x = project(tape, std::move(x), *next++, parameters);
    x = ops::dropout(tape, norm(tape, x, *next++), config_.dropout);
    return ops::add(tape, std::move(x), sum);
  }

  Value project(Tape& tape, Value x, Parameter& weight, std::span<Parameter> parameters,
                const Value* residual = nullptr) const {
    return adapters_->linear(tape, std::move(x), weight, nullptr, parameters, residual);
  }

  /// residual + dropout(x weight^T).
  Value add_residual(Tape& tape, Value x, Parameter& weight, const Value& residual,
                     std::span<Parameter> parameters) const {
    if (config_.dropout == 0.0F) return project(tape, std::move(x), weight, parameters, &residual);
    x = project(tape, std::move(x), weight, parameters);
    x = ops::dropout(tape, std::move(x), config_.dropout);
    return ops::add(tape, std::move(x), residual);
  }

  std::span<const float> frequencies_for(std::int64_t length) const {
    const bool is_long = depends_on_length(rotary_) && length > rotary_.trained_context;
    return is_long ? long_frequencies_.of(config_, rotary_, length) : frequencies_;
  }

  GptConfig config_;
  const FamilyRow& family_;
  RotaryConfig rotary_;
  std::vector<float> frequencies_;
  LongFrequencies long_frequencies_;
  AttentionSizes attention_;
  std::optional<BlockAdapters> adapters_;
  std::optional<BlockPrefix> prefix_;
};

}  // namespace

std::unique_ptr<Layer> make_llama_block(const GptConfig& config, std::int64_t index) {
  return std::make_unique<LlamaBlock>(config, index);
}

}  // namespace tessera::gpt
