#pragma once

#include <optional>
#include <string>

#include "tessera/compat/config.h"
#include "tessera/model/pretrained.h"
#include "tessera/trainer/trainer.h"

namespace tessera::cli {

/// The setting --export.
Setting export_setting();

/// The folder of --export, to which trained parameters are written one by one as they are gathered.
class ModelExport {
 public:
  /// Throws Error{kConfig} if the folder is there, and Error{kIo} if it cannot be made. Makes
  /// nothing.
  static void check(const Config& config);

  ModelExport(const Config& config, const GptConfig& model);

  /// Receives them; empty without --export.
  Trainer::OnParameter on_parameter();
  /// Makes the folder durable, once all parameters were received; returns its path. Nothing without
  /// --export, or where none was received, as in processes other than rank 0's.
  std::optional<std::string> finish();

 private:
  std::string folder_;
  const GptConfig& model_;
  std::optional<PretrainedWriter> writer_;
};

}  // namespace tessera::cli
