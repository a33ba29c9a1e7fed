#include "launch/same_run.h"

#include "tessera/trainer/agreement.h"
#include "tessera/trainer/rank_device.h"
#include "tessera/trainer/trainer_settings.h"

namespace tessera::cli {

void require_same_program(World& world) {
  require_agreement(world, {{"the version of tessera", TESSERA_VERSION}, identity_of_program()});
}

void require_same_settings(Config& config, TrainerOptions options,
                           const std::vector<NamedText>& more) {
  options.device = resolved_device(options.device);
  set_effective(config, options);
  std::vector<NamedText> all = identity_of_settings(config);
  all.insert(all.end(), more.begin(), more.end());
  require_agreement(*options.world, all);
}

void require_same_run(Config& config, const TrainerOptions& options,
                      const std::vector<NamedText>& more) {
  if (options.world == nullptr) return;
  require_same_program(*options.world);
  require_same_settings(config, options, more);
}

}  // namespace tessera::cli
