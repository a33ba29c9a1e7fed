#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "tessera/core/error.h"

namespace tessera::test {

/// What transformers says of a model on held-out tokens: tests/model/golden/evaluation.json. The
/// model is that of the Golden tests/model/golden/gpt2, with its parameters "initial/<name>".
struct EvaluationGolden {
  struct Batch {
    std::vector<std::int32_t> tokens, targets;  ///< (rows, length); a target of -1 does not count
    std::int64_t counted = 0;                   ///< targets that do
    double loss = 0.0;                          ///< the sum of theirs
    std::int64_t correct = 0;  ///< of the targets that count, those with the largest logit
  };
  std::int64_t rows = 0, length = 0;  ///< of every batch
  std::vector<Batch> batches;         ///< of one nothing counts
  std::int64_t tokens = 0;            ///< that count
  std::int64_t correct = 0;           ///< of those
  double loss = 0.0;                  ///< their mean
  double perplexity = 0.0;            ///< exp(loss)

  static EvaluationGolden read(const std::string& path) {
    std::ifstream file(path);
    require(file.good(), ErrorCode::kNotFound, "no golden file ", path);
    const auto json = nlohmann::json::parse(file);
    EvaluationGolden golden;
    golden.tokens = json.at("tokens");
    golden.loss = json.at("loss");
    golden.perplexity = json.at("perplexity");
    for (const auto& entry : json.at("batches")) {
      Batch batch{.tokens = {},
                  .targets = {},
                  .counted = entry.at("counted"),
                  .loss = entry.at("loss"),
                  .correct = entry.at("correct")};
      golden.correct += batch.correct;
      golden.rows = static_cast<std::int64_t>(entry.at("tokens").size());
      golden.length = static_cast<std::int64_t>(entry.at("tokens").at(0).size());
      for (const auto& row : entry.at("tokens")) {
        for (const std::int32_t token : row) batch.tokens.push_back(token);
      }
      for (const auto& row : entry.at("targets")) {
        // PyTorch leaves out -100.
        for (const std::int32_t t : row) batch.targets.push_back(t == -100 ? -1 : t);
      }
      golden.batches.push_back(std::move(batch));
    }
    return golden;
  }
};

}  // namespace tessera::test
