#include "train/model_export.h"

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tessera/checkpoint/checkpoint_folder.h"
#include "tessera/core/error.h"
#include "tessera/model/adapter.h"
#include "tessera/model/hugging_face.h"
#include "tessera/trainer/output_file.h"

namespace tessera::cli {

std::vector<Setting> export_settings() {
  return in_group(
      "Checkpoints",
      {{.name = "export",
        .help = "write the trained model to this new folder, as Hugging Face's transformers "
                "reads it; of a model with adapters these alone, as PEFT reads them",
        .check = check_path},
       {.name = "export_dtype",
        .help = "dtype of the weights in a Hugging Face folder of --export or "
                "--state-dict-type full: fp32, bf16 or fp16 [what the model of --init has, else "
                "fp32]",
        .choices = {"fp32", "bf16", "fp16"}}});
}

namespace {

bool wants_full_state(const Config& config) {
  return config.get<std::string>("state_dict_type") == "full";
}

/// The checkpoint that the run goes on from; "" if there is none.
std::string resumed_checkpoint(const Config& config) {
  const std::string resume = config.text("resume");
  const std::string saved = config.text("save");
  if (resume == "best") return saved.empty() ? "" : find_best_checkpoint(saved);
  const bool is_newest = resume == "latest" || resume == "auto";
  const std::string folder = is_newest ? saved : resume;
  return folder.empty() ? "" : find_checkpoint(folder);
}

void add_tokenizer(const Config& config, const TokenizerChoice& choice, CompanionFiles& files) {
  if (choice.tokenizer) replace_tokenizer(files, tokenizer_files_of(choice.path));
  const std::string chat = config.text("chat_template");
  constexpr const char* kTemplate = "chat_template.jinja";
  if (!chat.ends_with(".jinja")) return;
  std::ifstream in(chat, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  if (in) set_file(files, kTemplate, text.str());
}

std::string new_config(const GptChoice& choice) {
  return new_hugging_face_config(choice.config, choice.text.tokenizer
                                                    ? choice.text.end_token
                                                    : usual_end_token(choice.config));
}

/// The files beside --model's weights, unless its vocabulary was changed: then ids mean other
/// tokens.
CompanionFiles model_files(const GptChoice& choice) {
  if (choice.model_folder.empty()) return {};
  const GptConfig own = hugging_face_config_of(choice.model_folder);
  return own.vocab_size == choice.config.vocab_size ? companion_files_of(choice.model_folder)
                                                    : CompanionFiles{};
}

}  // namespace

ExportSource export_source(const Config& config, const GptChoice& choice, bool always) {
  ExportSource source;
  const bool writes = always || !config.is_null("export") || !config.is_null("save");
  if (!writes) return source;
  const std::string resumed = resumed_checkpoint(config);
  if (choice.pretrained) {
    source = {.files = choice.pretrained->companion_files(), .dtype = choice.pretrained->dtype()};
  } else if (!resumed.empty()) {
    source.files = companion_files_of(resumed);
    source.dtype = named_dtype(source.files).value_or(DType::kFloat32);
  } else {
    source.files = model_files(choice);
  }
  add_tokenizer(config, choice.text, source.files);
  if (find_file(source.files, "config.json") == nullptr) {
    set_file(source.files, "config.json", new_config(choice));
  }
  return source;
}

void ModelExport::check(const Config& config) {
  require(
      !wants_full_state(config) || !config.is_typed("state_dict_type") || !config.is_null("save"),
      ErrorCode::kConfig,
      "--state-dict-type full writes a Hugging Face folder beside the checkpoints of --save, "
      "which is not given; for the folder alone, give --export FOLDER");
  const std::string folder = config.text("export");
  if (folder.empty()) return;
  std::error_code error;
  require(!std::filesystem::exists(std::filesystem::symlink_status(folder, error)),
          ErrorCode::kConfig, "--export: '", folder,
          "' exists already; give the name of a new folder");
  check_writable(folder + "/config.json", "--export");
}

ModelExport::ModelExport(const Config& config, const GptConfig& model, const ExportSource& source)
    : exported_(config.text("export")),
      saved_(wants_full_state(config) ? config.text("save") : ""),
      base_(config.text("init")),
      model_(model),
      source_(source),
      dtype_(config.is_null("export_dtype") ? source.dtype
                                            : parse_dtype(config.get<std::string>("export_dtype"))),
      is_dtype_given_(!config.is_null("export_dtype")) {}

std::string ModelExport::description() const {
  if (model_.adapter.is_set()) return ", adapters as PEFT reads them";
  if (dtype_ == DType::kFloat32) return ", a Hugging Face folder";
  std::string text = concat(", a Hugging Face folder in ", to_string(dtype_));
  if (!is_dtype_given_) {
    text += concat(", as the model it began with: the fp32 weights are rounded; to keep them, ",
                   "give --export-dtype fp32");
  }
  return text;
}

PretrainedWriter ModelExport::write_folder(const std::string& path) const {
  return model_.adapter.is_set()
             ? write_adapter(path, model_, base_, source_.files)
             : write_hugging_face(path, model_, disk(), {.dtype = dtype_, .files = source_.files});
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
