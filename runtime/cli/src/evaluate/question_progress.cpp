#include "evaluate/question_progress.h"

#include <string>

#include "tessera/core/error.h"

namespace tessera::cli {

QuestionProgress::~QuestionProgress() {
  if (!terminal_.interactive || shown_ == 0) return;
  std::fputs("\r\033[K", stderr);
  std::fflush(stderr);
}

void QuestionProgress::show(std::int64_t scored) {
  constexpr std::int64_t kParts = 10;
  const std::string text =
      concat("scored ", with_commas(scored), " of ", with_commas(questions_), " questions");
  if (terminal_.interactive) {
    std::fprintf(stderr, "\r\033[K%s", text.c_str());
    std::fflush(stderr);
  } else if (scored * kParts / questions_ > shown_ * kParts / questions_) {
    std::fprintf(stderr, "%s\n", text.c_str());
  }
  shown_ = scored;
}

}  // namespace tessera::cli
