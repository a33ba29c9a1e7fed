#include "world/process_watch.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <string>

#include "tessera/core/error.h"

namespace tessera {

ProcessWatch::ProcessWatch(pid_t process, int file, bool by_handle)
    : process_(process), file_(file) {
  if (by_handle) handle_ = static_cast<int>(syscall(SYS_pidfd_open, process, 0));
}

ProcessWatch::~ProcessWatch() {
  if (handle_ >= 0) close(handle_);
}

bool ProcessWatch::ended() const {
  if (handle_ < 0) {
    // A process that has ended but was not waited for has a folder, but no file in it.
    return access(concat("/proc/", process_, "/fd/", file_).c_str(), F_OK) != 0;
  }
  pollfd over{.fd = handle_, .events = POLLIN, .revents = 0};
  return poll(&over, 1, 0) == 1;
}

}  // namespace tessera
