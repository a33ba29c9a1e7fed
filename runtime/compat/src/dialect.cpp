#include <algorithm>
#include <array>
#include <set>

#include "keys.h"
#include "tessera/core/error.h"

namespace tessera::compat {
namespace {

struct Dialect {
  ConfigDialect dialect;
  std::set<std::string, std::less<>> keys;
  const Node::Member* first = nullptr;  ///< of the file's keys, the first that it alone has
};

std::set<std::string, std::less<>> names(const std::vector<KeyRule>& rules) {
  std::set<std::string, std::less<>> result;
  for (const KeyRule& rule : rules) result.emplace(rule.name);
  return result;
}

bool knows(const Dialect& dialect, const Node::Member& member) {
  const std::string key =
      dialect.dialect == ConfigDialect::kTessera ? setting_name(member.key) : member.key;
  // fp16 was a switch in Accelerate's old files; in DeepSpeed's it is a section.
  if (key == "fp16") {
    return (dialect.dialect == ConfigDialect::kDeepSpeed) ==
           (member.value.kind == Node::Kind::kMap);
  }
  return dialect.keys.contains(key);
}

}  // namespace

Recognition recognise(const Document& document, const std::vector<Setting>& table) {
  std::array dialects{Dialect{ConfigDialect::kTessera, {}},
                      Dialect{ConfigDialect::kAccelerate, names(table_of("accelerate").rules)},
                      Dialect{ConfigDialect::kDeepSpeed, names(table_of("deepspeed").rules)}};
  for (const Setting& setting : table) dialects[0].keys.insert(setting.name);
  for (const Node::Member& member : document.root.members) {
    const auto known = [&](const Dialect& dialect) { return knows(dialect, member); };
    if (std::ranges::count_if(dialects, known) != 1) continue;
    Dialect& only = *std::ranges::find_if(dialects, known);
    if (only.first == nullptr) only.first = &member;
  }
  const Dialect* found = nullptr;
  for (const Dialect& dialect : dialects) {
    if (dialect.first == nullptr) continue;
    require(found == nullptr, ErrorCode::kConfig,
            at_line(document.path, found == nullptr ? 0 : dialect.first->line), "'",
            dialect.first->key, "' is a key of ", to_string(dialect.dialect), ", but '",
            found == nullptr ? "" : found->first->key, "' on line ",
            found == nullptr ? 0 : found->first->line, " is one of ",
            found == nullptr ? "" : to_string(found->dialect),
            "; keep the keys of one of them in this file");
    found = &dialect;
  }
  if (found != nullptr) return {found->dialect, found->first->key};
  if (document.root.members.empty()) return {};

  // Every key is unknown: the nearest of all is the likeliest.
  std::vector<std::string> all;
  for (const Dialect& dialect : dialects)
    all.insert(all.end(), dialect.keys.begin(), dialect.keys.end());
  const Node::Member& member = document.root.members.front();
  const bool several = document.root.members.size() > 1;
  // A file of quite another kind has many keys, of which one may be near by chance.
  const std::string nearest = several ? "" : near_word(member.key, all);
  fail(ErrorCode::kConfig, at_line(document.path, member.line), member.key, ": unknown key; ",
       nearest.empty() ? "this is no file of Tessera, Accelerate or DeepSpeed"
                       : concat("did you mean '", nearest, "'?"));
}

}  // namespace tessera::compat
