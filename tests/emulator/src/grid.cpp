#include "grid.h"

#include <array>
#include <memory>

#include "block.h"
#include "tessera/core/error.h"

namespace tessera::emulator {
namespace {

/// Under ThreadSanitizer, blocks of even and of odd turns run on fibers and shared memory of their
/// own, with nothing to order one after the other: so it sees races between blocks. Elsewhere one
/// set is enough.
constexpr std::size_t kSets = kThreadSanitizer ? 2 : 1;
/// Fibers of a set that are kept for the next launch. ThreadSanitizer takes long to make one, and
/// has room for about 8000 in all: where many streams run kernels, each keeps few.
std::size_t kept_fibers() {
  if (!kThreadSanitizer) return 1024;
  return Fiber::count() < 3072 ? 512 : 128;
}

/// What an OS thread needs to run kernels; made at its first.
struct Engine {
  std::array<Block, kSets> blocks;
  SyncPoint start;
  Fiber scheduler;
  Order order = Order::from_environment();
};

uint3 index_of(std::uint64_t block, dim3 grid) {
  return {static_cast<unsigned>(block % grid.x), static_cast<unsigned>(block / grid.x % grid.y),
          static_cast<unsigned>(block / grid.x / grid.y)};
}

}  // namespace

cudaError_t check_launch(const Launch& launch, std::size_t shared_limit) {
  const dim3 grid = launch.grid;
  const dim3 block = launch.block;
  const bool grid_fits = grid.x > 0 && grid.y > 0 && grid.z > 0 && grid.x <= 0x7fffffffU &&
                         grid.y <= 65535 && grid.z <= 65535;
  const bool block_fits = block.x > 0 && block.y > 0 && block.z > 0 && block.x <= 1024 &&
                          block.y <= 1024 && block.z <= 64 && block.x * block.y * block.z <= 1024;
  if (!grid_fits || !block_fits) return cudaErrorInvalidConfiguration;
  return launch.dynamic_shared_bytes <= shared_limit ? cudaSuccess : cudaErrorInvalidValue;
}

void run_grid(const Launch& launch, std::size_t shared_limit) {
  thread_local std::unique_ptr<Engine> engine;
  if (!engine) engine = std::make_unique<Engine>();
  engine->scheduler.adopt_current();
  const Block::Grid grid{.grid = launch.grid,
                         .block = launch.block,
                         .dynamic_shared_bytes = launch.dynamic_shared_bytes,
                         .shared_limit = shared_limit,
                         .body = &launch.body,
                         .start = &engine->start};
  engine->start.signal();
  const std::uint64_t blocks = std::uint64_t{launch.grid.x} * launch.grid.y * launch.grid.z;
  bool good = true;
  for (std::uint64_t turn = 0; turn < blocks && good; ++turn) {
    const uint3 index = index_of(engine->order.block(turn, blocks), launch.grid);
    good = engine->blocks[turn % kSets].run(grid, index, engine->order, engine->scheduler);
  }
  std::string error;
  for (Block& block : engine->blocks) {
    block.await_end();
    error += block.error();
    block.clear_error();
    block.keep_fibers(kept_fibers());
  }
  if (!error.empty()) fail(ErrorCode::kInternal, "CUDA kernel: ", error);
}

}  // namespace tessera::emulator
