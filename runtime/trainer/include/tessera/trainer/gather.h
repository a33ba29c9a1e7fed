#pragma once

#include <algorithm>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tessera/collectives/process_group.h"
#include "tessera/collectives/world.h"
#include "tessera/core/cpu_device.h"
#include "tessera/trainer/launch.h"

namespace tessera {

/// Gathers as many bytes of every rank of `group`, which is of CPU ranks.
inline void gather_bytes(ProcessGroup& group, void* own, std::size_t bytes, void* all) {
  const auto view = [](void* data, std::size_t size) {
    return TensorView(data, DType::kUInt8, Shape{static_cast<std::int64_t>(size)});
  };
  const auto host = make_cpu_device();
  const auto stream = host->create_stream({.name = "gather"});
  const std::size_t ranks = static_cast<std::size_t>(group.size());
  group.all_gather(view(own, bytes), view(all, bytes * ranks), *stream);
  stream->synchronize();
}

/// Gathers a value of every rank of `group`, which is of CPU ranks.
template <typename T>
std::vector<T> gather(ProcessGroup& group, T own) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::vector<T> all(static_cast<std::size_t>(group.size()));
  gather_bytes(group, &own, sizeof(T), all.data());
  return all;
}

/// Gathers texts of any length.
inline std::vector<std::string> gather(ProcessGroup& group, std::string own) {
  const std::vector<std::size_t> sizes = gather(group, own.size());
  const std::size_t most = std::ranges::max(sizes);
  if (most == 0) return std::vector<std::string>(sizes.size());
  own.resize(most);
  std::string all(most * sizes.size(), '\0');
  gather_bytes(group, own.data(), most, all.data());
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < sizes.size(); ++i) texts.push_back(all.substr(i * most, sizes[i]));
  return texts;
}

/// Gathers `own(rank)` of every rank of a world. Every process must call it.
template <typename Own>
auto gather_ranks(const World& world, const Own& own) {
  std::vector<decltype(gather(*world.groups().front(), own(0)))> all(world.groups().size());
  launch_ranks(world.groups(), [&](int rank, ProcessGroup& group) {
    all[static_cast<std::size_t>(rank - world.first_rank())] = gather(group, own(rank));
  });
  return std::move(all.front());
}

}  // namespace tessera
