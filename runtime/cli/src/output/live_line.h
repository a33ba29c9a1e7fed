#pragma once

#include <chrono>
#include <mutex>
#include <string>

#include "output/terminal.h"

namespace tessera::cli {

/// Shows on stderr how far work is: in a terminal one line that rewrites itself and is erased at
/// the end; in a file a line now and then. Safe from several threads.
class LiveLine {
 public:
  /// When a file gets its first line: a short run then has none.
  enum class Begins { kAtOnce, kAfterAWhile };

  explicit LiveLine(Begins begins = Begins::kAtOnce);
  ~LiveLine() { erase(); }
  LiveLine(const LiveLine&) = delete;
  LiveLine& operator=(const LiveLine&) = delete;

  /// `is_last`: the line is shown however soon it follows another.
  void show(const std::string& text, bool is_last = false);
  void erase();

 private:
  const Terminal terminal_ = inspect(stderr);
  std::mutex mutex_;
  std::chrono::steady_clock::time_point shown_{};
  bool open_ = false;
};

}  // namespace tessera::cli
