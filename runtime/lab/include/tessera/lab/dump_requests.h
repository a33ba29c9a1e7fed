#pragma once

#include <functional>
#include <mutex>
#include <string>
#include <string_view>

namespace tessera {

/// Asks a run, from any thread and while it works, for what its ranks do; see flight_dump.h. A
/// trainer takes one as TrainerOptions::dump_requests.
class DumpRequests {
 public:
  /// Told, on the thread that writes, where a dump is or why it could not be written: those that
  /// were asked for and those of failures. Must not throw.
  using OnNote = std::function<void(const std::string& note)>;
  explicit DumpRequests(OnNote on_note = {}) : on_note_(std::move(on_note)) {}

  /// Writes a dump of this process's ranks. False if no session is at work.
  bool write(std::string_view reason);

  // The session's end of the requests.
  using Write = std::function<void(std::string_view reason)>;
  void serve(Write write);  ///< null: no longer; returns when no dump is being written
  void note(const std::string& text) const {
    if (on_note_) on_note_(text);
  }

 private:
  const OnNote on_note_;
  std::mutex mutex_;
  Write write_;  // guarded by mutex_
};

}  // namespace tessera
