#pragma once

#include <cstdint>
#include <cstdio>

#include "output/terminal.h"

namespace tessera::cli {

/// Shows on stderr how many questions have been scored: one line that rewrites itself in a
/// terminal, else a line at every tenth of the way.
class QuestionProgress {
 public:
  explicit QuestionProgress(std::int64_t questions)
      : questions_(questions), terminal_(inspect(stderr)) {}
  /// Clears the line that rewrites itself.
  ~QuestionProgress();
  QuestionProgress(const QuestionProgress&) = delete;
  QuestionProgress& operator=(const QuestionProgress&) = delete;

  void show(std::int64_t scored);

 private:
  const std::int64_t questions_;
  const Terminal terminal_;
  std::int64_t shown_ = 0;
};

}  // namespace tessera::cli
