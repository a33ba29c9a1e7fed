#include "tessera/model/classification.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "data_files.h"
#include "example_labels.h"
#include "example_records.h"
#include "tessera/core/error.h"

namespace tessera {

std::vector<std::string> labels_in(const std::string& path) {
  const std::vector<std::string> files =
      data::find_example_files({.path = path, .kind = DataKind::kExamples});
  const data::ExampleRecords records(files);
  std::set<std::string> names;
  std::int64_t largest = -1;
  records.visit(0, records.size(), [&](std::int64_t record, const nlohmann::ordered_json& example) {
    try {
      const data::ExampleLabel label = data::label_of(example);
      const bool is_name = label.id < 0;
      require(is_name ? largest < 0 : names.empty(), ErrorCode::kConfig, "has a label that is a ",
              is_name ? "text" : "number", ", and those before it have ",
              is_name ? "numbers" : "texts", "; write all of one kind");
      if (is_name) names.insert(label.name);
      largest = std::max(largest, label.id);
    } catch (const Error& error) {
      fail(error.code(), records.place(record), " ", error.what());
    }
  });
  if (largest >= 0) return numbered_labels(largest + 1);
  return {names.begin(), names.end()};
}

bool has_labels(const std::string& path) {
  const std::vector<std::string> files = data::find_example_files({.path = path});
  if (files.empty()) return false;
  const data::ExampleRecords records(files);
  bool found = false;
  records.visit(0, std::min<std::int64_t>(1, records.size()),
                [&](std::int64_t /*record*/, const nlohmann::ordered_json& example) {
                  found = example.is_object() &&
                          (example.contains("label") || example.contains("labels"));
                });
  return found;
}

}  // namespace tessera
