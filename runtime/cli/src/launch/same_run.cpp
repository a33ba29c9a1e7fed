#include "launch/same_run.h"

#include "tessera/trainer/agreement.h"
#include "tessera/trainer/rank_device.h"
#include "tessera/trainer/trainer_settings.h"

namespace tessera::cli {

void require_same_program(World& world) {
  require_agreement(world, {{"the version of tessera", TESSERA_VERSION}, identity_of_program()});
}

void require_same_settings(Config& config, TrainerOptions options) {
  options.device = resolved_device(options.device);
  set_effective(config, options);
  require_agreement(*options.world, identity_of_settings(config));
}

}  // namespace tessera::cli
