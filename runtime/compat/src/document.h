#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tessera/trainer/setting.h"

namespace tessera::compat {

/// A value of a configuration file and the line it stands on.
struct Node {
  enum class Kind : std::uint8_t { kScalar, kList, kMap };
  struct Member;

  Kind kind = Kind::kScalar;
  int line = 0;             ///< from 1; of a list or a map: where it begins
  nlohmann::json scalar{};  ///< null, a boolean, a number or a text, as the file's notation has it
  std::string text{};       ///< of a YAML scalar: as written, without quotes
  std::vector<Node> items{};
  std::vector<Member> members{};

  bool is_null() const { return kind == Kind::kScalar && scalar.is_null(); }
  /// The member of that key; null if there is none.
  const Member* find(std::string_view key) const;
  /// The whole subtree without its lines.
  nlohmann::ordered_json json() const;
};

struct Node::Member {
  std::string key;
  int line = 0;
  Node value;
};

/// A file that holds one map. Keys of a map are different, or reading fails.
struct Document {
  std::string path;
  bool json = false;  ///< written as JSON rather than YAML
  Node root{};
  std::string note{};  ///< on how it was read; "" if there is nothing to say
};

/// Reads JSON with comments, or YAML, whichever the file holds. Refuses files above 1 MiB, more
/// than 32 levels and more than 100,000 values, so that no file can hang the program.
/// Throws Error{kConfig} that names the file and the line.
Document read_document(const std::string& path);

/// The text of a file of settings. Throws as read_document does if it has none.
std::string read_text(const std::string& path);

/// Parses a text at hand; `path` is only for messages and for its ending.
Document parse_document(const std::string& path, const std::string& text);

/// "configs/x.yaml:12: "; line 0 stands for the file as a whole.
std::string at_line(std::string_view path, int line);

// The parsers that read_document chooses between.
Node parse_json(const std::string& path, const std::string& text);
/// The text as JSON, line by line, if Python has printed it: with True, False, None, 'single
/// quotes' or a comma behind the last value. Nothing if it has none of them.
std::optional<std::string> json_of_python(const std::string& text);
Node parse_yaml(const std::string& path, const std::string& text);

/// Builds a tree from the events of a parser; enforces the limits and that keys are unique.
class TreeBuilder {
 public:
  explicit TreeBuilder(std::string path) : path_(std::move(path)) {}

  /// True where the next scalar is a key.
  bool wants_key() const;
  void key(const std::string& text, int line);
  /// `anchor`: a YAML anchor's number, 0 for none.
  void scalar(nlohmann::json value, std::string text, int line, std::size_t anchor = 0);
  void begin(Node::Kind kind, int line, std::size_t anchor = 0);
  void end();
  /// A copy of what an anchor stands for.
  void alias(std::size_t anchor, int line);
  Node take() { return std::move(root_); }

 private:
  struct Open {
    Node node;
    std::size_t anchor = 0;
    std::optional<Node::Member> pending{};        // the key whose value comes next
    std::unordered_map<std::string, int> keys{};  // and their lines
  };
  void add(Node node, std::size_t anchor);
  void check_text(const std::string& text, int line) const;
  void count(std::int64_t nodes, int line);

  std::string path_;
  std::vector<Open> open_;
  std::map<std::size_t, Node> anchors_;
  Node root_;
  std::int64_t nodes_ = 0;
};

/// The path of a file that the file `of` names: from the current folder, or else from beside `of`.
std::string beside(const std::string& of, const std::string& named);

// The meaning of a scalar of a foreign file. Python reads these files leniently, and people quote:
// "true", 'no', 1 and yes are booleans; 8, "8" and 1e8 are integers. Nothing if it is not one.
std::optional<bool> as_flag(const Node& node);
std::optional<std::int64_t> as_integer(const Node& node);
std::optional<double> as_number(const Node& node);

/// The remedy for a text that is no number, or no integer, to follow the message that says so.
std::string number_remedy(const Node& node);

/// The product of sizes of at least 1; the largest number there is if they make more.
std::int64_t product(std::initializer_list<std::int64_t> sizes);

std::string upper(std::string_view text);

}  // namespace tessera::compat
