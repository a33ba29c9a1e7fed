#include "tessera/model/gpt_sampler.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "gpt_config.h"
#include "tessera/core/cpu_device.h"
#include "tessera/core/error.h"

namespace tessera {

ReadParameter read_from(const std::map<std::string, std::vector<float>>& values) {
  return [&values](const ParameterSpec& spec, std::span<float> out) {
    const auto found = values.find(spec.name);
    require(found != values.end(), ErrorCode::kNotFound, "there are no values for parameter '",
            spec.name, "'");
    require(found->second.size() == out.size(), ErrorCode::kInvalidArgument, "parameter '",
            spec.name, "' ", spec.shape, " takes ", out.size(), " values, not ",
            found->second.size());
    std::copy(found->second.begin(), found->second.end(), out.begin());
  };
}

GptSampler::GptSampler(const GptConfig& config, const ReadParameter& read,
                       GptSamplerOptions options)
    : config_(config),
      options_(options),
      model_(make_gpt(config)),
      device_(make_cpu_device()),
      memory_(*device_),
      stream_(device_->create_stream({.name = "sampler", .threads = options.threads})) {
  require(is_compute_dtype(options.dtype), ErrorCode::kInvalidArgument,
          "a GPT computes in fp32, bf16 or fp16, not ", to_string(options.dtype));
  require_writes_text(config);
  load(read);
}

GptSampler::~GptSampler() = default;

void GptSampler::load(const ReadParameter& read) {
  std::map<std::string, TensorView> by_name;
  std::vector<float> values;
  for (const auto& layer : model_.layers) {
    for (const ParameterSpec& spec : layer->parameters()) {
      values.resize(static_cast<std::size_t>(spec.shape.numel()));
      read(spec, values);
      const Tensor& tensor = tensors_.emplace_back(Tensor::empty(
          memory_, spec.shape, options_.dtype, MemoryCategory::kParameters, spec.name));
      const TensorView from(values.data(), DType::kFloat32, spec.shape);
      kernels_for(*device_).cast({.src = from, .dst = tensor.view()}, *stream_);
      stream_->synchronize();  // the values are the next tensor's then
      by_name.emplace(spec.name, tensor.view());
    }
  }
  for (const auto& layer : model_.layers) {
    std::vector<Parameter>& parameters = parameters_.emplace_back();
    const auto add = [&](const std::string& name) {
      parameters.push_back({.value = by_name.at(name), .gradient = {}});
    };
    for (const ParameterSpec& spec : layer->parameters()) add(spec.name);
    for (const std::string& name : layer->tied_parameters()) add(name);
  }
}

void GptSampler::check(std::span<const std::int32_t> context) const {
  const std::int64_t most = config_.context_length - config_.adapter.prompt_tokens();
  require(!context.empty() && std::cmp_less_equal(context.size(), most),
          ErrorCode::kInvalidArgument, "a context of ", context.size(),
          " tokens; this model takes between 1 and ", most);
  for (std::size_t i = 0; i < context.size(); ++i) {
    require(context[i] >= 0 && context[i] < config_.vocab_size, ErrorCode::kInvalidArgument,
            "token ", i, " of the context is ", context[i], ", outside of the vocabulary of ",
            config_.vocab_size);
  }
}

std::span<const float> GptSampler::next_logits(std::span<const std::int32_t> context) {
  check(context);
  // A failed stream stays failed; a sampler need not, so it takes the exception out of the task.
  std::exception_ptr failure;
  stream_->submit({.name = "sample"}, [&] {
    try {
      const Shape shape{1, static_cast<std::int64_t>(context.size())};
      const Tensor tokens =
          Tensor::empty(memory_, shape, DType::kInt32, MemoryCategory::kData, "context");
      std::copy(context.begin(), context.end(), tokens.as<std::int32_t>());
      const Tensor logits = gpt_logits(model_, parameters_, memory_, *stream_, tokens,
                                       LogitPositions::kLast, options_.threads);
      logits_.assign(logits.as<float>(), logits.as<float>() + logits.numel());
    } catch (...) {
      failure = std::current_exception();
    }
  });
  stream_->synchronize();
  if (failure) std::rethrow_exception(failure);
  return logits_;
}

}  // namespace tessera
