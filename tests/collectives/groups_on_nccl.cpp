#include <thread>

#include "collectives/emulated_gpu.h"
#include "tessera/collectives/nccl_group.h"

namespace tessera::test {

// In rank order, so that the oracles are the same as for threads.
Groups make_groups(int size, std::chrono::milliseconds timeout) {
  const NcclId id = make_nccl_id();
  Groups groups(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      groups[static_cast<std::size_t>(rank)] =
          make_nccl_group(id, rank, size, {.timeout = timeout, .deterministic = true});
    });
  }
  for (std::thread& thread : threads) thread.join();
  return groups;
}

bool testing_nccl() { return true; }

}  // namespace tessera::test
