#include "launch/process_limits.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>

#include "tessera/core/error.h"

namespace tessera::cli {
namespace {

/// `have`: what the shell's `limit` is, of which the processes of this machine need `needed`.
void check(const LaunchLayout& layout, const char* limit, rlim_t have, rlim_t needed,
           const char* of_what, rlim_t fit) {
  const Stated<int>& processes = layout.processes;
  require(processes.value == 1 || have == RLIM_INFINITY || needed <= have, ErrorCode::kConfig,
          processes.name, " ", processes.value, " needs at least ", needed, " ", of_what, ", but '",
          limit, "' is ", have, "; start at most ", std::max<rlim_t>(fit, 1),
          " --processes, or raise '", limit, "'");
}

rlim_t soft_limit(decltype(RLIMIT_NOFILE) kind) {
  rlimit limit{};
  return getrlimit(kind, &limit) == 0 ? limit.rlim_cur : RLIM_INFINITY;
}

}  // namespace

void check_process_limits(const LaunchLayout& layout) {
  const auto processes = static_cast<rlim_t>(layout.processes.value);
  // Each process has two sockets or files and a watch for each that it shares the machine with; the
  // launcher has two pipes.
  constexpr rlim_t kFilesOfPair = 3;
  constexpr rlim_t kOwnFiles = 8;
  const rlim_t files = soft_limit(RLIMIT_NOFILE);
  check(layout, "ulimit -n", files, kFilesOfPair * processes + kOwnFiles,
        "open files in each process", files < kOwnFiles ? 0 : (files - kOwnFiles) / kFilesOfPair);
  if (geteuid() == 0) return;  // may have any number of threads
  const rlim_t threads_of_each = 1 + static_cast<rlim_t>(layout.ranks_per_process);
  const rlim_t threads = soft_limit(RLIMIT_NPROC);
  check(layout, "ulimit -u", threads, processes * threads_of_each, "threads",
        threads / threads_of_each);
}

}  // namespace tessera::cli
