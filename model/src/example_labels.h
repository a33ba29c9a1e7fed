#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

namespace tessera::data {

/// The label of an example as its line has it: a number or a name.
struct ExampleLabel {
  std::int64_t id = -1;  ///< -1: it is `name`
  std::string name{};
};

/// The value of "label" or "labels". Throws Error{kConfig} whose text follows the example's place.
ExampleLabel label_of(const nlohmann::ordered_json& example);
/// Its class, of those that `labels` names. Throws likewise if it is none of them.
std::int32_t class_of(const nlohmann::ordered_json& example, std::span<const std::string> labels);
/// The value of "text" or "sentence". Throws likewise.
std::string labelled_text(const nlohmann::ordered_json& example);

}  // namespace tessera::data
