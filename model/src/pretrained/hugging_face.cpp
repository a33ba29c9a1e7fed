#include "tessera/model/hugging_face.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "gpt_config.h"
#include "pretrained/encoder_tensors.h"
#include "pretrained/hugging_face_config.h"
#include "pretrained/quantization_config.h"
#include "pretrained/quantized_part.h"
#include "pretrained/sequence_labels.h"
#include "pretrained/stored_gpt.h"
#include "published_parts.h"
#include "strict_json.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/core/error.h"
#include "tessera/model/gpt_family.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using pretrained::found_part;
using pretrained::parameters_of;
using pretrained::Part;
using pretrained::Place;
using pretrained::stored_shape;
using pretrained::StoredTensors;

constexpr std::int64_t kMostIndexBytes = 100'000'000;
constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kConfigFile = "config.json";
constexpr const char* kIndexFile = "model.safetensors.index.json";
constexpr const char* kDownloadAgain = "; download or write all of the folder's files again";

/// Names in the folder; the head has no prefix.
std::string stored_name(const std::string& name, std::string_view prefix) {
  return is_of_head(name) ? name : std::string(prefix) + name;
}

/// Causal masks and rotary frequencies, which old files have as tensors.
bool is_buffer(std::string_view name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
         name.ends_with(".rotary_emb.inv_freq");
}

/// A tensor of the folder that has a parameter or some of its rows.
struct StoredPart {
  std::string name;  ///< without prefix
  Part part;         ///< its shape alone
};

/// Where a parameter lies in a folder, in order of its rows.
std::vector<StoredPart> stored_parts(const GptConfig& config, const ParameterSpec& spec) {
  std::vector<StoredPart> all;
  for (PublishedPart& part : published_parts(config, spec.name, spec.shape[0])) {
    all.push_back(
        {std::move(part.name),
         {.shape = spec.shape.with(0, part.rows), .transposed = pretrained::is_conv1d(spec.name)}});
  }
  return all;
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

/// A folder may have the head's matrix although it is the token embedding: then it must be that.
void check_tied_head(const StoredTensors& tensors, std::string_view matrix,
                     const std::string& embedding, const std::vector<InputFile>& files,
                     const fs::path& folder) {
  const auto head = tensors.find(matrix);
  if (head == tensors.end()) return;
  const pretrained::StoredTensor &a = head->second, &b = tensors.find(embedding)->second;
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
  require(same, ErrorCode::kConfig, "'", folder.string(), "': the tensor '", matrix, "' is not '",
          embedding,
          "', and by config.json they are one; if the model has a head of its own, set "
          "tie_word_embeddings to false there");
}

/// A part whose tensor is there.
Part found_part_of(const Part& part, const std::string& name, WeightFormat format,
                   const StoredTensors& tensors, const std::vector<InputFile>& files,
                   std::set<std::string>& used) {
  const pretrained::StoredTensor& found = tensors.find(name)->second;
  const std::string& dtype = found.entry.dtype;
  const bool scaled = pretrained::has_scales(tensors, name);
  require(!scaled || format != WeightFormat::kNone, ErrorCode::kConfig, "'",
          files[found.file].path(), "': tensor '", name,
          "' is quantised, and config.json has no quantization_config", kDownloadAgain);
  const bool codes = dtype == "U8" || dtype == "I8" || scaled;
  if (codes && format != WeightFormat::kNone) {
    return pretrained::found_quantized_part(part, name, format, tensors, files, used);
  }
  used.insert(name);
  return found_part(part, found.file, found.entry, files[found.file].path(), "config.json");
}

/// A tensor that is to be written: the first of a part.
struct NewTensor {
  SafetensorsEntry entry;
  std::size_t part = 0;   ///< index
  std::size_t place = 0;  ///< among the part's
};

/// In the order of transformers' own files, but for wider elements, which come first.
std::vector<NewTensor> new_tensors(const std::vector<std::pair<ParameterSpec, StoredPart>>& parts,
                                   const GptConfig& config, const HuggingFaceOptions& options) {
  const WeightFormat format = options.format;
  const std::string_view prefix = family_of(config).prefix;
  std::vector<NewTensor> all;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto& [spec, stored] = parts[i];
    const std::string name = stored_name(stored.name, prefix);
    std::vector<SafetensorsEntry> entries{{.name = name,
                                           .dtype = std::string(safetensors_dtype(options.dtype)),
                                           .shape = stored_shape(stored.part)}};
    const bool left_out =
        std::ranges::find(config.unquantized, spec.name) != config.unquantized.end();
    if (format != WeightFormat::kNone && pretrained::is_block_matrix(spec) && !left_out) {
      entries = pretrained::quantized_entries(name, stored.part.shape, format);
    }
    for (std::size_t e = 0; e < entries.size(); ++e) all.push_back({std::move(entries[e]), i, e});
  }
  std::ranges::sort(all, {}, [](const NewTensor& tensor) {
    return std::pair(-safetensors_dtype_bits(tensor.entry.dtype), tensor.entry.name);
  });
  return all;
}

pretrained::Format format_of(DType dtype) {
  require(is_compute_dtype(dtype), ErrorCode::kInvalidArgument,
          "a Hugging Face folder is written in fp32, bf16 or fp16, not in ", to_string(dtype));
  using pretrained::Format;
  if (dtype == DType::kBFloat16) return Format::kBFloat16;
  return dtype == DType::kFloat16 ? Format::kFloat16 : Format::kFloat32;
}

CompanionFiles new_companions(const GptConfig& config, const HuggingFaceOptions& options) {
  CompanionFiles files = options.files;
  const std::string* const source = find_file(files, kConfigFile);
  set_file(files, kConfigFile,
           source != nullptr
               ? pretrained::adapted_config(*source, config, options.format)
               : pretrained::hugging_face_config(config, options.format, usual_end_token(config)));
  name_dtype(files, options.dtype);
  return files;
}

}  // namespace

GptConfig hugging_face_config_of(const std::string& folder) {
  std::error_code error;
  const fs::path file = fs::path(folder) / "config.json";
  require(fs::exists(file, error), ErrorCode::kNotFound, "'", folder,
          "' has no config.json, so it is no Hugging Face folder of a model; name the folder that "
          "has config.json and ",
          kSingleFile);
  return pretrained::read_hugging_face_config(file.string());
}

std::vector<std::int32_t> end_tokens_of(const std::string& folder) {
  for (const char* name : {"generation_config.json", "config.json"}) {
    std::error_code error;
    const fs::path file = fs::path(folder) / name;
    if (!fs::exists(file, error)) continue;
    std::vector<std::int32_t> tokens = pretrained::end_tokens_in(file.string());
    if (!tokens.empty()) return tokens;
  }
  return {};
}

PretrainedGpt open_hugging_face(const std::string& folder) {
  auto model = std::make_shared<PretrainedGpt::Files>();
  model->path = folder;
  const fs::path root(folder);
  model->config = hugging_face_config_of(folder);
  const StoredTensors tensors = read_tensors(root, model->files);
  const FamilyRow& family = family_of(model->config);
  const std::string embedding(embedding_name(model->config));
  const bool prefixed = std::ranges::any_of(
      tensors, [&](const auto& entry) { return entry.first.starts_with(family.prefix); });
  // Files may have either name of a matrix that is both.
  const bool is_tied = model->config.tie_embedding && model->config.labels.empty();
  const std::string head(pretrained::head_matrix(model->config));
  const bool only_head = is_tied && tensors.contains(head) &&
                         !tensors.contains(stored_name(embedding, prefixed ? family.prefix : ""));
  const std::string_view prefix = prefixed ? family.prefix : "";
  // Before a config.json of a million layers takes memory.
  require(static_cast<std::size_t>(model->config.layers) <= tensors.size(), ErrorCode::kConfig, "'",
          folder, "' has ", tensors.size(), " tensors, too few for the layers of config.json, ",
          model->config.layers, kDownloadAgain);
  std::set<std::string> used, dtypes;
  std::size_t count = 0;
  model->stored_format = pretrained::quantization_in((root / "config.json").string());
  const bool has_head =
      std::ranges::any_of(tensors, [](const auto& entry) { return is_of_head(entry.first); });
  std::vector<ParameterSpec> specs = parameters_of(model->config);
  for (ParameterSpec& spec : pretrained::pooler_of(model->config)) {
    if (tensors.contains(stored_name(spec.name, prefix))) specs.push_back(std::move(spec));
  }
  for (const ParameterSpec& spec : specs) {
    if (pretrained::begins_anew(model->config, spec.name, has_head)) {
      model->fresh.insert(spec.name);
      continue;
    }
    Place place{.shape = spec.shape};
    for (const StoredPart& stored : stored_parts(model->config, spec)) {
      const std::string name = pretrained::tensor_name(
          tensors, model->config,
          only_head && spec.name == embedding ? head : stored_name(stored.name, prefix));
      const auto tensor = tensors.find(name);
      require(tensor != tensors.end(), ErrorCode::kConfig, "'", folder, "' has no tensor '", name,
              "', which the model of config.json has", kDownloadAgain);
      place.parts.push_back(
          found_part_of(stored.part, name, model->stored_format, tensors, model->files, used));
      ++count;
      dtypes.insert(tensor->second.entry.dtype);
    }
    model->places[spec.name] = std::move(place);
  }
  if (is_tied && !only_head) {
    check_tied_head(tensors, head, stored_name(embedding, prefix), model->files, root);
    used.insert(head);
  }
  const std::string architecture = pretrained::architecture_of(model->config);
  for (const auto& [name, tensor] : tensors) {
    const bool is_beside = is_buffer(name) || pretrained::is_beside_encoder(model->config, name);
    require(used.contains(name) || is_beside, ErrorCode::kConfig, "'",
            model->files[tensor.file].path(), "' has the tensor '", name, "', which a ",
            architecture,
            " of this config.json does not have; to leave it out, load and save the model with "
            "transformers' ",
            architecture);
  }
  model->format = concat("a Hugging Face folder: ", count, " tensors,");
  for (const std::string& dtype : dtypes) model->format += " " + dtype;
  if (!model->fresh.empty()) model->format += ", with a new head for masked tokens";
  if (model->stored_format != WeightFormat::kNone) {
    const auto has_codes = [](const Part& part) {
      return part.quantized.format != WeightFormat::kNone;
    };
    const bool any = std::ranges::any_of(model->places, [&](const auto& place) {
      return std::ranges::any_of(place.second.parts, has_codes);
    });
    require(any, ErrorCode::kConfig, "'", folder, "': quantization_config is of ",
            to_string(model->stored_format),
            ", and no tensor is quantised; remove the key from config.json, and give "
            "`base_format`");
    model->format += concat(", quantised to ", to_string(model->stored_format));
  }
  return PretrainedGpt(std::move(model));
}

std::optional<std::int32_t> usual_end_token(const GptConfig& config) {
  constexpr std::int32_t kEndOfText = 50256, kMostPadded = 50432;
  const bool is_gpt2 = config.family == GptFamily::kGpt2 && config.vocab_size > kEndOfText &&
                       config.vocab_size <= kMostPadded;
  return is_gpt2 ? std::optional(kEndOfText) : std::nullopt;
}

std::string new_hugging_face_config(const GptConfig& config,
                                    std::optional<std::int32_t> end_token) {
  GptConfig plain = config;
  plain.adapter = {};
  return pretrained::hugging_face_config(plain, WeightFormat::kNone, end_token);
}

PretrainedWriter write_hugging_face(const std::string& path, const GptConfig& config,
                                    Storage& storage, const HuggingFaceOptions& options) {
  require(!config.adapter.is_set(), ErrorCode::kInvalidArgument,
          "a model with adapters is written by write_adapter, or without them");
  const std::string folder = pretrained::without_slash(path);
  pretrained::require_absent(folder);
  std::vector<std::pair<ParameterSpec, StoredPart>> parts;
  for (const ParameterSpec& spec : parameters_of(config)) {
    for (StoredPart& part : stored_parts(config, spec)) {
      parts.emplace_back(spec, std::move(part));
    }
  }
  const std::vector<NewTensor> tensors = new_tensors(parts, config, options);
  std::vector<SafetensorsEntry> entries;
  for (const NewTensor& tensor : tensors) entries.push_back(tensor.entry);
  const std::string header = safetensors_header(entries, {{"format", "pt"}});
  auto made = std::make_unique<PretrainedWriter::Target>(
      PretrainedWriter::Target{.storage = storage,
                               .path = folder,
                               .temporary = folder + ".tmp",
                               .file = {},
                               .is_folder = true,
                               .places = {}});
  PretrainedWriter::Target& target = *made;
  std::vector<std::vector<SafetensorsEntry>> of_part(parts.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    auto& own = of_part[tensors[i].part];
    own.resize(std::max(own.size(), tensors[i].place + 1));
    own[tensors[i].place] = entries[i];
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto& [spec, stored] = parts[i];
    Place& place = target.places[spec.name];
    place.shape = spec.shape;
    place.parts.push_back(stored.part);
    place.parts.back().offset = of_part[i].front().begin;
    place.parts.back().format = format_of(options.dtype);
    if (of_part[i].size() > 1) {
      place.parts.back() = pretrained::placed_part(stored.part, options.format, of_part[i]);
    }
  }
  PretrainedWriter writer(std::move(made));  // removes the folder if what follows fails
  storage.remove(target.temporary);          // left by a crash
  storage.make_folder(target.temporary);
  write_files(storage, target.temporary, new_companions(config, options));
  target.file = storage.create(target.temporary + "/" + kSingleFile, entries.back().end);
  target.file->write(0, std::as_bytes(std::span(header)));
  for (const auto& [name, place] : target.places) {
    for (const Part& part : place.parts) pretrained::write_tables(*target.file, part);
  }
  return writer;
}

}  // namespace tessera
