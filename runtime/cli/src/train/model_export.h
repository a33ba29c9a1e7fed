#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "settings/gpt_choice.h"
#include "tessera/compat/config.h"
#include "tessera/model/companion_files.h"
#include "tessera/model/pretrained.h"
#include "tessera/trainer/trainer.h"

namespace tessera::cli {

/// The settings --export and --export-dtype.
std::vector<Setting> export_settings();

/// The parts of a run's exports and checkpoints that come from the model that it begins with.
struct ExportSource {
  CompanionFiles files{};         ///< with a config.json; nothing is in them if nothing is written
  DType dtype = DType::kFloat32;  ///< of its weights; fp32 if they are new
};
/// The source is --init, the checkpoint that is resumed, or --model; with the tokenizer of
/// --tokenizer. Throws Error{kIo}. `always`: although neither --export nor --save is given.
ExportSource export_source(const Config& config, const GptChoice& choice, bool always);

/// The Hugging Face folders of --export and --state-dict-type full, to which trained parameters are
/// written one by one as they are gathered.
class ModelExport {
 public:
  /// Throws Error{kConfig} if the folder of --export is there or --state-dict-type full has no
  /// --save, and Error{kIo} if it cannot be made. Makes nothing.
  static void check(const Config& config);

  ModelExport(const Config& config, const GptConfig& model, const ExportSource& source);

  /// Sets how many steps the parameters have had.
  void reached(std::int64_t step) { step_ = step; }
  /// Receives them; empty where no folder is wanted.
  Trainer::OnParameter on_parameter();
  /// The description of a folder, which follows its name.
  std::string description() const;
  /// Makes the folders durable, once all parameters were received; returns their paths. Nothing
  /// where none was received, as in processes other than rank 0's.
  std::vector<std::string> finish();

 private:
  struct Folder {
    std::string path;
    PretrainedWriter writer;
  };
  void open();
  PretrainedWriter write_folder(const std::string& path) const;

  std::string exported_;  ///< --export; "" without
  std::string saved_;     ///< --save, if it gets a folder, too; "" else
  std::string base_;      ///< --init, the model that adapters are for
  const GptConfig& model_;
  const ExportSource& source_;
  DType dtype_;
  bool is_dtype_given_;
  std::int64_t step_ = 0;
  std::vector<Folder> folders_;
};

}  // namespace tessera::cli
