#include "tessera/model/hugging_face.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <utility>

#include "pretrained/hugging_face_config.h"
#include "pretrained/stored_gpt.h"
#include "strict_json.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using pretrained::Format;
using pretrained::Place;

constexpr std::int64_t kMostIndexBytes = 100'000'000;
constexpr std::string_view kPrefix = "transformer.";
constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";
constexpr const char* kDownloadAgain = "; download or write all of the folder's files again";

struct StoredTensor {
  std::size_t file = 0;
  SafetensorsEntry entry;
};
using StoredTensors = std::map<std::string, StoredTensor, std::less<>>;

/// Our parameters, those of all layers.
std::vector<ParameterSpec> parameters_of(const GptConfig& config) {
  std::vector<ParameterSpec> all;
  for (const auto& layer : make_gpt(config).layers) {
    all.insert(all.end(), layer->parameters().begin(), layer->parameters().end());
  }
  return all;
}

/// Names in the folder; the head has no prefix.
std::string stored_name(const std::string& name, std::string_view prefix) {
  return name.starts_with("lm_head.") ? name : std::string(prefix) + name;
}

Shape stored_shape(const ParameterSpec& spec) {
  return pretrained::is_conv1d(spec.name) ? Shape{spec.shape[1], spec.shape[0]} : spec.shape;
}

/// Causal masks, which old files have as tensors.
bool is_mask(std::string_view name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
}

/// Which file has which tensor, by an index; nothing if one file has all.
std::map<std::string, std::string> read_index(const fs::path& path) {
  const nlohmann::json index = data::read_strict_json(path.string(), kMostIndexBytes);
  const bool has_map = index.is_object() && index.contains("weight_map") &&
                       index.at("weight_map").is_object() && !index.at("weight_map").empty();
  require(has_map, ErrorCode::kConfig, "'", path.string(), "' has no weight_map", kDownloadAgain);
  std::map<std::string, std::string> files;
  for (const auto& [name, file] : index.at("weight_map").items()) {
    const std::string text = file.is_string() ? file.get<std::string>() : "";
    require(text.ends_with(".safetensors") && text.find('/') == std::string::npos,
            ErrorCode::kConfig, "'", path.string(), "': tensor ",
            nlohmann::json(name).dump(-1, ' ', true), " is in ", file.dump(-1, ' ', true),
            ", which is not the name of a .safetensors file of this folder");
    files.emplace(name, text);
  }
  return files;
}

/// Opens the files and reads their headers.
StoredTensors read_tensors(const fs::path& folder, std::vector<InputFile>& files) {
  std::map<std::string, std::string> index;
  std::set<std::string> names{kSingleFile};
  std::error_code error;
  if (!fs::exists(folder / kSingleFile, error)) {
    require(fs::exists(folder / kIndexFile, error), ErrorCode::kNotFound, "'", folder.string(),
            "' has neither ", kSingleFile, " nor ", kIndexFile,
            "; of a folder with pytorch_model.bin make one with transformers: "
            "AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(OTHER)");
    index = read_index(folder / kIndexFile);
    names.clear();
    for (const auto& [name, file] : index) names.insert(file);
  }
  StoredTensors tensors;
  for (const std::string& name : names) {
    const InputFile& file = files.emplace_back((folder / name).string());
    for (SafetensorsEntry& entry : read_safetensors_header(file).tensors) {
      const auto listed = index.find(entry.name);
      require(index.empty() || (listed != index.end() && listed->second == name),
              ErrorCode::kConfig, "'", file.path(), "' has the tensor '", entry.name, "', and by ",
              kIndexFile, " it is ", listed == index.end() ? "in no file" : "in " + listed->second,
              kDownloadAgain);
      const std::string key = entry.name;
      tensors[key] = {.file = files.size() - 1, .entry = std::move(entry)};
    }
  }
  for (const auto& [name, file] : index) {
    require(tensors.contains(name), ErrorCode::kConfig, "'", (folder / file).string(),
            "' does not have the tensor '", name, "', and ", kIndexFile, " says so",
            kDownloadAgain);
  }
  return tensors;
}

std::optional<Format> format_of(std::string_view dtype) {
  if (dtype == "F32") return Format::kFloat32;
  if (dtype == "F16") return Format::kFloat16;
  if (dtype == "BF16") return Format::kBFloat16;
  return std::nullopt;
}

/// A parameter's place, if the tensor is what config.json says.
Place place_of(const ParameterSpec& spec, const StoredTensor& tensor, const InputFile& file) {
  const SafetensorsEntry& entry = tensor.entry;
  require(entry.shape == stored_shape(spec), ErrorCode::kConfig, "'", file.path(), "': tensor '",
          entry.name, "' has the shape ", entry.shape, ", and by config.json it is ",
          stored_shape(spec), "; one of the two is of another model", kDownloadAgain);
  const auto format = format_of(entry.dtype);
  require(format.has_value(), ErrorCode::kConfig, "'", file.path(), "': tensor '", entry.name,
          "' is ", entry.dtype, "; F32, F16 and BF16 can be read: write the model in one of them");
  return {.shape = spec.shape,
          .file = tensor.file,
          .offset = entry.begin,
          .format = *format,
          .transposed = pretrained::is_conv1d(spec.name)};
}

/// A folder may have the head's matrix although it is the token embedding: then it must be that.
void check_tied_head(const StoredTensors& tensors, const std::string& embedding,
                     const std::vector<InputFile>& files, const fs::path& folder) {
  const auto head = tensors.find("lm_head.weight");
  if (head == tensors.end()) return;
  const StoredTensor &a = head->second, &b = tensors.find(embedding)->second;
  bool same = a.entry.dtype == b.entry.dtype && a.entry.shape == b.entry.shape;
  constexpr std::int64_t kPiece = 1 << 20;
  std::vector<std::byte> ours(kPiece), theirs(kPiece);
  for (std::int64_t at = 0; same && at < a.entry.bytes(); at += kPiece) {
    const auto count = static_cast<std::size_t>(std::min(kPiece, a.entry.bytes() - at));
    const auto x = std::span(ours).first(count), y = std::span(theirs).first(count);
    files[a.file].read(a.entry.begin + at, x);
    files[b.file].read(b.entry.begin + at, y);
    same = std::ranges::equal(x, y);
  }
  require(same, ErrorCode::kConfig, "'", folder.string(), "': the tensor 'lm_head.weight' is not '",
          embedding,
          "', and by config.json they are one; if the model has a head of its own, set "
          "tie_word_embeddings to false there");
}

}  // namespace

PretrainedGpt open_hugging_face(const std::string& folder) {
  auto model = std::make_shared<PretrainedGpt::Files>();
  model->path = folder;
  std::error_code error;
  const fs::path root(folder);
  require(fs::exists(root / "config.json", error), ErrorCode::kNotFound, "'", folder,
          "' has no config.json, so it is no Hugging Face folder of a model; name the folder that "
          "has config.json and ",
          kSingleFile);
  model->config = pretrained::read_hugging_face_config((root / "config.json").string());
  const StoredTensors tensors = read_tensors(root, model->files);
  const std::string_view prefix = tensors.contains("transformer.wte.weight") ? kPrefix : "";
  // Before a config.json of a million layers takes memory.
  require(static_cast<std::size_t>(model->config.layers) <= tensors.size(), ErrorCode::kConfig, "'",
          folder, "' has ", tensors.size(), " tensors, too few for the n_layer of config.json, ",
          model->config.layers, kDownloadAgain);
  std::set<std::string> used, dtypes;
  for (const ParameterSpec& spec : parameters_of(model->config)) {
    const std::string name = stored_name(spec.name, prefix);
    const auto tensor = tensors.find(name);
    require(tensor != tensors.end(), ErrorCode::kConfig, "'", folder, "' has no tensor '", name,
            "', which the model of config.json has", kDownloadAgain);
    model->places[spec.name] = place_of(spec, tensor->second, model->files[tensor->second.file]);
    used.insert(name);
    dtypes.insert(tensor->second.entry.dtype);
  }
  if (model->config.tie_embedding) {
    check_tied_head(tensors, stored_name("wte.weight", prefix), model->files, root);
    used.insert("lm_head.weight");
  }
  for (const auto& [name, tensor] : tensors) {
    require(used.contains(name) || is_mask(name), ErrorCode::kConfig, "'",
            model->files[tensor.file].path(), "' has the tensor '", name,
            "', which a GPT-2 of this config.json does not have; to leave it out, load and save "
            "the model with transformers' GPT2LMHeadModel");
  }
  model->format = concat("a Hugging Face folder: ", model->places.size(), " tensors,");
  for (const std::string& dtype : dtypes) model->format += " " + dtype;
  return PretrainedGpt(std::move(model));
}

PretrainedWriter write_hugging_face(const std::string& path, const GptConfig& config,
                                    Storage& storage) {
  const std::string folder = pretrained::without_slash(path);
  pretrained::require_absent(folder);
  std::vector<ParameterSpec> specs = parameters_of(config);
  // In the order of transformers' own files.
  std::ranges::sort(specs, {}, [](const ParameterSpec& s) { return stored_name(s.name, kPrefix); });
  std::vector<SafetensorsEntry> entries;
  for (const ParameterSpec& spec : specs) {
    entries.push_back({.name = stored_name(spec.name, kPrefix),
                       .dtype = std::string(safetensors_dtype(DType::kFloat32)),
                       .shape = stored_shape(spec)});
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
  for (std::size_t i = 0; i < specs.size(); ++i) {
    target.places[specs[i].name] = {.shape = specs[i].shape,
                                    .offset = entries[i].begin,
                                    .transposed = pretrained::is_conv1d(specs[i].name)};
  }
  PretrainedWriter writer(std::move(made));  // removes the folder if what follows fails
  storage.remove(target.temporary);          // left by a crash
  storage.make_folder(target.temporary);
  write_file(storage, target.temporary + "/config.json", pretrained::hugging_face_config(config));
  target.file = storage.create(target.temporary + "/" + kSingleFile, entries.back().end);
  target.file->write(0, std::as_bytes(std::span(header)));
  return writer;
}

}  // namespace tessera
