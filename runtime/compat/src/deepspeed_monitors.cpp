#include <filesystem>

#include "deepspeed_parts.h"
#include "keys.h"

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

class MonitorSection {
 public:
  MonitorSection(const Monitor& monitor, const Node& node, const std::string& file,
                 ConfigTranslation& translation)
      : monitor_(monitor),
        section_(translation, file, node, rules_of("tensorboard, csv_monitor"),
                 {.name = monitor.section}) {}

  void translate(const KnownSettings& known) {
    if (!section_.flag("enabled").value_or(false)) {
      section_.leave_unused("it is off", Told::kByExplain, KeyOutcome::kHonoured);
    } else if (!known.has(monitor_.setting)) {
      section_.leave_unused("this program writes no such file", Told::kByRun);
    } else {
      const std::string file = path();
      section_.translate("enabled", monitor_.setting, file, monitor_.note + file);
      section_.leave_unused("part of the path", Told::kByExplain, KeyOutcome::kHonoured);
    }
  }

 private:
  /// DeepSpeed's folder; without output_path it is in the current one.
  std::string path() const {
    const std::filesystem::path folder = section_.text("output_path").value_or("");
    return (folder / section_.text("job_name").value_or("DeepSpeedJobName")).string() +
           monitor_.suffix;
  }

  const Monitor& monitor_;
  Section section_;
};

}  // namespace

void translate_monitors(Section& top, const std::string& file, const KnownSettings& known,
                        ConfigTranslation& translation) {
  for (const Monitor& monitor : kMonitors) {
    const Node* node = top.open(monitor.section);
    if (node != nullptr) MonitorSection(monitor, *node, file, translation).translate(known);
  }
}

}  // namespace tessera::compat
