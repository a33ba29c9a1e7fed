#include "key_table.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <set>

#include "keys.h"
#include "known_settings.h"
#include "tessera/core/nearest_name.h"
#include "tessera/core/text.h"

namespace tessera::compat {

KeyTable::KeyTable(const char* section_path, const std::vector<KeyRule>& rows,
                   const char* key_prefix, bool ignored_without)
    : section(section_path), prefix(key_prefix), apart_from_prefix(ignored_without) {
  for (const KeyRule& row : rows) {
    for (const std::string& name : split_text(row.name, ',')) {
      rules.push_back(row.changed(&KeyRule::name, trimmed(name)));
    }
  }
}

void attempt(const std::function<void()>& part) {
  try {
    part();
  } catch (const Refusal&) {
    return;  // its entry says it
  }
}

std::string quoted(const std::string& text) { return concat("'", shortened(text), "'"); }

std::string near_word(const std::string& word, const std::vector<std::string>& candidates) {
  constexpr std::size_t kShortest = 4;
  return word.size() < kShortest ? "" : nearest_name(word, candidates);
}

std::string unknown_value(const std::string& word, const std::vector<std::string>& allowed) {
  return tessera::unknown_value(word, near_word(word, allowed), allowed);
}

Section::Section(ConfigTranslation& translation, const std::string& file, const Node& map,
                 const KeyTable& table, const KnownSettings* known, std::string path,
                 UnknownKeys unknown)
    : translation_(translation),
      file_(file),
      table_(table),
      known_(known),
      path_(std::move(path)),
      unknown_keys_(unknown),
      map_line_(map.line) {
  RulesByName by_name;
  for (const KeyRule& rule : table.rules) by_name.emplace(rule.name, &rule);
  for (const Node::Member& member : map.members) read_member(member, by_name);
}

Section Section::below(std::string_view key, std::string_view table, UnknownKeys unknown) const {
  static const Node kEmpty{.kind = Node::Kind::kMap};
  const Node* const map = node(key);
  const std::string path = path_of(key);
  return {translation_,
          file_,
          map != nullptr ? *map : kEmpty,
          table_of(table.empty() ? path : table),
          known_,
          path,
          unknown};
}

std::string Section::path_of(std::string_view key) const {
  return path_.empty() ? std::string(key) : concat(path_, ".", key);
}

void Section::read_member(const Node::Member& member, const RulesByName& by_name) {
  auto found = by_name.find(member.key);
  const bool prefixed = found != by_name.end();
  if (!prefixed) found = by_name.find(concat(table_.prefix, member.key));
  if (found == by_name.end()) {
    if (is_comment(member.key)) {
      note_member(member, "a comment", Told::kByExplain);
    } else if (unknown_keys_ == UnknownKeys::kNoted) {
      note_member(member, "is not known here, and nothing of its section has an effect",
                  Told::kByRun);
    } else {
      refuse_unknown(member);
    }
    return;
  }
  const KeyRule& rule = *found->second;
  if (const auto before = items_.find(rule.name); before != items_.end()) {
    const int line = translation_.entries[before->second.entry].line;
    refuse_member(member, concat("is there twice, also on line ", line, "; keep one"));
    return;
  }
  add_entry(member);
  Item& item = items_[rule.name];
  item = {.node = &member.value, .rule = &rule, .entry = entries_.back()};
  if (!prefixed && table_.apart_from_prefix) {
    differ(rule.name, concat("Accelerate ignores the key unless it is spelt ", rule.name));
  }
  if (says_nothing(rule, member.value)) {
    const bool section = member.value.kind == Node::Kind::kMap && rule.use == KeyUse::kUsed;
    if (!section) agree(rule.name, "asks for nothing");
    return;
  }
  if (rule.may_be_auto && is_auto_text(member.value)) {
    if (rule.use != KeyUse::kUsed) agree(rule.name, "asks for nothing");
    return;
  }
  attempt([&] {
    const auto shown = canonical(rule, member.value);
    if (!shown) refuse_type(rule, member.value);
    apply(rule, item, *shown);
    item.canonical = rule.allowed.empty() ? *shown : match(*shown, rule.allowed);
  });
}

void Section::add_entry(const Node::Member& member) {
  entries_.push_back(translation_.entries.size());
  translation_.entries.push_back({.key = path_of(member.key),
                                  .file = file_,
                                  .line = member.line,
                                  .value = member.value.json()});
}

void Section::note_member(const Node::Member& member, const std::string& note, Told told) {
  add_entry(member);
  ConfigEntry& entry = translation_.entries.back();
  entry.outcome = KeyOutcome::kNoEffect;
  entry.note = note;
  entry.announce = told == Told::kByRun;
}

void Section::refuse_member(const Node::Member& member, const std::string& why) {
  add_entry(member);
  translation_.entries.back().outcome = KeyOutcome::kRefused;
  translation_.entries.back().note = why;
}

ConfigChange Section::with(std::string_view key, nlohmann::ordered_json value) const {
  const auto found = items_.find(key);
  return {
      .key = found == items_.end() ? path_of(key) : translation_.entries[found->second.entry].key,
      .value = std::move(value)};
}

void Section::refuse_key(std::string_view key, std::vector<ConfigChange> changes,
                         const std::string& why) {
  const auto found = items_.find(key);
  if (found == items_.end()) {
    missing_.emplace(key);
    translation_.entries.push_back({.key = path_of(key),
                                    .file = file_,
                                    .line = map_line_,
                                    .outcome = KeyOutcome::kRefused,
                                    .note = why,
                                    .changes = std::move(changes)});
  } else if (!is_refused(key)) {
    ConfigEntry& e = translation_.entries[found->second.entry];
    e.outcome = KeyOutcome::kRefused;
    e.note = why;
    e.settings.clear();
    e.changes = std::move(changes);
  }
  throw Refusal(ErrorCode::kConfig, concat(at_line(file_, line(key)), path_of(key), ": ", why));
}

void Section::need_all_of(std::initializer_list<std::string_view> keys) const {
  for (const std::string_view key : keys) {
    if (is_refused(key)) throw Refusal(ErrorCode::kConfig, path_of(key));
  }
}

bool Section::is_refused(std::string_view key) const {
  const auto found = items_.find(key);
  if (found == items_.end()) return missing_.contains(key);
  return translation_.entries[found->second.entry].outcome == KeyOutcome::kRefused;
}

void Section::refuse_unknown(const Node::Member& member) {
  constexpr std::size_t kLongest = 100;
  if (++unknown_ > kMostSuggestions || member.key.size() > kLongest) {
    return refuse_member(member, "unknown key");
  }
  std::vector<std::string> names;
  for (const KeyRule& known : table_.rules) names.emplace_back(known.name);
  const std::string word = concat(table_.prefix, member.key);
  std::string nearest = near_word(member.key, names);
  if (nearest.empty()) nearest = nearest_name(word, names);
  const std::string remedy = nearest.empty()
                                 ? concat("the nearest of the ", names.size(), " keys here are ",
                                          joined(nearest_names(word, names, 3)))
                                 : concat("did you mean '", nearest, "'?");
  refuse_member(member, "unknown key; " + remedy);
  if (nearest.empty()) return;
  translation_.entries.back().changes = {{.key = path_of(member.key), .name = nearest}};
}

void Section::refuse_type(const KeyRule& rule, const Node& node) {
  const bool scalar = node.kind == Node::Kind::kScalar;
  std::vector<std::string> items;
  for (const Node& item : node.items) {
    if (item.kind == Node::Kind::kScalar) items.push_back(item.text);
  }
  std::string remedy;
  if (!rule.allowed.empty()) {
    remedy = concat("; allowed: ", joined(strings(rule.allowed)));
  } else if (rule.type == KeyType::kText && !items.empty()) {
    remedy = concat("; write it as one text: \"", joined(items), "\"");
  } else if (rule.type == KeyType::kInteger || rule.type == KeyType::kNumber) {
    remedy = number_remedy(node);
  } else if (rule.type == KeyType::kSection && rule.use == KeyUse::kUsed) {
    remedy = "; put its keys below it, or leave it out";
  }
  refuse(rule.name, scalar ? quoted(node.text) : "a list or section", " is not ", in_words(rule),
         remedy);
}

void Section::apply(const KeyRule& rule, const Item& item, const std::string& shown) {
  if (!rule.allowed.empty() && match(shown, rule.allowed).empty()) {
    const std::string nearest = near_word(shown, strings(rule.allowed));
    std::vector<ConfigChange> changes;
    if (!nearest.empty()) changes.push_back(with(rule.name, nearest));
    refuse_for(std::move(changes), rule.name, unknown_value(shown, strings(rule.allowed)));
  }
  switch (rule.use) {
    case KeyUse::kUsed:
      check_range(rule, *item.node);
      break;
    case KeyUse::kQuiet:
      if (match(shown, rule.harmless).empty()) {
        no_effect(rule.name, rule.why);
      } else {
        agree(rule.name, rule.why);
      }
      break;
    case KeyUse::kSaid:
      if (asks(rule, *item.node, shown)) {
        no_effect(rule.name, rule.why, Told::kByRun);
      } else {
        agree(rule.name, rule.why);
      }
      break;
    case KeyUse::kRefused:
      apply_refused(rule, item, shown);
      break;
  }
}

void Section::check_range(const KeyRule& rule, const Node& node) {
  const double number = as_number(node).value_or(rule.minimum);
  const auto written = [&](double bound) {
    return rule.type == KeyType::kInteger ? concat(static_cast<std::int64_t>(bound))
                                          : concat(bound);
  };
  if (number < rule.minimum) {
    refuse(rule.name, "is ", written(number), "; it must be at least ", written(rule.minimum));
  }
  if (number > rule.maximum) {
    refuse(rule.name, "is ", written(number), "; it must be at most ", written(rule.maximum));
  }
}

void Section::apply_refused(const KeyRule& rule, const Item& item, const std::string& shown) {
  if (!asks(rule, *item.node, shown)) {
    agree(rule.name, concat("does not ask for ", rule.asks_for));
    return;
  }
  std::vector<ConfigChange> changes;
  if (const auto value = value_for_nothing(rule)) changes.push_back(with(rule.name, *value));
  if (!rule.asking.empty() && match(shown, rule.asking).empty()) {
    refuse_for(std::move(changes), rule.name, unknown_value(shown, strings(rule.harmless)));
  }
  const std::string refusal = concat("asks for ", rule.asks_for, ", which Tessera does not have");
  if (overridden(rule.name, rule.lifter, refusal)) return;
  const std::string written = item.node->kind == Node::Kind::kScalar ? item.node->text : "";
  refuse_for(std::move(changes), rule.name, written.empty() ? "" : quoted(written) + " ", refusal,
             "; ", rule.instead);
}

bool Section::overridden(std::string_view key, const char* setting, const std::string& refusal) {
  if (known_ == nullptr || !known_->is_overridden(setting)) return false;
  no_effect(key, concat(refusal, "; ", flag_name(setting), " decides instead"), Told::kByRun);
  return true;
}

const Section::Item* Section::find(std::string_view key) const {
  const auto found = items_.find(key);
  if (found == items_.end() || is_refused(key)) return nullptr;
  const Node& node = *found->second.node;
  return node.kind == Node::Kind::kScalar && is_empty(node) ? nullptr : &found->second;
}

ConfigEntry& Section::entry(std::string_view key) {
  if (is_refused(key)) return thrown_away_;
  const auto found = items_.find(key);
  require(found != items_.end(), ErrorCode::kInternal, "the key '", key, "' is not in the file");
  return translation_.entries[found->second.entry];
}

int Section::line(std::string_view key) const {
  const auto found = items_.find(key);
  return found == items_.end() ? map_line_ : translation_.entries[found->second.entry].line;
}

bool Section::is_null(std::string_view key) const {
  const auto found = items_.find(key);
  return found != items_.end() && found->second.node->is_null();
}

bool Section::is_auto(std::string_view key) const {
  const Item* item = find(key);
  return item != nullptr && item->rule->may_be_auto && is_auto_text(*item->node);
}

std::optional<bool> Section::flag(std::string_view key) const {
  const Item* item = find(key);
  return item == nullptr || is_auto(key) ? std::nullopt : as_flag(*item->node);
}
std::optional<std::int64_t> Section::integer(std::string_view key) const {
  const Item* item = find(key);
  return item == nullptr || is_auto(key) ? std::nullopt : as_integer(*item->node);
}
std::optional<double> Section::number(std::string_view key) const {
  const Item* item = find(key);
  return item == nullptr || is_auto(key) ? std::nullopt : as_number(*item->node);
}
std::optional<std::string> Section::text(std::string_view key) const {
  const Item* item = find(key);
  if (item == nullptr || is_auto(key) || item->canonical.empty()) return std::nullopt;
  return item->canonical;
}

const Node* Section::node(std::string_view key) const {
  const Item* item = find(key);
  return item == nullptr || is_empty(*item->node) ? nullptr : item->node;
}

const Node* Section::open(std::string_view key) {
  const Node* found = node(key);
  if (has(key)) agree(key, found != nullptr ? "see its keys" : "is empty");
  return found;
}

void Section::honour(std::string_view key, const std::string& setting, nlohmann::ordered_json value,
                     const std::string& note) {
  agree(key, note);
  entry(key).settings[setting] = std::move(value);
}

void Section::set(std::string_view key, const std::string& setting, nlohmann::ordered_json value,
                  const std::string& note, const std::string& note_if_absent) {
  if (has(key)) {
    honour(key, setting, std::move(value), note);
  } else {
    derive(key, setting, std::move(value), note_if_absent);
  }
}

bool Section::pass_on(std::string_view key, const std::string& setting) {
  const Item* item = find(key);
  if (item == nullptr || is_auto(key)) return false;
  nlohmann::ordered_json value = item->canonical;
  if (item->rule->type == KeyType::kFlag) value = *flag(key);
  if (item->rule->type == KeyType::kInteger) value = *integer(key);
  if (item->rule->type == KeyType::kNumber) value = *number(key);
  honour(key, setting, std::move(value));
  return true;
}

void Section::agree(std::string_view key, const std::string& note) {
  ConfigEntry& e = entry(key);
  if (e.outcome != KeyOutcome::kTranslated) e.outcome = KeyOutcome::kHonoured;
  e.note += (e.note.empty() || note.empty() ? "" : "; ") + note;
}

void Section::translate(std::string_view key, const std::string& setting,
                        nlohmann::ordered_json value, const std::string& note) {
  ConfigEntry& e = entry(key);
  e.outcome = KeyOutcome::kTranslated;
  e.settings[setting] = std::move(value);
  e.note += (e.note.empty() ? "" : "; ") + note;
  e.announce = true;
}

void Section::no_effect(std::string_view key, const std::string& note, Told told) {
  ConfigEntry& e = entry(key);
  e.outcome = KeyOutcome::kNoEffect;
  e.settings.clear();
  e.note = note;
  e.announce = e.announce || told == Told::kByRun;
}

void Section::differ(std::string_view key, const std::string& difference, Told told) {
  ConfigEntry& e = entry(key);
  e.difference += (e.difference.empty() ? "" : "; ") + difference;
  e.announce = e.announce || told == Told::kByRun;
}

void Section::derive(std::string_view key, const std::string& setting, nlohmann::ordered_json value,
                     const std::string& note, Told told) {
  absent(key, note, told);
  if (is_refused(key)) return;
  translation_.entries.back().settings = {{setting, std::move(value)}};
}

void Section::absent(std::string_view key, const std::string& note, Told told) {
  if (is_refused(key)) return;
  translation_.entries.push_back({.key = path_of(key),
                                  .file = file_,
                                  .outcome = KeyOutcome::kDerived,
                                  .note = note,
                                  .announce = told == Told::kByRun});
}

void Section::leave_unused(const std::string& note, Told told, KeyOutcome outcome) {
  for (auto& [name, item] : items_) {
    ConfigEntry& e = translation_.entries[item.entry];
    if (e.outcome) continue;
    e.outcome = outcome;
    e.note = note;
    e.announce = told == Told::kByRun;
  }
}

void Section::switch_off(const std::string& note) {
  for (const std::size_t index : entries_) {
    ConfigEntry& e = translation_.entries[index];
    const bool asks = e.outcome == KeyOutcome::kRefused || e.announce;
    if (e.outcome && !asks) continue;
    e.outcome = KeyOutcome::kNoEffect;
    e.note = note;
    e.announce = true;
  }
}

void check_complete(const ConfigTranslation& translation) {
  const auto refused = [](const ConfigEntry& e) { return e.outcome == KeyOutcome::kRefused; };
  if (std::ranges::any_of(translation.entries, refused)) throw ConfigRefused(translation);
  std::map<std::string, nlohmann::ordered_json> settings;
  for (const ConfigEntry& entry : translation.entries) {
    require(entry.outcome.has_value(), ErrorCode::kInternal, "nothing was made of ", entry.where(),
            ": ", entry.key);
    for (const auto& [setting, value] : entry.settings.items()) {
      const auto [said, first] = settings.emplace(setting, value);
      require(first || said->second == value, ErrorCode::kInternal, entry.where(), ": ", entry.key,
              " makes ", setting, " ", value.dump(), ", but another key makes it ",
              said->second.dump());
    }
  }
}

void translate_state_dict_type(Section& section, std::string_view key, bool full,
                               const KnownSettings& known, const std::string& note) {
  constexpr const char* kSetting = "state_dict_type";
  if (!known.has(kSetting)) {
    section.no_effect(key, "this program writes no Hugging Face folders");
  } else if (full) {
    section.translate(key, kSetting, "full",
                      "with --save, the end of the run also writes one Hugging Face folder; "
                      "checkpoints are written by all ranks, each its part");
  } else {
    section.honour(key, kSetting, "sharded", note);
  }
}

}  // namespace tessera::compat
