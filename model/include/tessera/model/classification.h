#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tessera/model/dataset.h"
#include "tessera/model/pretrained.h"

// Models that tell the class of a sequence, as transformers' ForSequenceClassification do.
namespace tessera {

/// transformers' names of labels that have none: "LABEL_0", "LABEL_1", ...
std::vector<std::string> numbered_labels(std::int64_t count);

/// `base` with a new head for `labels` instead of its own, or itself if it has these labels. The
/// new head's values are those of a new model. Throws Error{kConfig} if the base has other labels,
/// is a checkpoint or has adapters.
PretrainedGpt with_labels(const PretrainedGpt& base, std::vector<std::string> labels);

/// The labels of all examples that `path` names: texts in order of their bytes, or of numbers
/// 0, 1, ... those of numbered_labels up to the largest. Throws Error{kNotFound, kIo}, and
/// Error{kConfig} that names the file and line of an example without a label, or with one of
/// another type.
std::vector<std::string> labels_in(const std::string& path);

/// How often each class was predicted for each, and what is made of that. Classes are numbers below
/// `classes`.
class Confusion {
 public:
  explicit Confusion(std::int64_t classes);

  void add(std::int64_t label, std::int64_t predicted);

  std::int64_t count() const { return count_; }
  std::int64_t correct() const;
  double accuracy() const;
  /// 2 TP / (2 TP + FP + FN) of a class; 0 where that is 0 / 0.
  double f1(std::int64_t label) const;
  /// Its mean over the classes that were labels or were predicted, sklearn's f1_score with
  /// average="macro".
  double macro_f1() const;

 private:
  std::int64_t at(std::int64_t label, std::int64_t predicted) const;
  /// How often a class was the label, plus how often it was predicted: 2 TP + FP + FN.
  std::int64_t seen(std::int64_t label) const;

  std::int64_t classes_;
  std::int64_t count_ = 0;
  std::vector<std::int64_t> counts_;  ///< (labels, predictions)
};

/// The largest of some logits; of equal ones the first.
std::int64_t likeliest(std::span<const float> logits);

}  // namespace tessera
