#include <optional>
#include <utility>

#include "gpt_config.h"
#include "gpt_layers.h"
#include "tessera/autograd/ops.h"
#include "tessera/core/error.h"

// BERT (Devlin et al. 2019): norms behind the residuals, learned positions, exact GELU, and
// attention to all of a document, before and behind a token. Padding is a document of its own.
namespace tessera::gpt {
namespace {

/// A layer norm's two parameters.
void add_norm_parameters(const std::string& prefix, std::int64_t width,
                         std::vector<ParameterSpec>& parameters) {
  parameters.push_back(vector(prefix + "LayerNorm.weight", width, 1.0F));
  parameters.push_back(vector(prefix + "LayerNorm.bias", width, 0.0F));
}

/// A linear module's weight and bias.
void add_linear_parameters(const std::string& prefix, std::int64_t outputs, std::int64_t inputs,
                           std::vector<ParameterSpec>& parameters) {
  parameters.push_back(matrix(prefix + "weight", outputs, inputs, kInitialStddev));
  parameters.push_back(vector(prefix + "bias", outputs, 0.0F));
}

/// norm(token + position + segment). A text is one segment, the first.
class BertEmbedding : public Layer {
 public:
  explicit BertEmbedding(const GptConfig& config)
      : Layer("embedding", "Embedding"), dropout_(config.dropout), epsilon_(config.norm_epsilon) {
    const std::string prefix = "embeddings.";
    const std::int64_t c = config.width;
    parameters_ = {
        vocabulary_matrix(std::string(embedding_name(config)), config),
        matrix(prefix + "position_embeddings.weight", config.context_length, c, kInitialStddev),
        matrix(prefix + "token_type_embeddings.weight", config.token_types, c, kInitialStddev)};
    add_norm_parameters(prefix, c, parameters_);
    freeze(config, parameters_);
    splits_backward_ = true;
  }

  Value forward(Tape& tape, const Value& /*input*/, std::span<Parameter> p) const override {
    check_parameters(*this, p);
    const TokenInputs inputs = inputs_of(tape);
    Value x = ops::embedding(tape, inputs.tokens, p[0], &p[1], inputs.starts);
    x = ops::add_row(tape, std::move(x), p[2], 0);
    x = ops::layer_norm(tape, x, p[3], p[4], epsilon_);
    return ops::dropout(tape, std::move(x), dropout_);
  }

 private:
  float dropout_, epsilon_;
};

/// norm(x + attention(x)), then norm(x + mlp(x)); residuals as in [Note: residuals in projections].
class BertBlock : public Layer {
 public:
  BertBlock(const GptConfig& config, std::int64_t index)
      : Layer(concat("encoder.layer.", index), "BertLayer"),
        heads_(config.heads),
        dropout_(config.dropout),
        epsilon_(config.norm_epsilon) {
    const std::int64_t c = config.width, mlp = config.mlp_width_used();
    const std::string prefix = name() + ".";
    // In the order of enum Index.
    add_linear_parameters(prefix + "attention.self.qkv.", 3 * c, c, parameters_);
    add_linear_parameters(prefix + "attention.output.dense.", c, c, parameters_);
    add_norm_parameters(prefix + "attention.output.", c, parameters_);
    add_linear_parameters(prefix + "intermediate.dense.", mlp, c, parameters_);
    add_linear_parameters(prefix + "output.dense.", c, mlp, parameters_);
    add_norm_parameters(prefix + "output.", c, parameters_);
    adapters_.emplace(config, parameters_);
    splits_backward_ = true;
    reads_batch_ = true;  // where documents begin
  }

  Value forward(Tape& tape, const Value& input, std::span<Parameter> parameters) const override {
    check_parameters(*this, parameters);
    Value x = linear(tape, input, kQkv, parameters);
    x = ops::attention(tape, x, heads_, 0, inputs_of(tape).starts, false);
    x = add_and_normalize(tape, std::move(x), kProjection, input, kAttentionNorm, parameters);
    Value hidden = linear(tape, x, kMlp, parameters);
    hidden = ops::gelu(tape, std::move(hidden), GeluForm::kErf);
    return add_and_normalize(tape, std::move(hidden), kMlpProjection, x, kMlpNorm, parameters);
  }

 private:
  /// The weight of a module, or of a norm, whose bias is behind it.
  enum Index {
    kQkv = 0,
    kProjection = 2,
    kAttentionNorm = 4,
    kMlp = 6,
    kMlpProjection = 8,
    kMlpNorm = 10
  };

  Value linear(Tape& tape, Value x, Index weight, std::span<Parameter> parameters,
               const Value* residual = nullptr) const {
    const auto index = static_cast<std::size_t>(weight);
    return adapters_->linear(tape, std::move(x), parameters[index], &parameters[index + 1],
                             parameters, residual);
  }

  /// norm(residual + dropout(linear(x))).
  Value add_and_normalize(Tape& tape, Value x, Index weight, const Value& residual, Index norm,
                          std::span<Parameter> parameters) const {
    const auto index = static_cast<std::size_t>(norm);
    Parameter &gamma = parameters[index], &beta = parameters[index + 1];
    if (dropout_ == 0.0F) {
      const Value sum = linear(tape, std::move(x), weight, parameters, &residual);
      return ops::layer_norm(tape, sum, gamma, beta, epsilon_);
    }
    x = linear(tape, std::move(x), weight, parameters);
    x = ops::dropout(tape, std::move(x), dropout_);
    return ops::add_layer_norm(tape, std::move(x), residual, gamma, beta, epsilon_).norm;
  }

  std::int64_t heads_;
  float dropout_, epsilon_;
  std::optional<BlockAdapters> adapters_;
};

/// Losses of a sequence's class, told at its first token, or of masked tokens. The pooler and the
/// classifier run in all places, of which those without a target have neither loss nor gradient:
/// C^2 of the 12 C^2 parameters that a block runs in each place.
class BertHead : public Layer {
 public:
  explicit BertHead(const GptConfig& config)
      : Layer("head", "Head"),
        classes_(std::ssize(config.labels)),
        dropout_(config.dropout),
        epsilon_(config.norm_epsilon) {
    const std::int64_t c = config.width;
    if (classes_ > 0) {
      add_linear_parameters(std::string(kPooler) + "dense.", c, c, parameters_);
      add_linear_parameters(std::string(kClassifier), classes_, c, parameters_);
    } else {
      const std::string prefix = "cls.predictions.";
      add_linear_parameters(prefix + "transform.dense.", c, c, parameters_);
      add_norm_parameters(prefix + "transform.", c, parameters_);
      parameters_.push_back(vector(prefix + "bias", config.vocab_size, 0.0F));
      tied_parameters_ = {std::string(embedding_name(config))};
    }
    adapters_.emplace(config, parameters_);
    splits_backward_ = true;
  }

  Value forward(Tape& tape, const Value& input, std::span<Parameter> p) const override {
    check_parameters(*this, p);
    const TensorView targets = tape.batch().targets;
    require(targets || !tape.recording(), ErrorCode::kInvalidArgument,
            "layer 'head' needs targets to record a loss");
    Value x = adapters_->linear(tape, input, p[0], &p[1], p);
    if (classes_ > 0) {
      x = ops::tanh(tape, std::move(x));
      x = ops::dropout(tape, std::move(x), dropout_);
      return losses(tape, std::move(x), p[2], p[3], targets);
    }
    x = ops::gelu(tape, std::move(x), GeluForm::kErf);
    x = ops::layer_norm(tape, x, p[2], p[3], epsilon_);
    return losses(tape, std::move(x), p.back(), p[4], targets);
  }

  std::int64_t counted_classes() const override { return classes_; }

 private:
  static Value losses(Tape& tape, Value x, Parameter& weight, Parameter& bias,
                      const TensorView& targets) {
    if (!targets) return logits_of(tape, x, weight, &bias, 0.0F);
    return ops::linear_cross_entropy(tape, std::move(x), weight, targets, -1, 0.0F, &bias);
  }

  std::int64_t classes_;  ///< labels; 0: it tells tokens
  float dropout_, epsilon_;
  std::optional<BlockAdapters> adapters_;
};

}  // namespace

std::unique_ptr<Layer> make_bert_embedding(const GptConfig& config) {
  return std::make_unique<BertEmbedding>(config);
}

std::unique_ptr<Layer> make_bert_block(const GptConfig& config, std::int64_t index) {
  return std::make_unique<BertBlock>(config, index);
}

std::unique_ptr<Layer> make_bert_head(const GptConfig& config) {
  return std::make_unique<BertHead>(config);
}

}  // namespace tessera::gpt
