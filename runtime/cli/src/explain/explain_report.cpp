#include "explain/explain_report.h"

#include <algorithm>
#include <ostream>
#include <set>
#include <tuple>
#include <vector>

#include "output/terminal.h"
#include "output/text_output.h"
#include "tessera/core/error.h"

namespace tessera::cli {
namespace {

constexpr std::size_t kWidth = kColumns;
constexpr const char* kNotJudged = "not judged";

/// A value of a file, which may be long.
std::string show_short(const nlohmann::ordered_json& value) {
  constexpr std::size_t kLongest = 60;
  std::string text = plain_text(value);
  std::ranges::replace(text, '\n', ' ');
  return shortened(text, kLongest);
}

/// "strategy = full_shard, replicas = 2", or what stands for it.
std::string meaning(const ConfigEntry& entry) {
  std::string text;
  if (!entry.outcome) return concat(kNotJudged, ": it depends on a key that is refused");
  for (const auto& [name, value] : entry.settings.items()) {
    text += (text.empty() ? "" : ", ") + name + " = " + plain_text(value);
  }
  if (text.empty() && entry.outcome == KeyOutcome::kNoEffect) text = "no effect";
  if (entry.outcome == KeyOutcome::kRefused) text = "refused";
  if (entry.note.empty()) return text;
  return text.empty() ? entry.note : text + ": " + entry.note;
}

std::string outcome_of(const ConfigEntry& entry) {
  return entry.outcome ? std::string(to_string(*entry.outcome)) : kNotJudged;
}

/// In the order of the file; what is not in it last.
std::vector<ConfigEntry> sorted(const ConfigTranslation& translation) {
  std::vector<ConfigEntry> entries = translation.entries;
  const auto place = [&](const ConfigEntry& entry) {
    return std::tuple(entry.file.rfind(translation.path, 0) != 0, entry.file, entry.line == 0,
                      entry.line);
  };
  std::ranges::stable_sort(entries, {}, place);
  return entries;
}

/// A section says nothing by itself: its keys do.
bool is_section(const ConfigEntry& entry) {
  return entry.value.is_object() && entry.settings.empty() &&
         entry.outcome == KeyOutcome::kHonoured;
}

std::string last_part(const std::string& key) { return key.substr(key.rfind('.') + 1); }

/// "line 12", or of another file than the one that is explained, "ds.json:12".
std::string place_of(const ConfigEntry& entry, const ConfigTranslation& translation) {
  if (entry.file != translation.path) return entry.where();
  return entry.line > 0 ? concat("line ", entry.line) : "absent";
}

/// "fsdp_offload_params: true -> false", by which a refused key comes to be accepted.
std::string remedy_of(const ConfigEntry& entry) {
  const bool absent = entry.value.is_null();
  std::string text = absent ? entry.key : concat(entry.key, ": ", show_short(entry.value));
  if (entry.changes.empty()) return text + " -> left out";
  for (const ConfigChange& change : entry.changes) {
    const bool own = change.key == entry.key;
    if (!change.name.empty()) {
      text = concat(entry.key, " -> ", change.name);
    } else if (own && change.value) {
      text += concat(absent ? ": " : " -> ", show_short(*change.value));
    } else if (change.value) {
      text += concat(own ? "" : "; ", change.key, ": ", show_short(*change.value));
    } else {
      text += concat("; ", change.key, " -> left out");
    }
  }
  return text;
}

void print_entries(std::ostream& out, const ConfigTranslation& translation) {
  for (const ConfigEntry& entry : sorted(translation)) {
    const bool absent = entry.outcome == KeyOutcome::kDerived ||
                        (entry.outcome == KeyOutcome::kRefused && entry.value.is_null());
    const bool section = entry.value.is_structured();
    out << "  " << entry.where() << "  " << entry.key
        << (absent    ? " (absent)"
            : section ? ""
                      : ": " + show_short(entry.value))
        << "\n";
    print_wrapped(out, "-> " + meaning(entry), 6);
  }
}

std::string difference_of(const ConfigEntry& entry) {
  return !entry.difference.empty() ? entry.difference : entry.announce ? entry.note : "";
}

nlohmann::ordered_json json_of(const ConfigEntry& entry) {
  return {{"key", entry.key},
          {"file", entry.file},
          {"line", entry.line},
          {"value", entry.value},
          {"outcome", outcome_of(entry)},
          {"settings", entry.settings},
          {"note", entry.note},
          {"difference", entry.difference},
          {"announced", entry.announce}};
}

/// The names that misspelt keys are to get: that those are missing is said with them.
std::set<std::string> names_to_come(const ConfigTranslation& translation) {
  std::set<std::string> names;
  for (const ConfigEntry& entry : translation.entries) {
    for (const ConfigChange& change : entry.changes) names.insert(change.name);
  }
  return names;
}

/// Refused for itself.
bool is_to_change(const ConfigEntry& entry, const std::set<std::string>& to_come) {
  const bool missing = entry.value.is_null() && to_come.contains(last_part(entry.key));
  return entry.outcome == KeyOutcome::kRefused && !missing;
}

/// The keys of a file by what becomes of them.
struct Verdict {
  int kept = 0;
  int translated = 0;
  int no_effect = 0;
  int not_judged = 0;
  std::vector<std::string> to_change{};
};

Verdict judge(const ConfigTranslation& translation) {
  const std::set<std::string> to_come = names_to_come(translation);
  Verdict verdict;
  for (const ConfigEntry& entry : translation.entries) {
    if (entry.outcome == KeyOutcome::kDerived || is_section(entry)) continue;
    if (!entry.outcome) {
      ++verdict.not_judged;
    } else if (entry.outcome == KeyOutcome::kRefused) {
      if (!is_to_change(entry, to_come)) continue;
      verdict.to_change.push_back(last_part(entry.key));
    } else {
      ++(entry.outcome == KeyOutcome::kNoEffect     ? verdict.no_effect
         : entry.outcome == KeyOutcome::kTranslated ? verdict.translated
                                                    : verdict.kept);
    }
  }
  return verdict;
}

}  // namespace

void print_wrapped(std::ostream& out, const std::string& text, int indent) {
  print_paragraph(out, std::string(static_cast<std::size_t>(indent), ' ') + text, indent + 2);
}

void print_verdict(std::ostream& out, const ConfigTranslation& translation) {
  constexpr std::size_t kMostNames = 8;
  const Verdict verdict = judge(translation);
  const std::string head =
      concat(translation.path, ", settings of ", to_string(translation.dialect), ":");
  std::string text = concat(verdict.kept, " kept");
  const auto add = [&](std::size_t count, const char* what) {
    if (count > 0) text += concat(", ", count, " ", what);
  };
  add(static_cast<std::size_t>(verdict.translated), "translated");
  add(static_cast<std::size_t>(verdict.no_effect), "without effect");
  add(static_cast<std::size_t>(verdict.not_judged), kNotJudged);
  if (verdict.to_change.empty()) {
    text += ", none to change";
  } else {
    add(verdict.to_change.size(), "to change:");
    for (std::size_t i = 0; i < std::min(kMostNames, verdict.to_change.size()); ++i) {
      text += (i == 0 ? " " : ", ") + show_short(verdict.to_change[i]);
    }
    if (verdict.to_change.size() > kMostNames) text += ", ...";
  }
  if (head.size() + 1 + text.size() <= kWidth) {
    out << head << " " << text << "\n";
  } else {
    out << head << "\n";
    print_wrapped(out, text, 2);
  }
  if (!translation.note.empty()) print_wrapped(out, concat("the file ", translation.note), 2);
}

void print_keys(std::ostream& out, const ConfigTranslation& translation) {
  if (!translation.recognised_by.empty()) {
    out << "told by '" << translation.recognised_by << "'\n";
  }
  out << "\n";
  print_entries(out, translation);
  if (translation.dialect == ConfigDialect::kTessera) return;
  out << "\ndifferences from " << to_string(translation.dialect) << "\n";
  bool any = false;
  for (const ConfigEntry& entry : sorted(translation)) {
    const std::string text = difference_of(entry);
    if (text.empty()) continue;
    print_wrapped(out, concat(entry.where(), "  ", entry.key, ": ", text), 2);
    any = true;
  }
  if (!any) out << "  none\n";
}

void print_findings(std::ostream& out, const ConfigTranslation& translation) {
  constexpr int kMost = 50;
  const std::vector<ConfigEntry> entries = sorted(translation);
  const std::set<std::string> to_come = names_to_come(translation);
  int shown = 0;
  const auto print = [&](const char* title, const ConfigEntry& entry, const std::string& text) {
    if (shown == 0) out << "\n" << title << "\n";
    if (++shown > kMost) return;
    print_wrapped(out, concat(place_of(entry, translation), ": ", text), 2);
  };
  const auto end_section = [&] {
    if (shown > kMost) out << "  and " << shown - kMost << " more\n";
    shown = 0;
  };
  for (const ConfigEntry& entry : entries) {
    if (!is_to_change(entry, to_come)) continue;
    print("to change, as --fix FILE does it", entry, remedy_of(entry));
  }
  end_section();
  const std::string title = concat("otherwise than under ", to_string(translation.dialect));
  for (const ConfigEntry& entry : entries) {
    const std::string text = difference_of(entry);
    if (text.empty() || entry.outcome == KeyOutcome::kRefused) continue;
    print(title.c_str(), entry, concat(last_part(entry.key), ": ", text));
  }
  end_section();
}

void print_given_settings(std::ostream& out, const Config& config) {
  TextTable table;
  bool any = false;
  for (const Setting& setting : config.table()) {
    const auto& value = config.value(setting.name);
    if (!config.given(setting.name) || value == setting.fallback) continue;
    std::string source = config.source(setting.name);
    for (const ConfigTranslation& file : config.translations()) {
      if (source.starts_with(file.path + ":")) {
        source = "line " + source.substr(file.path.size() + 1);
      } else if (source == file.path + " (derived)") {
        source = "absent there";
      }
    }
    table.add({"  " + setting.name, show_short(value), source});
    any = true;
  }
  if (!any) return;
  out << "\nsettings that are not the defaults\n";
  table.print(out);
}

nlohmann::ordered_json json_of(const ConfigTranslation& translation) {
  auto entries = nlohmann::ordered_json::array();
  for (const ConfigEntry& entry : sorted(translation)) entries.push_back(json_of(entry));
  const Verdict verdict = judge(translation);
  return {{"path", translation.path},
          {"dialect", to_string(translation.dialect)},
          {"recognised_by", translation.recognised_by},
          {"verdict",
           {{"kept", verdict.kept},
            {"translated", verdict.translated},
            {"without_effect", verdict.no_effect},
            {"not_judged", verdict.not_judged},
            {"to_change", verdict.to_change.size()}}},
          {"entries", entries}};
}

nlohmann::ordered_json explanation_of(const Config& config) {
  auto files = nlohmann::ordered_json::array();
  for (const ConfigTranslation& file : config.translations()) files.push_back(json_of(file));
  auto settings = nlohmann::ordered_json::object();
  for (const auto& [name, value] : config.values().items()) {
    settings[name] = {{"value", value}, {"source", config.source(name)}};
  }
  return {{"kind", "explain"}, {"files", files}, {"settings", settings}};
}

}  // namespace tessera::cli
