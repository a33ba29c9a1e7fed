#pragma once

#include <iosfwd>
#include <optional>

#include <nlohmann/json.hpp>

#include "tessera/compat/config.h"
#include "tessera/trainer/fit.h"

namespace tessera::cli {

/// Settings of `train` and `plan` by which they choose others.
std::vector<Setting> fit_settings();

/// A request by the settings: the budget of --fit; without one --memory-limit; without either what
/// this machine has if `runs_here`, as all processes of the run agree, else the memory of the
/// profile's device.
FitRequest fit_request(const Config& config, const TrainerOptions& options, bool runs_here);

/// Writes the best combination into `config` and `options`. What process 0
/// has found holds for all processes of options.world, each of which must call it.
FitChoice apply_fit(Config& config, TrainerOptions& options, const RunInputs& inputs,
                    const FitRequest& request);

/// A table of the choice, the next ones and the nearest that do not fit.
void print_fit(std::ostream& out, const FitChoice& choice, const FitRequest& request);
/// All candidates.
nlohmann::ordered_json to_json(const FitChoice& choice, const FitRequest& request);

}  // namespace tessera::cli
