#pragma once

#include <vector>

#include "tessera/sharding/validate.h"

// The passes of validate(), beside ContentWalk (contents.h).
namespace tessera {

/// Rule::kForm. The other passes need a schedule without such violations.
void check_form(const Schedule& schedule, std::vector<Violation>& violations);
/// The part of it that is about mesh, units and layers.
void check_model(const Schedule& schedule, std::vector<Violation>& violations);
/// Rule::kHappensBefore.
void check_happens_before(const Schedule& schedule, std::vector<Violation>& violations);

}  // namespace tessera
