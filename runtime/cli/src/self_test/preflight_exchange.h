#pragma once

#include <cstdint>
#include <type_traits>
#include <vector>

#include "tessera/collectives/process_group.h"
#include "tessera/core/device.h"
#include "tessera/core/tensor.h"

namespace tessera::cli {

/// The values of rank 0, then of rank 1, ...; each gives as many.
template <typename T>
std::vector<T> gathered(ProcessGroup& group, Device& device, std::vector<T> mine) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::vector<T> all(mine.size() * static_cast<std::size_t>(group.size()));
  const auto bytes = [](std::vector<T>& values) {
    return TensorView(values.data(), DType::kUInt8,
                      Shape{static_cast<std::int64_t>(values.size() * sizeof(T))});
  };
  const auto stream = device.create_stream({.name = "preflight"});
  group.all_gather(bytes(mine), bytes(all), *stream);
  stream->synchronize();
  return all;
}

}  // namespace tessera::cli
