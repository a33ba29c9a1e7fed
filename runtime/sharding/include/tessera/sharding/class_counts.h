#pragma once

#include <cstdint>
#include <vector>

namespace tessera {

/// How often a class was the target, was predicted, and was both.
struct ClassCounts {
  std::int64_t correct = 0, predicted = 0, actual = 0;

  void add(const ClassCounts& other) {
    correct += other.correct;
    predicted += other.predicted;
    actual += other.actual;
  }
  /// 2 TP / (2 TP + FP + FN); 0 where that is 0 / 0.
  double f1() const {
    const std::int64_t both = predicted + actual;
    return both == 0 ? 0.0 : 2.0 * static_cast<double>(correct) / static_cast<double>(both);
  }
  bool operator==(const ClassCounts&) const = default;
};

/// The mean of f1() over the classes that were targets or were predicted, as scikit-learn's
/// f1_score has it with average="macro".
inline double macro_f1(const std::vector<ClassCounts>& classes) {
  double sum = 0.0;
  std::int64_t seen = 0;
  for (const ClassCounts& one : classes) {
    if (one.predicted + one.actual == 0) continue;
    sum += one.f1();
    ++seen;
  }
  return seen == 0 ? 0.0 : sum / static_cast<double>(seen);
}

}  // namespace tessera
