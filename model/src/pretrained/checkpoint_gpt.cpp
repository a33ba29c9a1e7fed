#include <algorithm>

#include "pretrained/stored_gpt.h"
#include "tessera/checkpoint/checkpoint_folder.h"
#include "tessera/core/error.h"

namespace tessera {

PretrainedGpt open_checkpoint(const std::string& folder) {
  const std::string path = find_checkpoint(folder);
  require(!path.empty(), ErrorCode::kNotFound, "there is no checkpoint in '", folder, "'");
  auto files = std::make_shared<PretrainedGpt::Files>();
  files->path = path;
  files->checkpoint = std::make_unique<SavedParameters>(path);
  const Manifest& manifest = files->checkpoint->manifest();
  files->format = concat("a checkpoint of step ", manifest.step);
  files->config = parse_gpt_configuration(manifest.model);
  files->config.dropout = 0.0F;
  const Model model = make_gpt(files->config);
  for (const auto& layer : model.layers) {
    for (const ParameterSpec& spec : layer->parameters()) {
      const auto saved = std::ranges::find(manifest.parameters, spec.name, &SavedParameter::name);
      const Shape shape =
          spec.format == WeightFormat::kNone ? spec.shape : Shape{quantized_sizes(spec).bytes};
      require(saved != manifest.parameters.end() && saved->shape == shape, ErrorCode::kConfig, "'",
              path, "' has no parameter '", spec.name, "' of shape ", shape);
      files->places[spec.name] = {
          .shape = spec.shape, .parts = {}, .format = spec.format, .joined = spec.joined};
    }
  }
  return PretrainedGpt(std::move(files));
}

}  // namespace tessera
