#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "document.h"
#include "key_table.h"

// The values of keys, by the rules of the tables.
namespace tessera::compat {

bool is_empty(const Node& node);
/// True if a value is spelt so that it stands for none: null everywhere, an empty text where texts
/// belong, {} where keys do, and either of {} and [] where any value may be that nobody here reads.
bool says_nothing(const KeyRule& rule, const Node& node);
bool is_auto_text(const Node& node);
std::vector<std::string> strings(const std::vector<const char*>& words);
/// The value of `allowed` that is meant, or "".
std::string match(const std::string& shown, const std::vector<const char*>& allowed);
std::string in_words(const KeyRule& rule);
/// Keys by which people write comments in JSON, which has none.
bool is_comment(std::string_view key);
/// True if a value asks for what its key is about. `shown`: its canonical spelling.
bool asks(const KeyRule& rule, const Node& node, const std::string& shown);
/// The value by which a key asks for nothing; none where it has to be left out for that.
std::optional<nlohmann::ordered_json> value_for_nothing(const KeyRule& rule);
/// The value in one spelling, to compare with the table's, or nothing if it is of another type.
std::optional<std::string> canonical(const KeyRule& rule, const Node& node);

}  // namespace tessera::compat
