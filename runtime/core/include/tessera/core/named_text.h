#pragma once

#include <string>

namespace tessera {

/// A value in words, and what it is of.
struct NamedText {
  std::string name;
  std::string value;
  bool operator==(const NamedText&) const = default;
};

}  // namespace tessera
