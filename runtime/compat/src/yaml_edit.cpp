#include "yaml_edit.h"

#include <algorithm>
#include <sstream>
#include <vector>

#include "scalar.h"

namespace tessera::compat {
namespace {

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
  const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
  return {.scalar = value, .text = text};
}

using Lines = std::vector<std::string>;

Lines lines_of(const std::string& text) {
  Lines lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(std::move(line));
  return lines;
}

std::string text_of(const Lines& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

std::size_t indent_of(const std::string& line) {
  return std::min(line.find_first_not_of(' '), line.size());
}

bool is_blank(const std::string& line) {
  const std::size_t first = line.find_first_not_of(" \t\r");
  return first == line.npos || line[first] == '#';
}

std::string yaml_scalar(const nlohmann::ordered_json& value) {
  if (!value.is_string()) return value.dump();
  const auto text = value.get<std::string>();
  const bool word = !text.empty() && std::ranges::all_of(text, [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '/' || c == '.';
  });
  const Node node{.scalar = text, .text = text};
  const bool means_more = as_flag(node) || as_number(node) || lower(text) == "null";
  return word && !means_more ? text : nlohmann::json(text).dump();
}

/// The line of a key, where it begins; nothing if the key does not stand there by itself.
struct KeyLine {
  std::size_t line = 0;
  std::size_t begin = 0;  ///< of the key, with its quote
  std::size_t end = 0;    ///< behind it
};

std::optional<KeyLine> key_line(const Lines& lines, const Node::Member& member) {
  const auto line = static_cast<std::size_t>(member.line - 1);
  if (member.line < 1 || line >= lines.size()) return std::nullopt;
  const std::string& text = lines[line];
  const std::size_t begin = indent_of(text);
  const bool quoted = begin < text.size() && (text[begin] == '"' || text[begin] == '\'');
  const std::size_t word = begin + (quoted ? 1 : 0);
  if (word > text.size() || text.compare(word, member.key.size(), member.key) != 0) {
    return std::nullopt;
  }
  return KeyLine{line, begin, word + member.key.size() + (quoted ? 1 : 0)};
}

/// Behind the last line of what a key has.
std::size_t end_of(const Lines& lines, const KeyLine& key, const Node& value) {
  std::size_t end = key.line + 1;
  for (std::size_t i = end; i < lines.size(); ++i) {
    if (is_blank(lines[i])) continue;
    const std::size_t indent = indent_of(lines[i]);
    const bool item = value.kind == Node::Kind::kList && lines[i].compare(indent, 1, "-") == 0;
    if (indent < key.begin || (indent == key.begin && !item)) break;
    end = i + 1;
  }
  return end;
}

bool rename_in(Lines& lines, const Node::Member& member, const std::string& name) {
  const auto key = key_line(lines, member);
  if (key) lines[key->line].replace(key->begin, key->end - key->begin, name);
  return key.has_value();
}

bool comment_out(Lines& lines, const Node::Member& member) {
  const auto key = key_line(lines, member);
  if (!key) return false;
  const std::size_t end = end_of(lines, *key, member.value);
  for (std::size_t i = key->line; i < end; ++i) {
    lines[i].insert(std::min(key->begin, lines[i].size()), "# ");
  }
  return true;
}

bool set_in(Lines& lines, const Node::Member& member, const std::string& value) {
  const auto key = key_line(lines, member);
  if (!key || end_of(lines, *key, member.value) != key->line + 1) return false;
  std::string& line = lines[key->line];
  const std::size_t colon = line.find(':', key->end);
  if (colon == line.npos) return false;
  const std::size_t begin = line.find_first_not_of(" \t\r", colon + 1);
  if (begin == line.npos || line[begin] == '#') {
    line.insert(colon + 1, " " + value);
    return true;
  }
  const bool quoted = line[begin] == '"' || line[begin] == '\'';
  std::size_t end = quoted ? line.find(line[begin], begin + 1) : line.find(" #", begin);
  if (!quoted || end == line.npos) end = line.find_last_not_of(" \t\r", end);
  ++end;
  line.replace(begin, end - begin, value);
  return true;
}

bool add_to(Lines& lines, Node& root, const std::string& path, const std::string& value) {
  const std::size_t dot = path.rfind('.');
  if (dot == path.npos) {
    lines.push_back(path + ": " + value);
    return true;
  }
  const std::string section = path.substr(0, dot);
  const std::string entry = path.substr(dot + 1) + ": " + value;
  const auto place = find(root, section);
  if (!place) {
    if (section.find('.') != section.npos) return false;
    lines.push_back(section + ":");
    lines.push_back("  " + entry);
    return true;
  }
  const auto key = key_line(lines, place->member());
  if (!key) return false;
  std::size_t indent = key->begin + 2;
  const auto& members = place->member().value.members;
  if (!members.empty()) {
    const auto first = key_line(lines, members.front());
    if (!first) return false;
    indent = first->begin;
  }
  lines.insert(lines.begin() + static_cast<std::ptrdiff_t>(key->line) + 1,
               std::string(indent, ' ') + entry);
  return true;
}

}  // namespace

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

std::optional<std::string> change_yaml(const std::string& text, Node root,
                                       const ConfigChange& change) {
  Lines lines = lines_of(text);
  const auto place = find(root, change.key);
  bool done = false;
  if (!change.name.empty()) {
    done = place && rename_in(lines, place->member(), change.name);
  } else if (!change.value) {
    done = place && comment_out(lines, place->member());
  } else if (place) {
    done = set_in(lines, place->member(), yaml_scalar(*change.value));
  } else {
    done = add_to(lines, root, change.key, yaml_scalar(*change.value));
  }
  return done ? std::optional(text_of(lines)) : std::nullopt;
}

const Node* value_at(const Node& root, const std::string& path) {
  for (const Node::Member& member : root.members) {
    if (member.key == path) return &member.value;
    if (!path.starts_with(member.key + ".")) continue;
    if (const Node* below = value_at(member.value, path.substr(member.key.size() + 1)))
      return below;
  }
  return nullptr;
}

}  // namespace tessera::compat
