#include "collectives/emulated_gpu.h"
#include "tessera/collectives/thread_group.h"

namespace tessera::test {

Groups make_groups(int size, std::chrono::milliseconds timeout) {
  return make_thread_group(size, {.timeout = timeout});
}

bool testing_nccl() { return false; }

}  // namespace tessera::test
