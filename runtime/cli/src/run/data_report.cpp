#include "run/data_report.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "output/terminal.h"
#include "tessera/core/error.h"

namespace tessera::cli {
namespace {

/// "2,363 tokens, 640 of them targets, in 48 samples of 128: 62 % padding; --packing true makes
/// 24".
std::string describe_filling(const ExampleCounts& counts, const TokenDataset& dataset) {
  const double padding =
      1.0 - static_cast<double>(counts.filled) / static_cast<double>(counts.positions);
  std::string line = concat(counts.estimated ? "about " : "", with_commas(counts.tokens),
                            " tokens, ", with_commas(counts.targets), " of them ",
                            dataset.options().masking ? "not special" : "targets", ", in ",
                            counted(counts.samples, "sample"), " of ",
                            with_commas(dataset.options().sequence_length), ": ",
                            std::lround(100.0 * padding), " % padding");
  if (counts.packed_samples < counts.samples) {
    line += concat("; --packing true makes ", counted(counts.packed_samples, "sample"));
  }
  return line;
}

std::string describe_end(const ExampleCounts& counts, const GptChoice& choice) {
  if (!counts.end_token) return "";
  std::string line = concat("each example ends with the token ", *counts.end_token);
  if (choice.text.tokenizer) {
    line += concat(", '", choice.text.tokenizer->decode(std::vector{*counts.end_token}), "'");
  }
  return line + concat(", ", choice.text.end_token_from);
}

/// "data: 1 of 4 samples are of 'a.jsonl'...; every one has been read once after 400 samples".
std::vector<std::string> describe_shares(const DataMixture& data) {
  const std::vector<TokenDataset>& sources = data.sources();
  if (sources.size() == 1) return {};
  const std::vector<std::int64_t>& weights = data.weights();
  std::int64_t all = 0;
  for (const std::int64_t weight : weights) all += weight;
  std::string shares;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const double percent = 100.0 * static_cast<double>(weights[i]) / static_cast<double>(all);
    shares += concat(i == 0 ? "" : ", ", fixed(percent, 1), " % of '", sources[i].options().path,
                     "' (", counted(sources[i].samples_per_epoch(), "sample"), ")");
  }
  return {concat("a mixture of samples: ", shares),
          concat("an epoch is ", with_commas(data.samples_per_epoch()),
                 " samples, when each of the data has been read at least once")};
}

std::vector<std::string> describe_sources(std::span<const TokenDataset> sources,
                                          const std::vector<std::string>& shares,
                                          const GptChoice& choice) {
  std::vector<std::string> lines;
  bool is_text = false;
  for (const TokenDataset& source : sources) {
    for (std::string& line : source.assumptions()) lines.push_back(std::move(line));
    is_text = is_text || source.kind() != DataKind::kTokens;
    const auto counts = source.example_counts();
    if (!counts) continue;
    lines.push_back(describe_filling(*counts, source));
    const std::string end = describe_end(*counts, choice);
    if (!end.empty() && std::ranges::find(lines, end) == lines.end()) lines.push_back(end);
  }
  lines.insert(lines.end(), shares.begin(), shares.end());
  if (is_text && choice.text.tokenizer) lines.push_back("tokenizer: " + choice.text.path);
  for (std::string& line : lines) line = "data: " + line;
  if (is_text && !choice.text.note.empty()) lines.push_back("note: " + choice.text.note);
  return lines;
}

}  // namespace

std::vector<std::string> describe_data(const DataMixture& data, const GptChoice& choice) {
  return describe_sources(data.sources(), describe_shares(data), choice);
}

std::vector<std::string> describe_data(const TokenDataset& dataset, const GptChoice& choice) {
  return describe_sources({&dataset, 1}, {}, choice);
}

std::string describe_tokens(const DataMixture& data) {
  bool estimated = false;
  for (const TokenDataset& source : data.sources()) {
    const auto counts = source.example_counts();
    estimated = estimated || (counts && counts->estimated);
  }
  return concat(estimated ? "about " : "", with_commas(data.tokens()), " tokens");
}

}  // namespace tessera::cli
