#include "output/profile_note.h"

#include "output/terminal.h"
#include "tessera/core/error.h"
#include "tessera/lab/measurement_noise.h"
#include "tessera/trainer/setting.h"

namespace tessera::cli {

void note_noise(std::ostream& out, const HardwareProfile& profile) {
  if (!profile.noise) return;
  const std::vector<std::string> seen = disturbances(*profile.noise);
  if (seen.empty()) return;
  out << for_reader(inspect(stderr),
                    concat("note: the profile ", profile.name, " was measured on a busy machine (",
                           tessera::joined(seen, "; "),
                           "), so predicted times are too long; 'tessera calibrate' makes another"))
      << "\n";
}

}  // namespace tessera::cli
