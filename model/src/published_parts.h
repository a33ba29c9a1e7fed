#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/model/gpt.h"

namespace tessera {

/// A tensor of the published model that has one of our parameters, or some of its rows.
struct PublishedPart {
  std::string name;  ///< without the family's prefix
  std::int64_t first_row = 0;
  std::int64_t rows = 0;
};

/// The parts of a parameter of ours in the published model, in order of rows: query, key and value,
/// and gate and up, are apart in most families. `rows`: of the parameter.
std::vector<PublishedPart> published_parts(const GptConfig& config, const std::string& parameter,
                                           std::int64_t rows);

/// Whether a parameter or module is the head's, whose name has no prefix.
bool is_of_head(std::string_view name);
/// The name with the family's prefix; the head has none.
std::string published_name(const GptConfig& config, const std::string& name);

}  // namespace tessera
