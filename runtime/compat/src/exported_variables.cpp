#include <algorithm>

#include "document.h"
#include "variables.h"

namespace tessera {
namespace {

using compat::SectionSwitch;
using compat::Variable;

/// The variable of a key of a file, if it has one.
const Variable* variable_of(const std::string& key) {
  const std::string path = compat::full_path(key);
  const auto& all = compat::variables();
  const auto found = std::ranges::find(all, path, &Variable::path);
  return found == all.end() ? nullptr : &*found;
}

}  // namespace

std::map<std::string, std::string> exported_variables(const ConfigTranslation& file) {
  std::map<std::string, std::string> exported;
  if (file.dialect != ConfigDialect::kAccelerate) return exported;
  std::string type;
  for (const ConfigEntry& entry : file.entries) {
    if (entry.key == "distributed_type" && entry.value.is_string()) {
      type = compat::upper(entry.value.get<std::string>());
    }
  }
  const auto counts = [&](const SectionSwitch& section) {
    return type == (section.type != nullptr ? section.type : "FSDP");
  };
  for (const SectionSwitch& section : compat::section_switches()) {
    if (section.type != nullptr && counts(section)) exported[section.variable] = "true";
  }
  for (const ConfigEntry& entry : file.entries) {
    const Variable* variable = variable_of(entry.key);
    if (variable == nullptr || entry.file != file.path || entry.value.is_null() ||
        entry.value.is_structured()) {
      continue;
    }
    if (entry.key == "enable_cpu_affinity") continue;  // its launcher does not read it in a file
    const auto of_section = [&](const SectionSwitch& s) { return s.section == variable->section; };
    const auto& sections = compat::section_switches();
    const auto section = std::ranges::find_if(sections, of_section);
    if (section != sections.end()) {
      if (!counts(*section)) continue;
      exported[section->variable] = "true";
    }
    std::string text = plain_text(entry.value);
    if (entry.value == false && entry.key == "mixed_precision") text = "no";  // a YAML boolean
    if (variable->name == compat::kDeepSpeedFile) text = compat::beside(file.path, text);
    exported[variable->name] = text;
  }
  return exported;
}

}  // namespace tessera
