#pragma once

#include "emulator/hooks.h"

namespace tessera::emulator {

/// What the hardware allows: GPUs of compute capability 9.0.
inline constexpr std::size_t kDefaultSharedBytes = 48 << 10;
inline constexpr std::size_t kMaxSharedBytes = 227 << 10;

/// Whether the driver would take the launch, whose kernel may use `shared_limit` bytes.
cudaError_t check_launch(const Launch& launch, std::size_t shared_limit);

/// Runs a kernel on the calling thread. Throws Error{kInternal} that says what went wrong in it and
/// where.
void run_grid(const Launch& launch, std::size_t shared_limit);

}  // namespace tessera::emulator
