#include "document.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string_view>

#include "tessera/core/error.h"

namespace tessera::compat {
namespace {

// A thousand times what a configuration needs.
constexpr std::size_t kMaxBytes = std::size_t{1} << 20;
constexpr std::size_t kMaxDepth = 32;
constexpr std::int64_t kMaxNodes = 100'000;

std::int64_t node_count(const Node& node) {
  std::int64_t count = 1;
  for (const Node& item : node.items) count += node_count(item);
  for (const Node::Member& member : node.members) count += node_count(member.value);
  return count;
}

/// YAML's merge key: `<<: *defaults` takes what the map does not say itself; of a list of maps, the
/// first counts most.
void merge(Node& map) {
  const Node::Member* found = map.find("<<");
  if (found == nullptr || found->value.kind == Node::Kind::kScalar) return;
  const Node defaults = found->value;
  std::erase_if(map.members, [](const Node::Member& member) { return member.key == "<<"; });
  std::set<std::string, std::less<>> keys;
  for (const Node::Member& member : map.members) keys.insert(member.key);
  const auto take = [&](const Node& from) {
    for (const Node::Member& member : from.members) {
      if (keys.insert(member.key).second) map.members.push_back(member);
    }
  };
  take(defaults);
  for (const Node& item : defaults.items) take(item);
}

/// Length of the UTF-8 sequence that begins at `i`, or 0.
std::size_t utf8_length(const std::string& text, std::size_t i) {
  const auto byte = [&](std::size_t at) { return static_cast<unsigned char>(text[at]); };
  const unsigned char first = byte(i);
  const std::size_t length = first < 0x80                     ? 1
                             : first >= 0xC2 && first < 0xE0  ? 2
                             : (first & 0xF0U) == 0xE0        ? 3
                             : first >= 0xF0 && first <= 0xF4 ? 4
                                                              : 0;
  if (length == 0 || i + length > text.size()) return 0;
  for (std::size_t k = 1; k < length; ++k) {
    if ((byte(i + k) & 0xC0U) != 0x80) return 0;
  }
  return length;
}

/// Whether the first line that says something is TOML's: "[section]" or "key = value". Neither can
/// begin a map of YAML or JSON.
bool looks_like_toml(const std::string& text) {
  constexpr std::string_view kBlanks = " \t\r";
  constexpr std::string_view kKey =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.\"";
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    line.erase(0, std::min(line.find_first_not_of(kBlanks), line.size()));
    if (line.empty() || line.front() == '#') continue;
    const bool section = line.front() == '[';
    if (section) line.erase(0, std::min(line.find_first_not_of('['), line.size()));
    if (section && (line.empty() || std::isalpha(static_cast<unsigned char>(line[0])) == 0)) break;
    const std::size_t key = line.find_first_not_of(kKey);
    const std::size_t next = line.find_first_not_of(kBlanks, key);
    return key != std::string::npos && key > 0 && next != std::string::npos &&
           line[next] == (section ? ']' : '=');
  }
  return false;
}

void check_is_text(const std::string& path, const std::string& text) {
  int line = 1;
  for (std::size_t i = 0; i < text.size();) {
    const auto character = static_cast<unsigned char>(text[i]);
    const bool control =
        character < 0x20 && character != '\n' && character != '\r' && character != '\t';
    const std::size_t length = utf8_length(text, i);
    require(!control && length > 0, ErrorCode::kConfig, at_line(path, line),
            "is not a text; give the path of a JSON or YAML file");
    if (character == '\n') ++line;
    i += length;
  }
}

/// A descriptor that this process was given, as by `--config <(command)`: its writer is at work.
bool is_given_descriptor(const std::string& path) {
  return path == "/dev/stdin" || path.starts_with("/dev/fd/") || path.starts_with("/proc/self/fd/");
}

/// A CR alone ends a line in YAML, too, but not for its parser here, nor for those who count lines.
std::string with_line_feeds(std::string text) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool alone = i + 1 == text.size() || text[i + 1] != '\n';
    if (text[i] == '\r' && alone) text[i] = '\n';
  }
  return text;
}

}  // namespace

const Node::Member* Node::find(std::string_view key) const {
  const auto found = std::ranges::find(members, key, &Member::key);
  return found == members.end() ? nullptr : &*found;
}

nlohmann::ordered_json Node::json() const {
  switch (kind) {
    case Kind::kScalar:
      return scalar;
    case Kind::kList: {
      auto list = nlohmann::ordered_json::array();
      for (const Node& item : items) list.push_back(item.json());
      return list;
    }
    case Kind::kMap: {
      auto map = nlohmann::ordered_json::object();
      for (const Member& member : members) map[member.key] = member.value.json();
      return map;
    }
  }
  return {};
}

std::string at_line(std::string_view path, int line) {
  return line > 0 ? concat(path, ":", line, ": ") : concat(path, ": ");
}

namespace {

bool is_json(const std::string& path, const std::string& text) {
  try {
    parse_json(path, text);
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

Document parse_document(const std::string& path, const std::string& original) {
  constexpr const char* kByteOrderMark = "\xEF\xBB\xBF";
  const std::string text =
      with_line_feeds(original.starts_with(kByteOrderMark) ? original.substr(3) : original);
  check_is_text(path, text);
  Document document{.path = path};
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  require(first != std::string::npos, ErrorCode::kConfig, path,
          ": is empty; write settings into it, or run 'tessera config'");
  require(!looks_like_toml(text), ErrorCode::kConfig, path,
          ": is a TOML file; settings are read from YAML or JSON: write 'key: value', and the keys "
          "of a section indented under 'section:'");
  const bool braces = text[first] == '{';
  // `accelerate config default` writes JSON into files called .yaml; YAML may also use braces.
  document.json = path.ends_with(".json");
  if (!document.json && braces) {
    try {
      document.root = parse_json(path, text);
      document.json = true;
      return document;
    } catch (const Error&) {
      // Not JSON: what is wrong with it as YAML is told below.
    }
  }
  const auto of_python = document.json ? json_of_python(text) : std::nullopt;
  if (of_python && !is_json(path, text)) {
    document.root = parse_json(path, *of_python);
    document.note =
        "is no JSON, but as Python prints it: True, None, 'single quotes' or a comma behind the "
        "last value; read as what they mean there. json.dump writes JSON";
    return document;
  }
  document.root = document.json ? parse_json(path, text) : parse_yaml(path, text);
  require(document.root.kind == Node::Kind::kMap, ErrorCode::kConfig,
          at_line(path, document.root.line), "expected one object, like ",
          document.json ? "{\"micro_batch\": 4}" : "micro_batch: 4");
  return document;
}

std::string read_text(const std::string& path) {
  constexpr const char* kRemedy = "; give the path of a JSON or YAML file";
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  require(!std::filesystem::is_directory(status), ErrorCode::kConfig, path, ": is a folder",
          kRemedy);
  // Opening a pipe waits for somebody who writes into it.
  require(!std::filesystem::exists(status) || std::filesystem::is_regular_file(status) ||
              is_given_descriptor(path),
          ErrorCode::kConfig, path, ": is a pipe or a device, not a file", kRemedy);
  std::ifstream file(path, std::ios::binary);
  require(file.is_open(), ErrorCode::kConfig, path, ": cannot be opened", kRemedy);
  std::string text(kMaxBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  require(!file.bad(), ErrorCode::kIo, path, ": cannot be read");
  text.resize(static_cast<std::size_t>(file.gcount()));
  require(text.size() <= kMaxBytes, ErrorCode::kConfig, path,
          ": is longer than 1 MiB, too long for settings", kRemedy);
  return text;
}

Document read_document(const std::string& path) { return parse_document(path, read_text(path)); }

bool TreeBuilder::wants_key() const {
  return !open_.empty() && open_.back().node.kind == Node::Kind::kMap && !open_.back().pending;
}

void TreeBuilder::key(const std::string& text, int line) {
  check_text(text, line);
  Open& map = open_.back();
  const auto [before, is_new] = map.keys.emplace(text, line);
  require(is_new, ErrorCode::kConfig, at_line(path_, line), "'", text,
          "' is there twice, also on line ", before->second, "; keep one");
  map.pending = Node::Member{.key = text, .line = line, .value = {}};
}

void TreeBuilder::scalar(nlohmann::json value, std::string text, int line, std::size_t anchor) {
  check_text(text, line);
  count(1, line);
  add({.line = line, .scalar = std::move(value), .text = std::move(text)}, anchor);
}

void TreeBuilder::begin(Node::Kind kind, int line, std::size_t anchor) {
  count(1, line);
  require(open_.size() < kMaxDepth, ErrorCode::kConfig, at_line(path_, line),
          "is nested deeper than ", kMaxDepth, " levels, too deep for settings");
  open_.push_back({.node = {.kind = kind, .line = line}, .anchor = anchor});
}

void TreeBuilder::end() {
  Open done = std::move(open_.back());
  open_.pop_back();
  merge(done.node);
  add(std::move(done.node), done.anchor);
}

void TreeBuilder::alias(std::size_t anchor, int line) {
  const auto found = anchors_.find(anchor);
  require(found != anchors_.end(), ErrorCode::kConfig, at_line(path_, line),
          "an alias stands for itself; write the value out");
  count(node_count(found->second), line);
  add(found->second, 0);
}

/// A path would end at its first NUL.
void TreeBuilder::check_text(const std::string& text, int line) const {
  require(text.find('\0') == std::string::npos, ErrorCode::kConfig, at_line(path_, line),
          "a text holds a NUL character, as \\u0000 or \\0; leave it out");
}

void TreeBuilder::count(std::int64_t nodes, int line) {
  nodes_ += nodes;
  require(nodes_ <= kMaxNodes, ErrorCode::kConfig, at_line(path_, line), "holds more than ",
          kMaxNodes, " values, too many for settings");
}

void TreeBuilder::add(Node node, std::size_t anchor) {
  if (anchor != 0) anchors_[anchor] = node;
  if (open_.empty()) {
    root_ = std::move(node);
    return;
  }
  Open& parent = open_.back();
  if (parent.node.kind == Node::Kind::kList) {
    parent.node.items.push_back(std::move(node));
  } else {
    parent.pending->value = std::move(node);
    parent.node.members.push_back(std::move(*parent.pending));
    parent.pending.reset();
  }
}

// Accelerate looks from the current folder; files that lie together should work from anywhere.
std::string beside(const std::string& of, const std::string& named) {
  const auto other = std::filesystem::path(of).parent_path() / named;
  std::error_code error;
  const bool there =
      !std::filesystem::exists(named, error) && std::filesystem::exists(other, error);
  return there ? other.string() : named;
}

}  // namespace tessera::compat
