#include <optional>

#include "pretrained/quantized_part.h"
#include "pretrained/stored_gpt.h"
#include "tessera/core/error.h"

namespace tessera::pretrained {
namespace {

std::optional<Format> format_of(std::string_view dtype) {
  if (dtype == "F32") return Format::kFloat32;
  if (dtype == "F16") return Format::kFloat16;
  if (dtype == "BF16") return Format::kBFloat16;
  return std::nullopt;
}

}  // namespace

std::vector<ParameterSpec> parameters_of(const GptConfig& config) {
  std::vector<ParameterSpec> all;
  for (const auto& layer : make_gpt(config).layers) {
    all.insert(all.end(), layer->parameters().begin(), layer->parameters().end());
  }
  return all;
}

bool is_block_matrix(const ParameterSpec& spec) {
  const bool in_block = spec.name.starts_with("h.") || spec.name.starts_with("layers.");
  return in_block && spec.shape.rank() == 2;
}

void keep_stored_format(PretrainedGpt::Files& files) {
  if (files.stored_format == WeightFormat::kNone) return;
  for (const ParameterSpec& spec : parameters_of(files.config)) {
    if (is_block_matrix(spec) && !is_stored_in(files.places.at(spec.name), files.stored_format)) {
      files.config.unquantized.push_back(spec.name);
    }
  }
  files.config.base_format = files.stored_format;
}

Shape stored_shape(const Part& part) {
  return part.transposed ? Shape{part.shape[1], part.shape[0]} : part.shape;
}

Part found_part(Part part, std::size_t file, const SafetensorsEntry& entry, const std::string& path,
                std::string_view config_file) {
  require(entry.shape == stored_shape(part), ErrorCode::kConfig, "'", path, "': tensor '",
          entry.name, "' has the shape ", entry.shape, ", and by ", config_file, " it is ",
          stored_shape(part),
          "; one of the two is of another model; download or write all of the folder's files "
          "again");
  const auto format = format_of(entry.dtype);
  require(format.has_value(), ErrorCode::kConfig, "'", path, "': tensor '", entry.name, "' is ",
          entry.dtype, "; F32, F16 and BF16 can be read: write the model in one of them");
  part.file = file;
  part.offset = entry.begin;
  part.format = *format;
  return part;
}

}  // namespace tessera::pretrained
