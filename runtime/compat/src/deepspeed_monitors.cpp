#include <filesystem>

#include "deepspeed.h"

namespace tessera::compat {
namespace {

/// A section that names files of metrics, and our setting that does.
struct Monitor {
  const char* section;
  const char* setting;
  const char* suffix;  ///< of our path
  const char* note;
};
constexpr Monitor kMonitors[]{
    {"tensorboard", "tensorboard", "", "events are written in the folder "},
    {"csv_monitor", "csv", ".csv",
     "DeepSpeed writes a file for each metric; here a table has them all: "},
};

/// DeepSpeed's folder; without output_path it is in the current one.
std::string path_of(const Section& section, const Monitor& monitor) {
  const std::filesystem::path folder = section.text("output_path").value_or("");
  return (folder / section.text("job_name").value_or("DeepSpeedJobName")).string() + monitor.suffix;
}

}  // namespace

void translate_monitors(Section& top, const KnownSettings& known) {
  for (const Monitor& monitor : kMonitors) {
    if (top.open(monitor.section) == nullptr) continue;
    Section section = top.below(monitor.section, "tensorboard, csv_monitor");
    if (!section.flag("enabled").value_or(false)) {
      section.leave_unused("it is off", Told::kByExplain, KeyOutcome::kHonoured);
    } else if (!known.has(monitor.setting)) {
      section.leave_unused("this program writes no such file", Told::kByRun);
    } else {
      const std::string file = path_of(section, monitor);
      section.translate("enabled", monitor.setting, file, monitor.note + file);
      section.leave_unused("part of the path", Told::kByExplain, KeyOutcome::kHonoured);
    }
  }
}

}  // namespace tessera::compat
