#include "run_origin.h"

#include <unistd.h>

#include <chrono>
#include <functional>

#include "tessera/core/error.h"
#include "tessera/core/host_name.h"
#include "tessera/core/utc_text.h"
#include "tessera/trainer/gather.h"

namespace tessera {
namespace {

struct Introduction {
  double wall_seconds = 0.0;
  std::int64_t pid = 0;
  std::uint64_t host = 0;  ///< a hash of its name
};

/// "20261123-184501-4711": UTC, and a process id.
std::string name_of(const Introduction& first) {
  const auto seconds = static_cast<std::time_t>(first.wall_seconds);
  return concat(utc_text(seconds, "%Y%m%d-%H%M%S"), "-", first.pid);
}

Introduction introduction() {
  using Seconds = std::chrono::duration<double>;
  return {.wall_seconds = Seconds(std::chrono::system_clock::now().time_since_epoch()).count(),
          .pid = getpid(),
          .host = std::hash<std::string>{}(host_name())};
}

}  // namespace

/// Processes of one machine have one clock. Others leave the first exchange at nearly the same
/// moment: within the time that a message takes.
RunOrigin meet(ProcessGroup* leaders) {
  if (leaders == nullptr) {
    const Introduction only = introduction();
    return {.name = name_of(only), .began = only.wall_seconds};
  }
  gather(*leaders, char{0});
  const Introduction own = introduction();
  const Introduction first = gather(*leaders, own).front();
  return {.name = name_of(first),
          .clock_ahead = own.host == first.host ? 0.0 : own.wall_seconds - first.wall_seconds,
          .began = first.wall_seconds};
}

}  // namespace tessera
