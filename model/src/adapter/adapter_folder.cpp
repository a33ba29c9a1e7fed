#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "adapter/adapter_kind.h"
#include "gpt_config.h"
#include "pretrained/part_io.h"
#include "pretrained/stored_gpt.h"
#include "published_parts.h"
#include "tessera/core/error.h"
#include "tessera/model/adapter.h"
#include "tessera/model/classification.h"
#include "tessera/model/gpt_family.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using pretrained::Part;
using pretrained::Place;

constexpr const char* kConfigFile = "adapter_config.json";
constexpr const char* kWeightsFile = "adapter_model.safetensors";
/// Before a module's path in the model that PEFT wraps.
constexpr std::string_view kPrefix = "base_model.model.";

/// Files and places of the base, to which adapters are to be added.
std::shared_ptr<PretrainedGpt::Files> copy_of_base(const PretrainedGpt& base,
                                                   const PretrainedGpt::Files& from) {
  require(!base.config().adapter.is_set(), ErrorCode::kConfig, "'", base.path(),
          "' has adapters already; merge them first: tessera checkpoint merge-adapter");
  require(!base.is_checkpoint(), ErrorCode::kConfig, "'", base.path(),
          "' is a checkpoint; adapters are for a folder of Hugging Face or a file of llm.c: write "
          "one with tessera checkpoint convert");
  auto files = std::make_shared<PretrainedGpt::Files>();
  files->path = from.path;
  files->format = from.format;
  files->config = from.config;
  for (const InputFile& file : from.files) files->files.emplace_back(file.path());
  files->places = from.places;
  files->fresh = from.fresh;
  files->stored_format = from.stored_format;
  pretrained::keep_stored_format(*files);
  return files;
}

/// Makes the values that the adapters of `files` take from the base's weights. `fresh`: they are in
/// no file.
void derive(PretrainedGpt::Files& files, const PretrainedGpt& base, bool fresh) {
  const LoraOptions* const lora = files.config.adapter.lora();
  if (lora == nullptr) return;
  using Initialization = LoraOptions::Initialization;
  require(
      lora->initialization != Initialization::kPissa || files.stored_format == WeightFormat::kNone,
      ErrorCode::kConfig, "'", files.path, "' is stored in ", to_string(files.stored_format),
      ", and PiSSA takes its factors out of the weights; give the model that is not quantised");
  require(!fresh || !lora->dora || lora->initialization != Initialization::kRandomB,
          ErrorCode::kConfig,
          "LoRA: init_lora_weights is false, which is for tests, and DoRA (use_dora) begins with "
          "the weights' norms; set it to true");
  files.derived = std::make_unique<adapter::DerivedParameters>(
      files.config, fresh,
      [base](std::string_view parameter, std::int64_t first, std::span<float> values) {
        pretrained::read_base(base, parameter, first, values);
      });
  for (const auto& [name, shape] : files.derived->shapes()) {
    files.places[name] = {.shape = shape};
  }
}

/// A tensor of an adapter's file: a parameter of ours, or some of its rows.
struct AdapterTensor {
  std::string name;          ///< in the file
  std::string parameter;     ///< ours
  Part part;                 ///< its shape alone
  Shape whole{};             ///< of the tensor of which the part is a row; of rank 0: it is all
  std::int64_t element = 0;  ///< of that tensor, with which the part begins

  Shape shape() const { return whole.rank() == 0 ? pretrained::stored_shape(part) : whole; }
};

/// A block's columns of the tensor that has the prefixes of all blocks, one part for each row.
void add_prefix(const GptConfig& config, const ParameterSpec& spec, std::int64_t block,
                std::vector<AdapterTensor>& tensors) {
  const std::int64_t columns = spec.shape[1];
  const Shape whole{spec.shape[0], config.layers * columns};
  for (std::int64_t row = 0; row < spec.shape[0]; ++row) {
    tensors.push_back({.name = std::string(kPromptParameter),
                       .parameter = spec.name,
                       .part = {.shape = Shape{1, columns}},
                       .whole = whole,
                       .element = row * whole[1] + block * columns});
  }
}

/// `config` as the file of its adapter has it: of a prompt's encoder what it makes.
GptConfig as_stored(GptConfig config) {
  config.adapter.set_encoded(true);
  return config;
}

/// All that is trained, in order of our parameters and their rows.
std::vector<AdapterTensor> adapter_tensors(const GptConfig& config) {
  std::vector<AdapterTensor> tensors;
  std::int64_t block = 0;
  for (const ParameterSpec& spec : pretrained::parameters_of(config)) {
    if (!spec.trainable) continue;
    if (config.adapter.prefix() != nullptr) {
      add_prefix(config, spec, block++, tensors);
      continue;
    }
    if (spec.name == kPromptParameter) {  // without a prefix
      tensors.push_back({.name = spec.name, .parameter = spec.name, .part = {.shape = spec.shape}});
      continue;
    }
    if (is_adapter_parameter(spec.name)) {
      tensors.push_back(
          {.name = std::string(kPrefix) + published_name(config, spec.name),
           .parameter = spec.name,
           .part = {.shape = spec.shape, .transposed = spec.name.ends_with(".lora_embedding_A")}});
      continue;
    }
    for (const PublishedPart& part : published_parts(config, spec.name, spec.shape[0])) {
      tensors.push_back({.name = std::string(kPrefix) + published_name(config, part.name),
                         .parameter = spec.name,
                         .part = {.shape = spec.shape.with(0, part.rows),
                                  .transposed = pretrained::is_conv1d(spec.name)}});
    }
  }
  return tensors;
}

std::string listed(const std::vector<std::string>& names) {
  constexpr std::size_t kMost = 6;
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kMost); ++i) text += "\n  " + names[i];
  if (names.size() > kMost) text += concat("\n  and ", names.size() - kMost, " more");
  return text;
}

/// Both lists in one error: a folder with another prefix has all names in both.
void require_same_names(const std::vector<AdapterTensor>& wanted,
                        const std::map<std::string, SafetensorsEntry>& found,
                        const std::string& path) {
  std::vector<std::string> missing, unknown;
  std::set<std::string_view> names;
  for (const AdapterTensor& tensor : wanted) {
    names.insert(tensor.name);
    if (!found.contains(tensor.name)) missing.push_back(tensor.name);
  }
  for (const auto& [name, entry] : found) {
    if (!names.contains(name)) unknown.push_back(name);
  }
  if (missing.empty() && unknown.empty()) return;
  fail(ErrorCode::kConfig, "'", path, "' is not the adapter of ", kConfigFile,
       " and this model; is the base another model?",
       missing.empty() ? "" : concat("\nTensors that are missing:", listed(missing)),
       unknown.empty() ? "" : concat("\nTensors that belong to no module:", listed(unknown)));
}

/// The name in PEFT's file: in a model's own state, names have the adapter's, "default", in them.
std::string saved_name(std::string name) {
  constexpr std::string_view kMagnitudes = ".lora_magnitude_vector.default.weight";
  if (name.ends_with(kMagnitudes)) {  // a module in the model, and a tensor in the file
    return name.substr(0, name.size() - std::string_view(".default.weight").size());
  }
  for (const std::string_view part :
       {"lora_A", "lora_B", "lora_embedding_A", "lora_embedding_B", "ia3_l", "modules_to_save"}) {
    const std::string in_model = concat(".", part, ".default");
    const std::size_t at = name.find(in_model);
    const std::size_t end = at + in_model.size();
    if (at == std::string::npos || (end < name.size() && name[end] != '.')) continue;
    const bool is_copy = part == "modules_to_save";
    name.replace(at, in_model.size(), is_copy ? "" : concat(".", part));
  }
  return name;
}

/// PEFT writes the matrix of an embedding or a head beside its adapters. It must be the base's, and
/// is taken out of `found`.
void drop_base_layers(const PretrainedGpt& base, const InputFile& file, const std::string& path,
                      std::map<std::string, SafetensorsEntry>& found) {
  const GptConfig& config = base.config();
  const std::string embedding(embedding_name(config)), head = adapter::head_matrix(config).name;
  for (const std::string& parameter : {embedding, head}) {
    const std::string module = parameter.substr(0, parameter.rfind('.'));
    const auto entry =
        found.find(concat(kPrefix, published_name(config, module), ".base_layer.weight"));
    if (entry == found.end()) continue;
    const Part part = pretrained::found_part({.shape = Shape{config.vocab_size, config.width}}, 0,
                                             entry->second, path, kConfigFile);
    constexpr std::int64_t kChunk = std::int64_t{1} << 20;
    std::vector<float> theirs, ours;
    for (std::int64_t first = 0; first < part.shape.numel(); first += kChunk) {
      theirs.resize(static_cast<std::size_t>(std::min(kChunk, part.shape.numel() - first)));
      ours.resize(theirs.size());
      pretrained::read_part(file, part, first, theirs);
      pretrained::read_base(base, config.tie_embedding ? embedding : parameter, first, ours);
      require(theirs == ours, ErrorCode::kConfig, "'", path, "': tensor '", entry->first,
              "' is another matrix than the base's '", parameter,
              "'; give the base of which the adapter was trained, with the same tokens");
    }
    found.erase(entry);
  }
}

void add_weights(PretrainedGpt::Files& files, const PretrainedGpt& base, const std::string& path) {
  const InputFile& file = files.files.emplace_back(path);
  std::map<std::string, SafetensorsEntry> found;
  for (SafetensorsEntry& entry : read_safetensors_header(file).tensors) {
    std::string name = saved_name(entry.name);
    if (found.contains(name)) name = entry.name;
    found[name] = std::move(entry);
  }
  if (files.config.adapter.lora() != nullptr) drop_base_layers(base, file, path, found);
  const std::vector<AdapterTensor> wanted = adapter_tensors(files.config);
  require_same_names(wanted, found, path);
  for (const AdapterTensor& tensor : wanted) files.places.erase(tensor.parameter);
  for (const ParameterSpec& spec : pretrained::parameters_of(files.config)) {
    if (spec.trainable) files.places[spec.name] = {.shape = spec.shape};
    if (spec.trainable) files.fresh.erase(spec.name);
  }
  for (const AdapterTensor& tensor : wanted) {
    Part part = tensor.part;
    if (tensor.whole.rank() > 0) part.shape = tensor.whole;
    part = pretrained::found_part(part, files.files.size() - 1, found.at(tensor.name), path,
                                  kConfigFile);
    part.shape = tensor.part.shape;
    part.offset += tensor.element * pretrained::size_of(part.format);
    files.places[tensor.parameter].parts.push_back(part);
  }
}

/// Adapters that no file has.
void add_fresh(PretrainedGpt::Files& files) {
  for (const ParameterSpec& spec : pretrained::parameters_of(files.config)) {
    if (!files.places.contains(spec.name)) files.fresh.insert(spec.name);
  }
}

/// The base of an adapter that classifies. A base that writes text gets as many labels, which have
/// no names, as the adapter's head has rows.
PretrainedGpt with_labels_of(const PretrainedGpt& base, const std::string& config,
                             const std::string& path) {
  const auto object = nlohmann::json::parse(config, nullptr, false);
  const bool classifies =
      object.is_object() && object.contains("task_type") && object.at("task_type") == "SEQ_CLS";
  if (!classifies || !base.config().labels.empty() || !has_adapter_weights(path)) return base;
  const InputFile file((fs::path(path) / kWeightsFile).string());
  for (const SafetensorsEntry& entry : read_safetensors_header(file).tensors) {
    const std::string head = concat(".", family_of(base.config()).classifier, ".weight");
    const bool is_head = entry.name.ends_with(head) && entry.shape.rank() == 2;
    if (is_head) return with_labels(base, numbered_labels(entry.shape[0]));
  }
  return base;
}

fs::path config_path(const std::string& path) {
  std::error_code error;
  return fs::is_directory(path, error) ? fs::path(path) / kConfigFile : fs::path(path);
}

}  // namespace

PretrainedGpt with_adapter(const PretrainedGpt& base, const AdapterConfig& adapter) {
  const PromptOptions* const prompt = adapter.prompt();
  require(prompt == nullptr || prompt->initialization == "RANDOM", ErrorCode::kConfig,
          "prompt_tuning_init is \"", prompt == nullptr ? "" : prompt->initialization,
          "\", which is not built for new prompts; set it to \"RANDOM\", or give the folder of a "
          "prompt that PEFT has begun");
  auto files = copy_of_base(base, base.files());
  files->config.adapter = adapter;
  files->config.adapter.set_encoded(false);  // as a file for inference has it
  files->format +=
      concat(", to which is new: ", adapter::row_of(adapter).described(files->config.adapter));
  derive(*files, base, true);
  add_fresh(*files);
  return PretrainedGpt(std::move(files));
}

bool has_adapter_weights(const std::string& path) {
  std::error_code error;
  return fs::is_directory(path, error) && fs::exists(fs::path(path) / kWeightsFile, error);
}

PretrainedGpt open_adapter(const PretrainedGpt& given, const std::string& path) {
  const fs::path config_file = config_path(path);
  std::error_code error;
  require(fs::exists(config_file, error), ErrorCode::kNotFound, "'", config_file.string(),
          "' does not exist; name a folder as PEFT writes it, with ", kConfigFile, " and ",
          kWeightsFile, ", or an ", kConfigFile);
  std::ifstream in(config_file, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  require(static_cast<bool>(in), ErrorCode::kIo, "cannot read '", config_file.string(), "'");
  const PretrainedGpt base = with_labels_of(given, text.str(), path);
  const AdapterConfig adapter = parse_adapter_json(text.str(), config_file.string(), base.config());
  if (!has_adapter_weights(path)) return with_adapter(base, adapter);
  auto files = copy_of_base(base, base.files());
  files->config.adapter = adapter;
  files->config = as_stored(files->config);
  files->format += concat(", with ", adapter::row_of(adapter).described(files->config.adapter),
                          " from '", path, "'");
  add_weights(*files, base, (fs::path(path) / kWeightsFile).string());
  derive(*files, base, false);
  return PretrainedGpt(std::move(files));
}

PretrainedWriter write_adapter(const std::string& path, const GptConfig& trained,
                               const std::string& base, const CompanionFiles& files,
                               Storage& storage) {
  const std::string folder = pretrained::without_slash(path);
  pretrained::require_absent(folder);
  const GptConfig config = as_stored(trained);
  std::vector<AdapterTensor> tensors = adapter_tensors(config);
  std::vector<SafetensorsEntry> entries;
  std::ranges::stable_sort(tensors, {}, &AdapterTensor::name);  // as PEFT's own files have them
  for (const AdapterTensor& tensor : tensors) {
    if (!entries.empty() && entries.back().name == tensor.name) continue;  // another row of it
    entries.push_back({.name = tensor.name,
                       .dtype = std::string(safetensors_dtype(DType::kFloat32)),
                       .shape = tensor.shape()});
  }
  const std::string header = safetensors_header(entries, {{"format", "pt"}});
  auto made = std::make_unique<PretrainedWriter::Target>(
      PretrainedWriter::Target{.storage = storage,
                               .path = folder,
                               .temporary = folder + ".tmp",
                               .file = {},
                               .is_folder = true,
                               .places = {}});
  PretrainedWriter::Target& target = *made;
  std::map<std::string, std::int64_t> offsets;
  for (const SafetensorsEntry& entry : entries) offsets[entry.name] = entry.begin;
  for (AdapterTensor& tensor : adapter_tensors(config)) {  // in order of rows
    constexpr std::int64_t kBytes = 4;                     // of an fp32
    tensor.part.offset = offsets.at(tensor.name) + tensor.element * kBytes;
    target.places[tensor.parameter].parts.push_back(std::move(tensor.part));
  }
  for (const ParameterSpec& spec : pretrained::parameters_of(config)) {
    spec.trainable ? void(target.places.at(spec.name).shape = spec.shape)
                   : void(target.left_out.insert(spec.name));
  }
  if (gpt::PromptFold::folds(trained)) target.fold = std::make_unique<gpt::PromptFold>(trained);
  PretrainedWriter writer(std::move(made));
  storage.remove(target.temporary);
  storage.make_folder(target.temporary);
  write_file(storage, target.temporary + "/" + kConfigFile,
             to_adapter_json(config.adapter, config, base, 2) + "\n");
  write_files(storage, target.temporary, tokenizer_files_in(files));
  target.file = storage.create(target.temporary + "/" + kWeightsFile, entries.back().end);
  target.file->write(0, std::as_bytes(std::span(header)));
  return writer;
}

namespace {

/// rows (O, I) += scale * b (O, R) a (R, I).
void add_product(std::span<float> rows, std::span<const float> b, std::span<const float> a,
                 std::size_t rank, float scale) {
  const std::size_t inputs = a.size() / rank;
  std::vector<float> delta(inputs);
  for (std::size_t o = 0; o < b.size() / rank; ++o) {
    std::ranges::fill(delta, 0.0F);
    for (std::size_t r = 0; r < rank; ++r) {
      const float factor = b[o * rank + r];
      for (std::size_t i = 0; i < inputs; ++i) delta[i] += factor * a[r * inputs + i];
    }
    for (std::size_t i = 0; i < inputs; ++i) rows[o * inputs + i] += scale * delta[i];
  }
}

using adapter::ModuleAdapter;

/// rows (O, I), each times its magnitude / its norm: DoRA's.
void rescale_rows(std::span<float> rows, std::span<const float> magnitudes) {
  const std::size_t columns = rows.size() / magnitudes.size();
  const std::vector<float> norms = adapter::row_norms(rows, columns);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i] *= magnitudes[i / columns] / norms[i / columns];
  }
}

/// Applies an adapter to a module's rows of its matrix (outputs, inputs) or of its bias (outputs).
void merge(const PretrainedGpt& adapted, const ModuleAdapter& adapter, const Shape& shape,
           std::span<float> values) {
  std::vector<std::vector<float>> own;
  for (const ParameterSpec& spec : adapter.parameters) {
    own.emplace_back(static_cast<std::size_t>(spec.shape.numel()));
    adapted.read(spec.name, own.back());
  }
  const bool is_bias = shape.rank() == 1;
  const auto columns = static_cast<std::size_t>(is_bias ? 1 : shape[1]);
  const auto count = static_cast<std::size_t>(adapter.module.rows);
  const std::span<float> rows =
      values.subspan(static_cast<std::size_t>(adapter.module.first_row) * columns, count * columns);
  if (adapter.place == ModuleAdapter::Place::kOutput) {
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i] *= own[0][i / columns];
  } else if (!is_bias && adapter.place == ModuleAdapter::Place::kInput) {
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i] *= own[0][i % columns];
  } else if (adapter.place == ModuleAdapter::Place::kRows) {
    const std::size_t rank = own[0].size() / count;
    std::vector<float> b(own[1].size());  // (r, inputs)
    for (std::size_t i = 0; i < b.size(); ++i) b[i % rank * columns + i / rank] = own[1][i];
    add_product(rows, own[0], b, rank, adapter.scale);
  } else if (!is_bias) {
    add_product(rows, own[1], own[0], own[0].size() / columns, adapter.scale);
    if (adapter.has_magnitudes) rescale_rows(rows, own[2]);
  }
}

/// An adapter of a tied embedding or head changes one of them, and their matrix is both.
void require_apart(const PretrainedGpt& adapted) {
  const GptConfig& config = adapted.config();
  if (!config.tie_embedding || !config.labels.empty()) return;
  ParameterSpec embedding = adapter::head_matrix(config);
  embedding.name = embedding_name(config);
  for (const ParameterSpec& matrix : {adapter::head_matrix(config), embedding}) {
    require(adapter::module_adapters(config, matrix).empty(), ErrorCode::kConfig,
            "the adapter changes '", matrix.name, "' of '", adapted.path(),
            "', and embedding and head are one matrix in this model: merged, the other would "
            "change, too; keep its folder and give it with `adapter`");
  }
}

/// The matrix that a parameter is, or is the bias of; null: neither.
const ParameterSpec* matrix_of(const ParameterSpec& spec,
                               const std::vector<ParameterSpec>& parameters) {
  constexpr std::string_view kBias = ".bias";
  if (spec.shape.rank() == 2) return &spec;
  if (!spec.name.ends_with(kBias)) return nullptr;
  const std::string name = spec.name.substr(0, spec.name.size() - kBias.size()) + ".weight";
  const auto found = std::ranges::find(parameters, name, &ParameterSpec::name);
  return found != parameters.end() && found->shape.rank() == 2 ? &*found : nullptr;
}

}  // namespace

void write_merged(const PretrainedGpt& adapted, PretrainedWriter& target) {
  require(
      !adapted.config().adapter.is_prompt(), ErrorCode::kConfig, "the adapter of '", adapted.path(),
      "' is a tuned prompt or prefix, which is no part of any matrix and cannot be merged; keep "
      "its folder and give it with `adapter`");
  require_apart(adapted);
  GptConfig plain = adapted.config();
  plain.adapter = {};
  plain.base_format = WeightFormat::kNone;
  const std::vector<ParameterSpec> parameters = pretrained::parameters_of(plain);
  for (const ParameterSpec& spec : parameters) {
    std::vector<float> values(static_cast<std::size_t>(spec.shape.numel()));
    adapted.read(spec.name, values);
    if (const ParameterSpec* const matrix = matrix_of(spec, parameters)) {
      for (const ModuleAdapter& adapter : adapter::module_adapters(adapted.config(), *matrix)) {
        merge(adapted, adapter, spec.shape, values);
      }
    }
    const bool finite = std::ranges::all_of(values, [](float v) { return std::isfinite(v); });
    require(finite, ErrorCode::kConfig, "'", adapted.path(), "': parameter '", spec.name,
            "' is not finite once the adapters are merged");
    target.write(spec.name, values);
  }
}

}  // namespace tessera
