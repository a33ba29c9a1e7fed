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

Confusion::Confusion(std::int64_t classes)
    : classes_(classes), counts_(static_cast<std::size_t>(classes * classes)) {}

void Confusion::add(std::int64_t label, std::int64_t predicted) {
  require(label >= 0 && label < classes_ && predicted >= 0 && predicted < classes_,
          ErrorCode::kInvalidArgument, "label ", label, " and prediction ", predicted,
          " must be below ", classes_);
  ++counts_[static_cast<std::size_t>(label * classes_ + predicted)];
  ++count_;
}

std::int64_t Confusion::at(std::int64_t label, std::int64_t predicted) const {
  return counts_[static_cast<std::size_t>(label * classes_ + predicted)];
}

std::int64_t Confusion::correct() const {
  std::int64_t correct = 0;
  for (std::int64_t label = 0; label < classes_; ++label) correct += at(label, label);
  return correct;
}

double Confusion::accuracy() const {
  return count_ == 0 ? 0.0 : static_cast<double>(correct()) / static_cast<double>(count_);
}

std::int64_t Confusion::seen(std::int64_t label) const {
  std::int64_t seen = 0;
  for (std::int64_t other = 0; other < classes_; ++other) {
    seen += at(label, other) + at(other, label);
  }
  return seen;
}

double Confusion::f1(std::int64_t label) const {
  const std::int64_t both = seen(label);
  return both == 0 ? 0.0 : 2.0 * static_cast<double>(at(label, label)) / static_cast<double>(both);
}

double Confusion::macro_f1() const {
  double sum = 0.0;
  std::int64_t classes = 0;
  for (std::int64_t label = 0; label < classes_; ++label) {
    if (seen(label) == 0) continue;
    sum += f1(label);
    ++classes;
  }
  return classes == 0 ? 0.0 : sum / static_cast<double>(classes);
}

std::int64_t likeliest(std::span<const float> logits) {
  return std::ranges::max_element(logits) - logits.begin();
}

}  // namespace tessera
