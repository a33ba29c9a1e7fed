#pragma once

#include <cstdint>
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

/// Whether the first example that `path` names has a label; false of texts and token files. Throws
/// as labels_in() does.
bool has_labels(const std::string& path);

}  // namespace tessera
