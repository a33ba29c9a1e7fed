#include <algorithm>
#include <map>

#include "document.h"
#include "key_table.h"
#include "tessera/compat/config_file.h"
#include "tessera/core/error.h"
#include "yaml_edit.h"

namespace tessera {
namespace {

using compat::Document;
using compat::Node;

std::string show(const nlohmann::ordered_json& value) {
  return shortened(value.is_string() ? value.get<std::string>() : value.dump());
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
  bool has_sibling(const ConfigChange& change) const {
    const std::size_t dot = change.key.rfind('.');
    const std::string section = dot == change.key.npos ? "" : change.key.substr(0, dot + 1);
    return compat::value_at(document_.root, section + change.name) != nullptr;
  }

  bool apply(const ConfigChange& change) {
    Node wanted = document_.root;
    if (!compat::apply_change(wanted, change)) return false;
    touched_.push_back(change);
    if (!document_.json) {
      const auto text = compat::change_yaml(text_, document_.root, change);
      if (text && says(*text, wanted)) return true;
    }
    // JSON is YAML, too, and Accelerate itself writes it into files called .yaml.
    const bool had_comments =
        document_.json ? !nlohmann::json::accept(text_) : text_.find('#') != std::string::npos;
    comments_lost_ = comments_lost_ || had_comments;
    text_ = wanted.json().dump(2) + "\n";
    document_ = compat::parse_document(document_.path, text_);
    return true;
  }

  /// Takes the text if it says no more and no less.
  bool says(const std::string& text, const Node& wanted) {
    try {
      Document document = compat::parse_document(document_.path, text);
      if (document.root.json() != wanted.json()) return false;
      document_ = std::move(document);
      text_ = text;
      return true;
    } catch (const Error&) {
      return false;
    }
  }

  /// What became of each key in the end, in the order of the changes.
  std::vector<std::string> changes() const {
    std::vector<std::string> lines;
    for (const ConfigChange& change : touched_) {
      const Node* before = compat::value_at(before_, change.key);
      const Node* after = compat::value_at(document_.root, change.key);
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
