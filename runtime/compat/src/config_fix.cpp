#include <algorithm>
#include <map>

#include "document.h"
#include "key_table.h"
#include "tessera/compat/config_file.h"
#include "tessera/compat/questionnaire.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

using compat::Document;
using compat::Node;

std::string show(const nlohmann::ordered_json& value) { return shortened(plain_text(value)); }

/// A key, and the map that has it.
struct Place {
  Node* map = nullptr;
  std::size_t index = 0;

  Node::Member& member() const { return map->members[index]; }
};

/// Keys may hold dots themselves, so that a path is followed along the keys that are there.
std::optional<Place> find(Node& map, std::string_view path) {
  for (std::size_t i = 0; i < map.members.size(); ++i) {
    Node::Member& member = map.members[i];
    if (member.key == path) return Place{&map, i};
    if (!path.starts_with(member.key + ".")) continue;
    if (const auto below = find(member.value, path.substr(member.key.size() + 1))) return below;
  }
  return std::nullopt;
}

/// The map of sections in which a path ends, and the path's last part. Makes what is not there.
std::pair<Node*, std::string> make_place(Node& root, std::string path) {
  Node* map = &root;
  for (std::size_t dot = path.find('.'); dot != path.npos; dot = path.find('.')) {
    const std::string section = path.substr(0, dot);
    auto place = find(*map, section);
    if (!place) {
      map->members.push_back({.key = section, .value = {}});
      place = Place{map, map->members.size() - 1};
    }
    map = &place->member().value;
    if (map->kind != Node::Kind::kMap) *map = {.kind = Node::Kind::kMap, .line = map->line};
    path.erase(0, dot + 1);
  }
  return {map, path};
}

Node scalar_of(const nlohmann::ordered_json& value) {
  return {.scalar = value, .text = plain_text(value)};
}

/// Makes one change in a tree. False if it says nothing new: a key to leave out, or to call
/// otherwise, is not there.
bool apply_change(Node& root, const ConfigChange& change) {
  const auto place = find(root, change.key);
  if (!change.name.empty()) {
    if (place) place->member().key = change.name;
    return place.has_value();
  }
  if (change.value) {
    if (place) {
      place->member().value = scalar_of(*change.value);
      return true;
    }
    const auto [map, key] = make_place(root, change.key);
    map->members.push_back({.key = key, .value = scalar_of(*change.value)});
    return true;
  }
  if (!place) return false;
  Node& map = *place->map;
  map.members.erase(map.members.begin() + static_cast<std::ptrdiff_t>(place->index));
  if (map.members.empty() && &map != &root) map = {};  // as YAML has it: the key alone
  return true;
}

/// The value of a key, by a path as in ConfigEntry; null if there is none.
const Node* value_at(Node& root, std::string_view path) {
  const auto place = find(root, path);
  return place ? &place->member().value : nullptr;
}

/// A file on its way to one that is accepted. The text counts; the document is what it says.
class Fix {
 public:
  Fix(const std::string& path, const TranslationContext& context)
      : context_(context),
        text_(compat::read_text(path)),
        document_(compat::parse_document(path, text_)),
        before_(document_.root) {}

  FixedConfig fix() {
    // A change may uncover what was not judged before: a section that is read now, for example.
    constexpr int kRounds = 10;
    for (int round = 0;; ++round) {
      const auto refused = refusals();
      if (!refused) break;
      // Names first: a key that is spelt right is not missing any more.
      const auto& entries = refused->translation().entries;
      if (round == kRounds || !(change(entries, true) || change(entries, false))) throw *refused;
    }
    return {.text = text_, .changes = changes(), .comments_lost = comments_lost_};
  }

 private:
  std::optional<ConfigRefused> refusals() const {
    try {
      static_cast<void>(ConfigFile(document_.path, text_).translate(context_));
      return std::nullopt;
    } catch (const ConfigRefused& refused) {
      return refused;
    }
  }

  bool change(const std::vector<ConfigEntry>& entries, bool names) {
    bool any = false;
    for (const ConfigEntry& entry : entries) {
      if (entry.outcome != KeyOutcome::kRefused) continue;
      require(entry.file == document_.path, ErrorCode::kConfig, entry.where(), ": ", entry.key,
              ": ", entry.note, "; this is another file, mend that first");
      std::vector<ConfigChange> changes = entry.changes;
      if (changes.empty()) changes.push_back({.key = entry.key});
      for (ConfigChange& change : changes) {
        if (!change.name.empty() && has_sibling(change)) change.name.clear();
        if (change.name.empty() != names) any = apply(change) || any;
      }
    }
    return any;
  }

  /// True if the map has a key of the new name already.
  bool has_sibling(const ConfigChange& change) {
    const std::size_t dot = change.key.rfind('.');
    const std::string section = dot == change.key.npos ? "" : change.key.substr(0, dot + 1);
    return value_at(document_.root, section + change.name) != nullptr;
  }

  bool apply(const ConfigChange& change) {
    Node wanted = document_.root;
    if (!apply_change(wanted, change)) return false;
    touched_.push_back(change);
    // JSON is YAML, too, and Accelerate itself writes it into files called .yaml.
    comments_lost_ = comments_lost_ || (document_.json ? !nlohmann::json::accept(text_)
                                                       : text_.find('#') != std::string::npos);
    text_ = questionnaire::config_text(wanted.json(), document_.json ? ".json" : ".yaml");
    document_ = compat::parse_document(document_.path, text_);
    return true;
  }

  /// The outcome of each key in the end, in the order of the changes.
  std::vector<std::string> changes() {
    std::vector<std::string> lines;
    for (const ConfigChange& change : touched_) {
      const Node* before = value_at(before_, change.key);
      const Node* after = value_at(document_.root, change.key);
      std::string line = change.key;
      if (!change.name.empty()) {
        line += concat(" -> ", change.name);
      } else if (before == nullptr && after == nullptr) {
        continue;
      } else if (before == nullptr) {
        line += concat(": ", show(after->json()), " (added)");
      } else if (after == nullptr) {
        line += concat(": ", show(before->json()), " (left out)");
      } else {
        line += concat(": ", show(before->json()), " -> ", show(after->json()));
      }
      if (std::ranges::find(lines, line) == lines.end()) lines.push_back(std::move(line));
    }
    return lines;
  }

  const TranslationContext& context_;
  std::string text_;
  Document document_;
  Node before_;
  std::vector<ConfigChange> touched_;
  bool comments_lost_ = false;
};

}  // namespace

FixedConfig fix_config(const std::string& path, const TranslationContext& context) {
  return Fix(path, context).fix();
}

}  // namespace tessera
