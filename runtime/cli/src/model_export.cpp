#include "model_export.h"

#include <filesystem>

#include "tessera/core/error.h"
#include "tessera/model/adapter.h"
#include "tessera/model/hugging_face.h"
#include "tessera/trainer/output_file.h"

namespace tessera::cli {

Setting export_setting() {
  return {.name = "export",
          .help =
              "write the trained model to this new folder, as Hugging Face's transformers "
              "reads it; of a model with adapters these alone, as PEFT reads them",
          .group = "Checkpoints",
          .check = [](const nlohmann::json& value) {
            require(!value.get<std::string>().empty(), ErrorCode::kConfig,
                    "is empty; give a path, or leave it out");
          }};
}

namespace {

std::string text_of(const Config& config, const char* setting) {
  return config.is_null(setting) ? "" : config.get<std::string>(setting);
}

bool wants_full_state(const Config& config) {
  return config.get<std::string>("state_dict_type") == "full";
}

}  // namespace

void ModelExport::check(const Config& config) {
  require(
      !wants_full_state(config) || !config.is_typed("state_dict_type") || !config.is_null("save"),
      ErrorCode::kConfig,
      "--state-dict-type full writes a Hugging Face folder beside the checkpoints of --save, "
      "which is not given; for the folder alone, give --export FOLDER");
  const std::string folder = text_of(config, "export");
  if (folder.empty()) return;
  std::error_code error;
  require(!std::filesystem::exists(std::filesystem::symlink_status(folder, error)),
          ErrorCode::kConfig, "--export: '", folder,
          "' exists already; give the name of a new folder");
  check_writable(folder + "/config.json", "--export");
}

ModelExport::ModelExport(const Config& config, const GptConfig& model)
    : exported_(text_of(config, "export")),
      saved_(wants_full_state(config) ? text_of(config, "save") : ""),
      base_(text_of(config, "init")),
      model_(model) {}

PretrainedWriter ModelExport::write_folder(const std::string& path) const {
  return model_.adapter.is_set() ? write_adapter(path, model_, base_)
                                 : write_hugging_face(path, model_);
}

/// A run that is resumed and ends at the same step replaces the folder beside its checkpoint.
void ModelExport::open() {
  if (!exported_.empty()) folders_.push_back({exported_, write_folder(exported_)});
  if (saved_.empty()) return;
  const std::string path = concat(saved_, "/step_", step_, "_hugging_face");
  disk().remove(path);
  folders_.push_back({path, write_folder(path)});
}

Trainer::OnParameter ModelExport::on_parameter() {
  if (exported_.empty() && saved_.empty()) return {};
  return [this](const FullParameter& parameter) {
    if (folders_.empty()) open();
    for (Folder& folder : folders_) folder.writer.write(parameter.name, parameter.values);
  };
}

std::vector<std::string> ModelExport::finish() {
  std::vector<std::string> paths;
  for (Folder& folder : folders_) {
    folder.writer.finish();
    paths.push_back(folder.path);
  }
  folders_.clear();
  return paths;
}

}  // namespace tessera::cli
