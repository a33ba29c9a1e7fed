#include "tessera/trainer/config_file.h"

#include <algorithm>

#include "foreign/accelerate.h"
#include "foreign/accelerate_machines.h"
#include "foreign/deepspeed.h"
#include "foreign/dialect.h"
#include "foreign/key_table.h"
#include "tessera/core/error.h"
#include "tessera/core/nearest_name.h"
#include "tessera/trainer/log.h"

namespace tessera {
namespace {

std::string unknown_key(const std::string& name, const std::vector<std::string>& names) {
  const std::string nearest = nearest_name(name, names);
  return concat("unknown key; ", nearest.empty() ? "see --help for all of them"
                                                 : concat("did you mean '", nearest, "'?"));
}

void translate_own(const foreign::Document& document, const std::vector<Setting>& table,
                   ConfigTranslation& translation) {
  std::vector<std::string> names;
  for (const Setting& setting : table) names.push_back(setting.name);
  const auto is_log = [](const foreign::Node::Member& member) {
    return member.key == "kind" && member.value.json() == "run";
  };
  const bool of_log = std::ranges::any_of(document.root.members, is_log);  // its first line
  for (const foreign::Node::Member& member : document.root.members) {
    if (of_log && is_of_run_line(member.key)) continue;
    const std::string name = setting_name(member.key);
    const std::string where = foreign::at_line(document.path, member.line);
    if (std::ranges::find(names, name) == names.end()) {
      translation.entries.push_back({.key = member.key,
                                     .file = document.path,
                                     .line = member.line,
                                     .value = member.value.json(),
                                     .outcome = KeyOutcome::kRefused,
                                     .note = unknown_key(name, names)});
      continue;
    }
    for (const ConfigEntry& entry : translation.entries) {
      require(!entry.settings.contains(name), ErrorCode::kConfig, where, "'", name,
              "' is there twice, also on line ", entry.line, "; keep one");
    }
    translation.entries.push_back({.key = member.key,
                                   .file = document.path,
                                   .line = member.line,
                                   .value = member.value.json(),
                                   .outcome = KeyOutcome::kHonoured,
                                   .settings = {{name, member.value.json()}}});
  }
}

}  // namespace

ConfigFile::ConfigFile(const std::string& path)
    : document_(std::make_shared<const foreign::Document>(foreign::read_document(path))) {}

const std::string& ConfigFile::path() const { return document_->path; }

LauncherKeys ConfigFile::launcher_keys(const std::vector<Setting>& table) const {
  const bool accelerates =
      foreign::recognise(*document_, table).dialect == ConfigDialect::kAccelerate;
  return accelerates ? foreign::read_launcher_keys(*document_) : LauncherKeys{};
}

ConfigTranslation ConfigFile::translate(const TranslationContext& context) const {
  const foreign::Recognition recognised = foreign::recognise(*document_, context.table);
  ConfigTranslation translation{
      .path = path(), .dialect = recognised.dialect, .recognised_by = recognised.by};
  switch (recognised.dialect) {
    case ConfigDialect::kTessera:
      translate_own(*document_, context.table, translation);
      break;
    case ConfigDialect::kAccelerate:
      foreign::translate_accelerate(*document_, foreign::AccelerateSource::kFile, {}, context,
                                    translation);
      break;
    case ConfigDialect::kDeepSpeed:
      foreign::translate_deepspeed(*document_, std::nullopt, foreign::KnownSettings(context),
                                   translation);
      break;
  }
  foreign::check_complete(translation);
  return translation;
}

}  // namespace tessera
