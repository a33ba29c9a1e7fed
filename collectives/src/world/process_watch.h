#pragma once

#include <sys/types.h>

namespace tessera {

/// Tells that another process of this machine has ended, even if nobody has waited for it yet.
class ProcessWatch {
 public:
  /// `file`: a descriptor that the process keeps open as long as it lives. That it is gone tells of
  /// the end where there is no handle of a process to be had (before Linux 5.3, or where a
  /// container forbids the call), and if not `by_handle`.
  ProcessWatch(pid_t process, int file, bool by_handle = true);
  ProcessWatch(const ProcessWatch&) = delete;
  ProcessWatch& operator=(const ProcessWatch&) = delete;
  ~ProcessWatch();

  bool ended() const;

 private:
  const pid_t process_;
  const int file_;
  int handle_ = -1;  // a pidfd; -1: there is none
};

}  // namespace tessera
