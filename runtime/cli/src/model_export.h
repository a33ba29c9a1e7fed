#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/compat/config.h"
#include "tessera/model/pretrained.h"
#include "tessera/trainer/trainer.h"

namespace tessera::cli {

/// The setting --export.
Setting export_setting();

/// The Hugging Face folders of --export and --state-dict-type full, to which trained parameters are
/// written one by one as they are gathered.
class ModelExport {
 public:
  /// Throws Error{kConfig} if the folder of --export is there or --state-dict-type full has no
  /// --save, and Error{kIo} if it cannot be made. Makes nothing.
  static void check(const Config& config);

  ModelExport(const Config& config, const GptConfig& model);

  /// Of how many steps the parameters are.
  void reached(std::int64_t step) { step_ = step; }
  /// Receives them; empty where no folder is wanted.
  Trainer::OnParameter on_parameter();
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
  std::int64_t step_ = 0;
  std::vector<Folder> folders_;
};

}  // namespace tessera::cli
