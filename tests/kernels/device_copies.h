#pragma once

#include <vector>

#include "kernels/views_of.h"
#include "tessera/core/device.h"

namespace tessera {

/// Moves views of host memory to the device for one kernel. Each gets an allocation of its exact
/// size, so that compute-sanitizer (and AddressSanitizer, over the emulator) sees what is accessed
/// beside it; views that overlap share one. Addresses keep their remainder by 16.
class DeviceCopies {
 public:
  /// Points `views` at the copies.
  DeviceCopies(const Views& views, Stream& stream);
  ~DeviceCopies();
  DeviceCopies(const DeviceCopies&) = delete;
  DeviceCopies& operator=(const DeviceCopies&) = delete;

  /// Waits for the kernel and copies what it left to where the views were.
  void copy_back();

 private:
  struct Block {
    std::byte* begin = nullptr;  // on the host
    std::byte* end = nullptr;
    void* allocation = nullptr;
    std::byte* copy = nullptr;
  };
  void allocate(Block& block);

  Stream& stream_;
  std::vector<Block> blocks_;
};

}  // namespace tessera
