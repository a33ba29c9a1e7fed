#include "example_store.h"

#include <algorithm>

#include "tessera/core/error.h"

namespace tessera::data {
namespace {

std::string count_of(std::int64_t count, const char* what) {
  return concat(count, count == 1 ? " example " : " examples ", what);
}

}  // namespace

/// Counts that are made on the way.
struct ExampleStore::Findings {
  std::int64_t truncated = 0;  ///< whose end did not fit
  std::int64_t without = 0;    ///< left out: no target fits
  std::int64_t across = 0;     ///< whose tokens cross from prompt to completion
};

ExampleStore::ExampleStore(const DatasetOptions& options, ExampleRecords all)
    : ExampleSource(options, std::move(all)),
      length_(options.sequence_length),
      has_tokenizer_(options.tokenizer.has_value()),
      starts_{0},
      target_starts_{0} {
  Findings findings;
  records().visit(0, records().size(),
                  [&](std::int64_t record, const nlohmann::ordered_json& value) {
                    add(read(record, value), record, findings);
                  });
  require(examples() > 0, ErrorCode::kConfig, "'", options.path,
          "' has no example with a target within the sequence length; each line must be an object "
          "such as {\"prompt\": \"...\", \"completion\": \"...\"}");
  tell(findings);
  if (options.packing) packed_ = packed();
}

void ExampleStore::add(const Example& example, std::int64_t record, Findings& findings) {
  if (example.truncated) ++findings.truncated;
  if (example.across) ++findings.across;
  if (example.targets.empty()) {
    ++findings.without;
    return;
  }
  tokens_.insert(tokens_.end(), example.tokens.begin(), example.tokens.end());
  starts_.push_back(static_cast<std::int64_t>(tokens_.size()));
  targets_.insert(targets_.end(), example.targets.begin(), example.targets.end());
  target_starts_.push_back(static_cast<std::int64_t>(targets_.size()));
  numbers_.push_back(record);
}

void ExampleStore::tell(const Findings& findings) {
  const std::string name = records().name();
  if (findings.truncated > 0) {
    notes_.push_back(concat(count_of(findings.truncated, "of "), name,
                            " cut off at the sequence length ", length_));
  }
  if (findings.without > 0) {
    notes_.push_back(concat(count_of(findings.without, "of "), name,
                            " left out: no target is within the sequence length ", length_));
  }
  if (findings.across > 0) {
    notes_.push_back(
        concat(count_of(findings.across, "of "), name,
               " whose prompt has other tokens alone than before its completion; end prompts "
               "where words end"));
  }
}

std::string ExampleStore::describe() const {
  return concat(examples(), has_tokenizer_ ? ", tokenised at the start" : ", a token per byte");
}

ExampleView ExampleStore::view(std::size_t e) const {
  const auto range = [&](const auto& all, const std::vector<std::int64_t>& starts) {
    return std::span(all).subspan(static_cast<std::size_t>(starts[e]),
                                  static_cast<std::size_t>(starts[e + 1] - starts[e]));
  };
  return {range(tokens_, starts_), range(targets_, target_starts_)};
}

std::int64_t ExampleStore::fill(const Part& part, std::int64_t sample, std::int64_t vocab_size,
                                const SampleRow& row) const {
  const std::int64_t samples = part.order.samples();
  const auto s = static_cast<std::size_t>(part.unit(sample / samples, sample % samples));
  std::vector<ExampleView> views;
  for (const std::size_t e : packed_.empty() ? std::vector{s} : packed_[s]) {
    views.push_back(view(e));
    if (vocab_size > 0 && std::ranges::max(views.back().tokens) >= vocab_size) {
      check_vocabulary(vocab_size);
    }
  }
  return write_sample(views, row);
}

Packed ExampleStore::packed() const {
  std::vector<std::size_t> places(static_cast<std::size_t>(examples()));
  for (std::size_t e = 0; e < places.size(); ++e) places[e] = view(e).places();
  return pack(places, static_cast<std::size_t>(length_));
}

ExampleCounts ExampleStore::counts() const {
  ExampleCounts counts{.examples = examples(),
                       .tokens = tokens(),
                       .samples = units(),
                       .positions = units() * length_,
                       .filled = tokens() - examples(),
                       .end_token = reader().end_token()};
  for (const auto& [first, second] : targets_) counts.targets += second - first;
  counts.packed_samples = packed_.empty() ? std::ssize(packed()) : units();
  return counts;
}

void ExampleStore::check_vocabulary(std::int64_t vocab_size) const {
  if (vocab_size <= 0) return;
  const auto outside = std::ranges::find_if(tokens_, [&](auto t) { return t >= vocab_size; });
  if (outside == tokens_.end()) return;
  const auto after = std::ranges::upper_bound(starts_, outside - tokens_.begin());
  const auto example = static_cast<std::size_t>(after - starts_.begin()) - 1;
  fail_vocabulary(numbers_[example], *outside, std::ranges::max(tokens_), vocab_size);
}

}  // namespace tessera::data
