#pragma once

#include <optional>
#include <string>
#include <vector>

namespace tessera::cli {

/// One of the data of --data.
struct WeightedPath {
  std::string path;
  std::optional<double> weight{};
};

/// The data that a text names: a path, or several behind each other, with commas between, each
/// with "=0.7" or without. A text that is a path is one, whatever is in it. Throws Error{kConfig}.
std::vector<WeightedPath> parse_data(const std::string& text);

}  // namespace tessera::cli
