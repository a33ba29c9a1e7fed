#include "model_export.h"

#include <filesystem>

#include "tessera/core/error.h"
#include "tessera/model/hugging_face.h"
#include "tessera/trainer/output_file.h"

namespace tessera::cli {

Setting export_setting() {
  return {.name = "export",
          .help =
              "write the trained model to this new folder, as Hugging Face's transformers "
              "reads it",
          .group = "Checkpoints",
          .check = [](const nlohmann::json& value) {
            require(!value.get<std::string>().empty(), ErrorCode::kConfig,
                    "is empty; give a path, or leave it out");
          }};
}

void ModelExport::check(const Config& config) {
  if (config.is_null("export")) return;
  const auto folder = config.get<std::string>("export");
  std::error_code error;
  require(!std::filesystem::exists(std::filesystem::symlink_status(folder, error)),
          ErrorCode::kConfig, "--export: '", folder,
          "' exists already; give the name of a new folder");
  check_writable(folder + "/config.json", "--export");
}

ModelExport::ModelExport(const Config& config, const GptConfig& model)
    : folder_(config.is_null("export") ? "" : config.get<std::string>("export")), model_(model) {}

Trainer::OnParameter ModelExport::on_parameter() {
  if (folder_.empty()) return {};
  return [this](const FullParameter& parameter) {
    if (!writer_) writer_.emplace(write_hugging_face(folder_, model_));
    writer_->write(parameter.name, parameter.values);
  };
}

std::optional<std::string> ModelExport::finish() {
  if (!writer_) return std::nullopt;
  writer_->finish();
  writer_.reset();
  return folder_;
}

}  // namespace tessera::cli
