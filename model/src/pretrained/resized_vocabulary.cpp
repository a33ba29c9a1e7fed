#include "tessera/model/resized_vocabulary.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "pretrained/stored_gpt.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

/// The mean of a matrix's rows.
std::vector<float> mean_row(const PretrainedGpt& base, const std::string& name,
                            const Shape& shape) {
  constexpr std::int64_t kBlock = std::int64_t{4} << 20;  // elements
  const std::int64_t rows = shape[0], width = shape.numel() / rows;
  const std::int64_t most = std::max<std::int64_t>(kBlock / width, 1);
  std::vector<double> sums(static_cast<std::size_t>(width));
  std::vector<float> values;
  for (std::int64_t row = 0; row < rows; row += most) {
    values.resize(static_cast<std::size_t>(std::min(most, rows - row) * width));
    pretrained::read_base(base, name, row * width, values);
    for (std::size_t i = 0; i < values.size(); ++i) {
      sums[i % sums.size()] += static_cast<double>(values[i]);
    }
  }
  std::vector<float> mean;
  for (const double sum : sums) mean.push_back(static_cast<float>(sum / static_cast<double>(rows)));
  return mean;
}

}  // namespace

PretrainedGpt with_vocabulary(const PretrainedGpt& base, std::int64_t tokens) {
  const PretrainedGpt::Files& from = base.files();
  const std::int64_t before = from.config.vocab_size;
  if (tokens == before) return base;
  require(tokens > before, ErrorCode::kConfig, "'", base.path(), "' has ", before,
          " tokens, more than ", tokens, "; rows are added, not taken away");
  require(!base.is_checkpoint(), ErrorCode::kConfig, "'", base.path(),
          "' is a checkpoint, whose vocabulary stays; make a folder of it to begin with: tessera "
          "checkpoint convert");
  require(!from.config.adapter.is_set(), ErrorCode::kConfig, "'", base.path(),
          "' has an adapter, or gets one, whose base would be another one; resize and export the "
          "base first");
  auto files = std::make_shared<PretrainedGpt::Files>();
  files->path = from.path;
  files->config = from.config;
  files->config.vocab_size = tokens;
  files->format = concat(from.format, ", with rows for ", tokens - before, " more tokens");
  for (const InputFile& file : from.files) files->files.emplace_back(file.path());
  files->places = from.places;
  files->stored_format = from.stored_format;
  files->fresh = from.fresh;
  std::map<std::string, Shape> shapes;
  for (const ParameterSpec& spec : pretrained::parameters_of(from.config)) {
    shapes.emplace(spec.name, spec.shape);
  }
  for (const ParameterSpec& spec : pretrained::parameters_of(files->config)) {
    const Shape& own = shapes.at(spec.name);
    if (own == spec.shape || files->fresh.contains(spec.name)) continue;
    pretrained::Place& place = files->places.at(spec.name);
    place.shape = spec.shape;
    const bool is_bias = own.rank() == 1;
    place.new_row = is_bias ? std::vector<float>{0.0F} : mean_row(base, spec.name, own);
  }
  return PretrainedGpt(std::move(files));
}

}  // namespace tessera
