#include "adapter/derived_parameters.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "adapter/truncated_svd.h"
#include "pretrained/stored_gpt.h"
#include "tessera/core/error.h"

namespace tessera::adapter {

/// One module's.
struct DerivedParameters::Source {
  std::string matrix;  ///< the base's parameter
  ModuleAdapter adapter;
  std::once_flag once;
  std::vector<float> a, b, magnitudes;  ///< what is derived of it

  std::int64_t first_element() const { return adapter.module.first_row * adapter.module.inputs; }
  std::int64_t numel() const { return adapter.module.rows * adapter.module.inputs; }
  std::size_t rank() const { return static_cast<std::size_t>(adapter.parameters[0].shape[0]); }
};

namespace {

/// PiSSA's factors: A = sqrt(s / scale) V, B = U sqrt(s / scale).
void factorise(std::span<const float> weights, const ModuleAdapter& adapter, std::vector<float>& a,
               std::vector<float>& b) {
  const Module& module = adapter.module;
  const std::int64_t rank = adapter.parameters[0].shape[0];
  require(rank <= std::min(module.rows, module.inputs), ErrorCode::kConfig, "LoRA: r is ", rank,
          ", and '", module.path, "' (", module.rows, ", ", module.inputs, ") has ",
          std::min(module.rows, module.inputs),
          " singular values, which PiSSA begins with; set r to at most that");
  require(adapter.scale > 0.0F, ErrorCode::kConfig, "LoRA: alpha / r is ", adapter.scale,
          ", and PiSSA divides by it; set it above 0");
  const TruncatedSvd svd = truncated_svd(weights, module.rows, module.inputs, rank);
  const auto columns = static_cast<std::size_t>(module.inputs),
             count = static_cast<std::size_t>(rank);
  a.resize(count * columns);
  b.resize(svd.left.size());
  for (std::size_t r = 0; r < count; ++r) {
    const double root = std::sqrt(svd.values[r] / static_cast<double>(adapter.scale));
    for (std::size_t i = 0; i < columns; ++i) {
      a[r * columns + i] = static_cast<float>(root * svd.right[r * columns + i]);
    }
    for (std::size_t o = r; o < b.size(); o += count) {
      b[o] = static_cast<float>(root * svd.left[o]);
    }
  }
}

}  // namespace

std::vector<float> row_norms(std::span<const float> weights, std::size_t columns) {
  std::vector<float> norms;
  for (std::size_t row = 0; row < weights.size(); row += columns) {
    double sum = 0.0;
    for (const float w : weights.subspan(row, columns)) {
      sum += static_cast<double>(w) * static_cast<double>(w);
    }
    norms.push_back(static_cast<float>(std::sqrt(sum)));
  }
  return norms;
}

DerivedParameters::DerivedParameters(const GptConfig& config, bool fresh, ReadBase base)
    : base_(std::move(base)) {
  const LoraOptions* const lora = config.adapter.lora();
  if (lora == nullptr) return;
  pissa_ = lora->initialization == LoraOptions::Initialization::kPissa;
  const bool has_magnitudes = lora->dora && fresh;
  if (!pissa_ && !has_magnitudes) return;
  GptConfig plain = config;
  plain.adapter = {};
  plain.base_format = WeightFormat::kNone;
  for (const ParameterSpec& matrix : pretrained::parameters_of(plain)) {
    if (matrix.shape.rank() != 2) continue;
    for (ModuleAdapter& adapter : module_adapters(config, matrix)) {
      auto& source = sources_.emplace_back(std::make_unique<Source>());
      source->matrix = matrix.name;
      if (pissa_) by_matrix_[matrix.name].push_back(source.get());
      for (std::size_t p = 0; fresh && p < adapter.parameters.size(); ++p) {
        if (p < 2 ? !pissa_ : !has_magnitudes) continue;
        shapes_[adapter.parameters[p].name] = adapter.parameters[p].shape;
        by_parameter_[adapter.parameters[p].name] = source.get();
      }
      source->adapter = std::move(adapter);
    }
  }
}

DerivedParameters::~DerivedParameters() = default;

const DerivedParameters::Source& DerivedParameters::computed(Source& source) const {
  std::call_once(source.once, [&] {
    std::vector<float> weights(static_cast<std::size_t>(source.numel()));
    base_(source.matrix, source.first_element(), weights);
    if (pissa_) factorise(weights, source.adapter, source.a, source.b);
    if (source.adapter.has_magnitudes) {
      source.magnitudes =
          row_norms(weights, static_cast<std::size_t>(source.adapter.module.inputs));
    }
  });
  return source;
}

void DerivedParameters::read(std::string_view parameter, std::int64_t first,
                             std::span<float> values) const {
  const Source& source = computed(*by_parameter_.find(parameter)->second);
  const auto& specs = source.adapter.parameters;
  const std::vector<float>& from = parameter == specs[0].name   ? source.a
                                   : parameter == specs[1].name ? source.b
                                                                : source.magnitudes;
  std::copy_n(from.begin() + first, values.size(), values.begin());
}

void DerivedParameters::subtract(std::string_view matrix, std::int64_t first,
                                 std::span<float> values) const {
  const auto found = by_matrix_.find(matrix);
  if (found == by_matrix_.end()) return;
  const std::int64_t last = first + std::ssize(values);
  for (Source* const place : found->second) {
    const std::int64_t begin = std::max(first, place->first_element());
    const std::int64_t end = std::min(last, place->first_element() + place->numel());
    if (begin >= end) continue;
    const Source& source = computed(*place);
    const std::int64_t inputs = source.adapter.module.inputs;
    const std::size_t rank = source.rank();
    std::vector<float> delta(static_cast<std::size_t>(inputs));
    std::int64_t made = -1;  // the row that `delta` is of
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t at = i - source.first_element();
      if (at / inputs != made) {
        made = at / inputs;
        std::ranges::fill(delta, 0.0F);
        for (std::size_t r = 0; r < rank; ++r) {
          const float factor = source.b[static_cast<std::size_t>(made) * rank + r];
          const float* const row = source.a.data() + r * delta.size();
          for (std::size_t j = 0; j < delta.size(); ++j) delta[j] += factor * row[j];
        }
      }
      values[static_cast<std::size_t>(i - first)] -=
          source.adapter.scale * delta[static_cast<std::size_t>(at % inputs)];
    }
  }
}

}  // namespace tessera::adapter
