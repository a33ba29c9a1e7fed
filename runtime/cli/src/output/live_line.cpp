#include "output/text_output.h"

#include <iostream>
#include <utility>

namespace tessera::cli {

LiveLine::LiveLine(Begins begins) {
  if (begins == Begins::kAfterAWhile) shown_ = std::chrono::steady_clock::now();
}

void LiveLine::show(const std::string& text, bool is_last) {
  constexpr std::chrono::milliseconds kOften{100}, kRarely{10'000};
  const std::lock_guard lock(mutex_);
  const auto now = std::chrono::steady_clock::now();
  if (!is_last && now - shown_ < (terminal_.interactive ? kOften : kRarely)) return;
  shown_ = now;
  open_ = terminal_.interactive;
  std::cerr << (open_ ? "\r\033[K" : "") << text << (open_ ? "" : "\n") << std::flush;
}

void LiveLine::erase() {
  const std::lock_guard lock(mutex_);
  if (std::exchange(open_, false)) std::cerr << "\r\033[K" << std::flush;
}

}  // namespace tessera::cli
