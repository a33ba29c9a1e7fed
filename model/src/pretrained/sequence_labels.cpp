#include "pretrained/sequence_labels.h"

#include <algorithm>
#include <set>

#include "gpt_config.h"
#include "pretrained/stored_gpt.h"
#include "tessera/core/error.h"
#include "tessera/model/classification.h"

namespace tessera {
namespace pretrained {
namespace {

using nlohmann::json;

constexpr const char* kNames = "id2label";
constexpr const char* kCount = "num_labels";
constexpr std::string_view kSingle = "single_label_classification";

/// The names of an object {"0": "negative", ...}.
std::vector<std::string> names_of(const ConfigReader& reader) {
  const json names = reader.value(kNames, nullptr);
  std::vector<std::string> labels;
  for (std::size_t id = 0; names.is_object() && id < names.size(); ++id) {
    const auto found = names.find(std::to_string(id));
    if (found == names.end() || !found->is_string()) break;
    labels.push_back(found->get<std::string>());
  }
  if (!names.is_object() || labels.size() != names.size()) {
    reader.refuse(kNames, "must have a text for each of the ids \"0\", \"1\", ...");
  }
  return labels;
}

}  // namespace

std::string classifier_of(const FamilyRow& family) {
  constexpr std::string_view kModel = "Model";
  std::string name(family.base_class);
  name.resize(name.size() - kModel.size());
  return name + "ForSequenceClassification";
}

std::string architecture_of(const GptConfig& config) {
  const FamilyRow& family = family_of(config);
  return config.labels.empty() ? std::string(family.architecture) : classifier_of(family);
}

std::vector<std::string> read_labels(const ConfigReader& reader, const FamilyRow& family) {
  const json architectures = reader.value("architectures", nullptr);
  const bool classifies =
      architectures.is_array() &&
      std::ranges::find(architectures, json(classifier_of(family))) != architectures.end();
  if (!classifies) return {};
  reader.require_value("problem_type", {nullptr, std::string(kSingle)});
  constexpr std::int64_t kDefault = 2;  // of transformers
  std::vector<std::string> labels;
  if (reader.is_set(kNames)) {
    labels = names_of(reader);
  } else {
    labels = numbered_labels(reader.size(kCount, kDefault));
  }
  if (reader.is_set(kCount) && reader.size(kCount) != std::ssize(labels)) {
    reader.refuse(kCount, concat("id2label has ", labels.size(), " labels; leave one of them out"));
  }
  if (labels.size() < 2) {
    reader.refuse(reader.is_set(kNames) ? kNames : kCount,
                  "has one label, which is a regression to transformers; a classifier has at least "
                  "two");
  }
  return labels;
}

void write_labels(nlohmann::ordered_json& file, const GptConfig& config) {
  if (config.labels.empty()) return;
  nlohmann::ordered_json names = nlohmann::ordered_json::object();
  nlohmann::ordered_json ids = nlohmann::ordered_json::object();
  for (std::size_t id = 0; id < config.labels.size(); ++id) {
    names[std::to_string(id)] = config.labels[id];
    ids[config.labels[id]] = id;
  }
  file["architectures"] = nlohmann::ordered_json::array({architecture_of(config)});
  file[kNames] = std::move(names);
  file["label2id"] = std::move(ids);
  file.erase(kCount);
  file["problem_type"] = kSingle;
  // By it transformers finds where the texts of a batch end.
  const char* const padding = "pad_token_id";
  const auto value_of = [&](const char* key) {
    return file.contains(key) ? file.at(key) : nlohmann::ordered_json();
  };
  const nlohmann::ordered_json end = value_of("eos_token_id");
  if (!value_of(padding).is_null() || end.is_null()) return;
  if (end.is_array() && end.empty()) return;
  file[padding] = end.is_array() ? end.front() : end;
}

}  // namespace pretrained

std::vector<std::string> numbered_labels(std::int64_t count) {
  std::vector<std::string> labels;
  for (std::int64_t id = 0; id < count; ++id) labels.push_back(concat("LABEL_", id));
  return labels;
}

PretrainedGpt with_labels(const PretrainedGpt& base, std::vector<std::string> labels) {
  const std::vector<std::string>& own = base.config().labels;
  if (own == labels) return base;
  require(own.empty(), ErrorCode::kConfig, "'", base.path(), "' classifies ", own.size(),
          " labels already, '", own.empty() ? "" : own.front(),
          "' the first; leave out `labels`, or name the model that it was made of");
  require(!base.is_checkpoint(), ErrorCode::kConfig, "'", base.path(),
          "' is a checkpoint of a model that writes text; make a folder of it for a classifier to "
          "begin with: tessera checkpoint convert");
  require(!base.config().adapter.is_set(), ErrorCode::kConfig, "'", base.path(),
          "' has adapters of a model that writes text; merge them first: tessera checkpoint "
          "merge-adapter");
  const PretrainedGpt::Files& from = base.files();
  auto files = std::make_shared<PretrainedGpt::Files>();
  files->path = from.path;
  files->format = from.format + ", with a new head that classifies";
  files->config = from.config;
  files->config.labels = std::move(labels);
  for (const InputFile& file : from.files) files->files.emplace_back(file.path());
  files->places = from.places;
  files->stored_format = from.stored_format;
  std::set<std::string> own_names;
  // Refuses labels that do not fit.
  for (const ParameterSpec& spec : pretrained::parameters_of(files->config)) {
    own_names.insert(spec.name);
    if (!files->places.contains(spec.name)) files->fresh.insert(spec.name);
  }
  std::erase_if(files->places, [&](const auto& place) { return !own_names.contains(place.first); });
  return PretrainedGpt(std::move(files));
}

}  // namespace tessera
