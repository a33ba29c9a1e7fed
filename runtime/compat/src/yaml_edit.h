#pragma once

#include <optional>
#include <string>

#include "document.h"
#include "tessera/compat/config_sources.h"

namespace tessera::compat {

/// Makes one change in a tree. False if it says nothing new: a key to leave out, or to call
/// otherwise, is not there.
bool apply_change(Node& root, const ConfigChange& change);

/// The same in the text of a YAML file, line by line, so that its comments stay; what is left out
/// becomes a comment. Nothing if the text is not of one key to a line there: whoever calls compares
/// what the new text says with the changed tree.
std::optional<std::string> change_yaml(const std::string& text, Node root,
                                       const ConfigChange& change);

/// The value of a key, by a path as in ConfigEntry; null if there is none.
const Node* value_at(const Node& root, const std::string& path);

}  // namespace tessera::compat
