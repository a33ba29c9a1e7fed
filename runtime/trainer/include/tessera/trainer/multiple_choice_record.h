#pragma once

#include <cmath>
#include <cstdint>
#include <optional>

namespace tessera {

/// Questions with choices that a model has answered: by the likeliest choice, and by the one with
/// the largest log-likelihood for each of its characters.
struct MultipleChoiceRecord {
  std::int64_t questions = 0;
  std::int64_t choices = 0;  ///< of all questions
  std::int64_t correct = 0;
  std::int64_t correct_by_length = 0;

  double accuracy() const { return share(correct); }
  double normalised_accuracy() const { return share(correct_by_length); }
  /// The standard error of such a share, that of a mean whose variance is estimated from the
  /// sample: sqrt(p (1 - p) / (questions - 1)), as lm-evaluation-harness has it. Unset for one
  /// question.
  std::optional<double> standard_error(double share) const {
    if (questions < 2) return std::nullopt;
    return std::sqrt(share * (1.0 - share) / static_cast<double>(questions - 1));
  }

 private:
  double share(std::int64_t count) const {
    return static_cast<double>(count) / static_cast<double>(questions);
  }
};

}  // namespace tessera
