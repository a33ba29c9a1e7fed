#include "example_source.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "example_store.h"
#include "streamed_examples.h"
#include "tessera/core/error.h"

namespace tessera::data {
namespace {

ExampleReader make_reader(const DatasetOptions& options, const ExampleRecords& records) {
  require(options.tokenizer || options.no_text.empty(), ErrorCode::kConfig, "'", options.path,
          "' is text: ", options.no_text);
  require(records.size() > 0, ErrorCode::kConfig, "'", options.path,
          "' has no examples; each line must be an object such as {\"prompt\": \"...\", "
          "\"completion\": \"...\"}");
  nlohmann::ordered_json first;
  records.visit(0, 1, [&](std::int64_t, const nlohmann::ordered_json& value) { first = value; });
  try {
    return {options, first};
  } catch (const Error& error) {
    fail(ErrorCode::kConfig, records.place(0), " ", error.what());
  }
}

}  // namespace

ExampleSource::ExampleSource(const DatasetOptions& options, ExampleRecords records)
    : records_(std::move(records)), reader_(make_reader(options, records_)) {}

Example ExampleSource::read(std::int64_t record, const nlohmann::ordered_json& value) const {
  try {
    return reader_.read(value);
  } catch (const Error& error) {
    fail(ErrorCode::kConfig, records_.place(record), " ", error.what());
  }
}

Example ExampleSource::read(std::int64_t record) const {
  Example example;
  records_.visit(record, 1, [&](std::int64_t, const nlohmann::ordered_json& value) {
    example = read(record, value);
  });
  return example;
}

void ExampleSource::fail_vocabulary(std::int64_t record, std::int32_t token, std::int32_t largest,
                                    std::int64_t vocab_size) const {
  fail(ErrorCode::kConfig, records_.place(record), " has the token ", token,
       ", outside of the model's vocabulary of ", vocab_size,
       "; set the vocabulary to the tokenizer's size, at least ", largest + 1);
}

std::vector<NamedText> ExampleSource::identity() const {
  std::vector<NamedText> all = records_.identity();
  all.insert(all.begin(), {"kind of data", std::string(to_string(DataKind::kExamples))});
  for (NamedText& value : reader_.identity()) all.push_back(std::move(value));
  return all;
}

std::shared_ptr<const ExampleSource> open_examples(const DatasetOptions& options,
                                                   const std::vector<std::string>& paths) {
  ExampleRecords records(paths);
  if (records.bytes() > options.held_bytes) {
    return std::make_shared<const StreamedExamples>(options, std::move(records));
  }
  return std::make_shared<const ExampleStore>(options, std::move(records));
}

}  // namespace tessera::data
