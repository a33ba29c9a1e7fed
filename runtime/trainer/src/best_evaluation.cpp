#include "best_evaluation.h"

#include <cmath>

#include "tessera/core/error.h"

namespace tessera {

bool compares_evaluations(const TrainerOptions& options) {
  return options.checkpoints.save_best || options.patience > 0;
}

bool compare_with_best(Session& session, EvaluationRecord& record) {
  const std::optional<BestEvaluation>& before = session.best_evaluation();
  record.best_before = before;
  record.best = before;
  if (!before && !std::isfinite(record.loss)) return false;
  const bool is_best = !before || record.loss < before->loss;
  BestEvaluation best{.loss = record.loss, .step = record.step};
  if (before) {
    const bool is_enough = before->loss - record.loss > session.plan().options.min_improvement;
    if (!is_best) best = *before;
    best.without_improvement = is_enough ? 0 : before->without_improvement + 1;
  }
  record.best = best;
  session.set_best_evaluation(best);
  return is_best;
}

bool has_lost_patience(const TrainerOptions& options, const std::optional<BestEvaluation>& best) {
  return options.patience > 0 && best && best->without_improvement >= options.patience;
}

void check_best_evaluation(const TrainerOptions& options, bool has_evaluation) {
  const bool saves = options.checkpoints.save_best;
  require(options.patience > 0 || options.min_improvement == 0.0, ErrorCode::kConfig,
          "`min_improvement` says which evaluations `patience` counts as better; give `patience` "
          "N, too");
  if (!compares_evaluations(options)) return;
  const char* const field = saves ? "`checkpoints.save_best`" : "`patience`";
  require(has_evaluation, ErrorCode::kConfig, field,
          " compares losses on data that is not trained on; give it by `eval_data`");
  require(options.evaluate_every > 0, ErrorCode::kConfig, field,
          " compares evaluations during the run, and there is one after the last step only; say "
          "how often: `evaluate_every` N");
  require(!saves || !options.checkpoints.folder.empty(), ErrorCode::kConfig,
          "`checkpoints.save_best` keeps a checkpoint; say where: `checkpoints.folder` FOLDER");
}

}  // namespace tessera
