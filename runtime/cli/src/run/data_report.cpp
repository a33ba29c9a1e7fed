#include "run/data_report.h"

#include <cmath>

#include "output/terminal.h"
#include "tessera/core/error.h"

namespace tessera::cli {
namespace {

/// "2,363 tokens, 640 of them targets, in 48 samples of 128: 62 % padding; --packing true makes
/// 24".
std::string describe_filling(const ExampleCounts& counts, const TokenDataset& dataset) {
  const double padding =
      1.0 - static_cast<double>(counts.filled) / static_cast<double>(counts.positions);
  std::string line = concat(with_commas(counts.tokens), " tokens, ", with_commas(counts.targets),
                            " of them targets, in ", counted(counts.samples, "sample"), " of ",
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

}  // namespace

std::vector<std::string> describe_data(const TokenDataset& dataset, const GptChoice& choice) {
  std::vector<std::string> lines = dataset.assumptions();
  if (const auto counts = dataset.example_counts()) {
    lines.push_back(describe_filling(*counts, dataset));
    lines.push_back(describe_end(*counts, choice));
    if (lines.back().empty()) lines.pop_back();
  }
  const bool is_text = dataset.kind() != DataKind::kTokens;
  if (is_text && choice.text.tokenizer) lines.push_back("tokenizer: " + choice.text.path);
  for (std::string& line : lines) line = "data: " + line;
  if (is_text && !choice.text.note.empty()) lines.push_back("note: " + choice.text.note);
  return lines;
}

}  // namespace tessera::cli
