#include "tessera/compat/config_sources.h"

#include <algorithm>
#include <array>
#include <set>
#include <tuple>

#include "key_table.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

/// The names that misspelt keys should have: that those are missing needs no second refusal.
std::set<std::string> wanted_names(const ConfigTranslation& translation) {
  std::set<std::string> names;
  for (const ConfigEntry& entry : translation.entries) {
    for (const ConfigChange& change : entry.changes) {
      if (!change.name.empty()) names.insert(change.name);
    }
  }
  return names;
}

/// All that is wrong at once, so that a file is mended at once.
std::string refusals_of(const ConfigTranslation& translation) {
  constexpr std::size_t kMost = 20;
  const std::set<std::string> wanted = wanted_names(translation);
  std::vector<const ConfigEntry*> refused;
  for (const ConfigEntry& entry : translation.entries) {
    if (entry.outcome != KeyOutcome::kRefused) continue;
    const bool misspelt =
        entry.value.is_null() && wanted.contains(entry.key.substr(entry.key.rfind('.') + 1));
    if (!misspelt) refused.push_back(&entry);
  }
  const auto place = [&](const ConfigEntry* entry) {
    return std::tuple(entry->file != translation.path, entry->file, entry->line);
  };
  std::ranges::stable_sort(refused, {}, place);
  std::string all;
  for (std::size_t i = 0; i < std::min(kMost, refused.size()); ++i) {
    const ConfigEntry& entry = *refused[i];
    all += concat(refused.size() > 1 ? "\n  " : "", entry.where(), ": ", shortened(entry.key), ": ",
                  entry.note);
  }
  if (refused.size() > kMost) all += concat("\n  and ", refused.size() - kMost, " more");
  return refused.size() < 2
             ? all
             : concat(translation.path, ": ", refused.size(), " keys need a change:", all);
}

}  // namespace

ConfigRefused::ConfigRefused(ConfigTranslation translation, const std::string& remedy)
    : Error(ErrorCode::kConfig, refusals_of(translation) + remedy),
      translation_(std::make_shared<const ConfigTranslation>(std::move(translation))) {}

std::string_view to_string(ConfigDialect dialect) {
  constexpr std::array<std::string_view, 3> kNames{"Tessera", "Accelerate", "DeepSpeed"};
  return kNames.at(static_cast<std::size_t>(dialect));
}

std::string_view to_string(KeyOutcome outcome) {
  constexpr std::array<std::string_view, 5> kNames{"honoured", "translated", "no effect", "derived",
                                                   "refused"};
  return kNames.at(static_cast<std::size_t>(outcome));
}

std::string ConfigEntry::where() const { return line > 0 ? concat(file, ":", line) : file; }

std::vector<std::string> ConfigTranslation::announcements() const {
  std::vector<std::string> lines;
  if (!note.empty()) lines.push_back(concat(path, ": ", note));
  std::vector<std::string> silent;
  for (const ConfigEntry& entry : entries) {
    const bool absent = entry.outcome == KeyOutcome::kDerived;
    if (entry.announce) {
      const std::string both = entry.note.empty() || entry.difference.empty() ? "" : "; ";
      lines.push_back(concat(entry.where(), ": ", entry.key, absent ? " (absent): " : ": ",
                             entry.note, both, entry.difference));
    } else if (entry.outcome == KeyOutcome::kNoEffect) {
      silent.push_back(entry.key.substr(entry.key.rfind('.') + 1));
    }
  }
  if (!silent.empty()) {
    lines.push_back(
        concat(path, ": without effect here: ", joined(silent), "; 'tessera explain' says why"));
  }
  return lines;
}

}  // namespace tessera
