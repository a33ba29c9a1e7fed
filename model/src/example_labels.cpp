#include "example_labels.h"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>

#include "tessera/core/error.h"

namespace tessera::data {
namespace {

using nlohmann::ordered_json;

/// The value of one of two keys. Throws Error{kConfig} if there is neither, or both.
const ordered_json& one_of_keys(const ordered_json& example,
                                const std::array<const char*, 2>& keys) {
  require(example.is_object(), ErrorCode::kConfig, "is no JSON object");
  const bool first = example.contains(keys[0]), second = example.contains(keys[1]);
  require(first || second, ErrorCode::kConfig, "has neither \"", keys[0], "\" nor \"", keys[1],
          "\"; an example to classify is {\"text\": \"...\", \"label\": 0}, or with a name as "
          "label");
  require(!first || !second, ErrorCode::kConfig, "has both \"", keys[0], "\" and \"", keys[1],
          "\"; leave one of them out");
  return example.at(keys[first ? 0 : 1]);
}

std::string some_of(std::span<const std::string> labels) {
  constexpr std::size_t kMost = 6;
  std::string text;
  for (std::size_t i = 0; i < std::min(labels.size(), kMost); ++i)
    text += concat(i == 0 ? "" : ", ", labels[i]);
  return labels.size() > kMost ? concat(text, " and ", labels.size() - kMost, " more") : text;
}

}  // namespace

ExampleLabel label_of(const ordered_json& example) {
  const ordered_json& label = one_of_keys(example, {"label", "labels"});
  if (label.is_string() && !label.get<std::string>().empty()) {
    return {.name = label.get<std::string>()};
  }
  constexpr std::int64_t kMost = 1 << 24;
  const bool is_id = label.is_number_integer() && label.get<std::int64_t>() >= 0 &&
                     label.get<std::int64_t>() < kMost;
  require(is_id, ErrorCode::kConfig, "has the label ", label.dump(-1, ' ', true),
          "; a label is a number from 0 on, or a name");
  return {.id = label.get<std::int64_t>()};
}

std::int32_t class_of(const ordered_json& example, std::span<const std::string> labels) {
  const ExampleLabel label = label_of(example);
  if (label.id >= 0) {
    require(label.id < std::ssize(labels), ErrorCode::kConfig, "has the label ", label.id,
            ", and the model has ", labels.size(), " labels, 0 to ", labels.size() - 1, " (",
            some_of(labels), "); mend the line, or begin with a model without labels");
    return static_cast<std::int32_t>(label.id);
  }
  const auto found = std::ranges::find(labels, label.name);
  require(found != labels.end(), ErrorCode::kConfig, "has the label '", label.name,
          "', which is none of the model's: ", some_of(labels),
          "; mend the line, or begin with a model without labels");
  return static_cast<std::int32_t>(found - labels.begin());
}

std::string labelled_text(const ordered_json& example) {
  const ordered_json& text = one_of_keys(example, {"text", "sentence"});
  require(text.is_string(), ErrorCode::kConfig, "has a \"text\" or \"sentence\" that is no text");
  return text.get<std::string>();
}

}  // namespace tessera::data
