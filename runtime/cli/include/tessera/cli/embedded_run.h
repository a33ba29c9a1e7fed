#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tessera/cli/given_settings.h"
#include "tessera/trainer/session.h"

namespace tessera::cli {

/// Samples of a program's own: token ids, each with the one that follows it. One behind the other,
/// each of RunSizes::sequence_length; a target of -1 or -100 does not count.
struct GivenTokens {
  std::vector<std::int32_t> inputs{}, targets{};
};

/// The sizes of a run that its data must fit.
struct RunSizes {
  std::int64_t sequence_length = 0;
  std::int64_t vocab_size = 0;
  std::int64_t samples_per_step = 0;  ///< of all ranks
};

/// A training run in another program: the settings of `tessera train`, under that program's own
/// loop. One host thread at a time, but for stop() and abort().
class EmbeddedRun {
 public:
  struct Data {
    /// Whether the program gives the samples: each step's, by give(), before it.
    bool is_given = false;
    /// The samples to evaluate on, in place of eval_data; asked for once, when their length is
    /// known.
    std::function<GivenTokens(std::int64_t sequence_length)> evaluation{};
  };

  /// Plans the run, starts its ranks and makes the parameters. In processes that a launcher has
  /// started, joins the others. `interrupted`: asked by any thread until the first step can begin;
  /// if it says so, the start ends with Error{kAborted}. Throws as the command does.
  EmbeddedRun(const GivenSettings& given, const Data& data, std::function<bool()> interrupted);
  ~EmbeddedRun();
  EmbeddedRun(const EmbeddedRun&) = delete;
  EmbeddedRun& operator=(const EmbeddedRun&) = delete;

  Session& session();
  const RunSizes& sizes() const;
  /// Every setting as it has come to be.
  nlohmann::ordered_json settings() const;

  /// The samples that the run has had so far, an earlier run that it goes on from included.
  std::int64_t samples() const;
  /// The samples of the next step, as many as RunSizes says, for Data::is_given. Throws
  /// Error{kConfig} that names the sample of a token outside of the vocabulary.
  void give(GivenTokens tokens);
  /// A step, with what the settings want after it (evaluations, checkpoints, lines of logs);
  /// nothing when the run is over. If it throws, only destruction may follow.
  std::optional<StepRecord> step();
  /// The evaluation after the last step, if the settings wanted one.
  std::optional<EvaluationRecord> evaluation() const;
  /// Session's, with a line in each log.
  EvaluationRecord evaluate();
  std::string save(const std::string& folder);
  /// The last evaluation and the last checkpoint that the settings want, and the log's summary.
  /// After the last step, or a loop that has ended before it; once.
  void finish();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera::cli
