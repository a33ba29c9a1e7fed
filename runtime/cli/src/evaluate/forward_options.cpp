#include "evaluate/forward_options.h"

#include "tessera/core/error.h"
#include "tessera/trainer/trainer_settings.h"

namespace tessera::cli {

TrainerOptions forward_options(const Config& config, const std::string& task) {
  require(!config.is_typed("trace"), ErrorCode::kConfig,
          "--trace shows steps and the batches of a loss; leave it out with --task ", task);
  TrainerOptions options = trainer_options(config);
  options.accumulate = 1;
  options.steps = 1;
  options.checkpoints = {};  // of the training that a file of settings is for
  options.stop_after = 0;
  options.cuda_graph = false;
  options.overlap_steps = false;
  options.forward = true;
  options.trace = {};
  return options;
}

}  // namespace tessera::cli
