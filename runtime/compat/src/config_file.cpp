#include "tessera/compat/config_file.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "accelerate.h"
#include "deepspeed.h"
#include "key_table.h"
#include "keys.h"
#include "tessera/compat/aliases.h"
#include "tessera/core/error.h"
#include "tessera/core/nearest_name.h"
#include "tessera/trainer/log.h"

namespace tessera {
namespace {

std::string unknown_key(const std::string& nearest) {
  return concat("unknown key; ", nearest.empty() ? "see --help for all of them"
                                                 : concat("did you mean '", nearest, "'?"));
}

/// A key that is a flag of other programs, as one of ours: "max_grad_norm" is clip_norm.
struct OwnKey {
  std::string setting;
  nlohmann::ordered_json value;
  std::string difference{};  ///< see Alias::note
};
std::optional<OwnKey> own_key(const compat::Node::Member& member,
                              const std::set<std::string>& known, const std::string& where) {
  if (member.value.kind != compat::Node::Kind::kScalar || member.value.is_null()) return {};
  const std::string flag = flag_name(setting_name(member.key));
  const auto alias = std::ranges::find(aliases(), flag, &Alias::theirs);
  if (alias == aliases().end() || !known.contains(setting_name(alias->ours))) return {};
  OwnKey key{.setting = setting_name(alias->ours), .value = member.value.json()};
  if (alias->value != nullptr) {
    const std::string theirs = plain_text(member.value.scalar);
    try {
      key.value = alias->value(theirs);
    } catch (const Error& error) {
      fail(error.code(), where, "'", member.key, "': ", error.what());
    }
    if (alias->note != nullptr) key.difference = alias->note(theirs);
  }
  return key;
}

/// Why a key has no effect that is a flag of other programs, like "report_to"; "": it is none.
std::string_view without_effect(const compat::Node::Member& member) {
  const std::string flag = flag_name(setting_name(member.key));
  const auto row = std::ranges::find_if(flags_without_counterpart(), [&](const auto& missing) {
    return missing.is_taken && flag.starts_with(missing.beginning);
  });
  return row == flags_without_counterpart().end() ? "" : row->why;
}

void translate_own(const compat::Document& document, const std::vector<Setting>& table,
                   ConfigTranslation& translation) {
  const std::vector<std::string> names = names_of(table);
  const std::set<std::string> known(names.begin(), names.end());
  std::map<std::string, int> lines;
  std::size_t unknown = 0;
  const auto is_log = [](const compat::Node::Member& member) {
    return member.key == "kind" && member.value.json() == "run";
  };
  const bool of_log = std::ranges::any_of(document.root.members, is_log);  // its first line
  for (const compat::Node::Member& member : document.root.members) {
    if (of_log && is_of_run_line(member.key)) continue;
    std::string name = setting_name(member.key);
    const std::string where = compat::at_line(document.path, member.line);
    const std::optional<OwnKey> own =
        known.contains(name) ? std::nullopt : own_key(member, known, where);
    if (own) name = own->setting;
    const auto add = [&](KeyOutcome outcome, const std::string& note) -> ConfigEntry& {
      return translation.entries.emplace_back(ConfigEntry{.key = member.key,
                                                          .file = document.path,
                                                          .line = member.line,
                                                          .value = member.value.json(),
                                                          .outcome = outcome,
                                                          .note = note});
    };
    if (const std::string_view why = without_effect(member);
        !known.contains(name) && !why.empty()) {
      add(KeyOutcome::kNoEffect, std::string(why)).announce = true;
      continue;
    }
    if (!known.contains(name)) {
      const bool suggest = ++unknown <= compat::kMostSuggestions;
      const std::string nearest = suggest ? nearest_name(name, names) : "";
      ConfigEntry& refused = add(KeyOutcome::kRefused, unknown_key(nearest));
      if (!nearest.empty()) refused.changes = {{.key = member.key, .name = nearest}};
      continue;
    }
    const auto [before, is_new] = lines.emplace(name, member.line);
    require(is_new, ErrorCode::kConfig, where, "'", name, "' is there twice, also on line ",
            before->second, "; keep one");
    ConfigEntry& honoured = add(KeyOutcome::kHonoured, own ? concat("is ", flag_name(name)) : "");
    honoured.settings = {{name, own ? own->value : member.value.json()}};
    honoured.difference = own ? own->difference : "";
    honoured.announce = !honoured.difference.empty();
  }
}

}  // namespace

ConfigFile::ConfigFile(const std::string& path)
    : document_(std::make_shared<const compat::Document>(compat::read_document(path))) {}

ConfigFile::ConfigFile(const std::string& path, const std::string& text)
    : document_(std::make_shared<const compat::Document>(compat::parse_document(path, text))) {}

const std::string& ConfigFile::path() const { return document_->path; }

LauncherKeys ConfigFile::launcher_keys(const std::vector<Setting>& table) const {
  const bool accelerates =
      compat::recognise(*document_, table).dialect == ConfigDialect::kAccelerate;
  return accelerates ? compat::read_launcher_keys(*document_) : LauncherKeys{};
}

ConfigTranslation ConfigFile::translate(const TranslationContext& context) const {
  const compat::Recognition recognised = compat::recognise(*document_, context.table);
  ConfigTranslation translation{.path = path(),
                                .dialect = recognised.dialect,
                                .recognised_by = recognised.by,
                                .note = document_->note};
  switch (recognised.dialect) {
    case ConfigDialect::kTessera:
      translate_own(*document_, context.table, translation);
      break;
    case ConfigDialect::kAccelerate:
      compat::translate_accelerate(*document_, compat::AccelerateSource::kFile, {}, context,
                                   translation);
      break;
    case ConfigDialect::kDeepSpeed:
      compat::translate_deepspeed(*document_, std::nullopt, compat::KnownSettings(context),
                                  translation);
      break;
  }
  compat::check_complete(translation);
  return translation;
}

std::string read_config_text(const std::string& path) { return compat::read_text(path); }

ConfigContents read_config(const std::string& path, const std::vector<Setting>& table) {
  const compat::Document document = compat::read_document(path);
  return {compat::recognise(document, table).dialect, document.root.json()};
}

}  // namespace tessera
