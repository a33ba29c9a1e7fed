#pragma once

#include <algorithm>
#include <string>
#include <type_traits>
#include <vector>

#include "tessera/collectives/process_group.h"
#include "tessera/core/cpu_device.h"

namespace tessera {

/// Plain bytes as a collective takes them.
template <typename T>
TensorView bytes_of(T* values, std::size_t count) {
  static_assert(std::is_trivially_copyable_v<T>);
  return TensorView(reinterpret_cast<std::uint8_t*>(values), DType::kUInt8,
                    Shape{static_cast<std::int64_t>(count * sizeof(T))});
}

/// Gathers a value of every rank of `group`, which is of CPU ranks.
template <typename T>
std::vector<T> gather_bytes(ProcessGroup& group, T own) {
  std::vector<T> all(static_cast<std::size_t>(group.size()));
  const auto host = make_cpu_device();
  const auto stream = host->create_stream({});
  group.all_gather(bytes_of(&own, 1), bytes_of(all.data(), all.size()), *stream);
  stream->synchronize();
  return all;
}

/// The same of texts, of any length.
inline std::vector<std::string> gather_strings(ProcessGroup& group, std::string own) {
  const std::vector<std::int64_t> sizes =
      gather_bytes(group, static_cast<std::int64_t>(own.size()));
  const auto most = static_cast<std::size_t>(*std::ranges::max_element(sizes));
  if (most == 0) return std::vector<std::string>(sizes.size());
  own.resize(most);
  std::string all(most * sizes.size(), '\0');
  const auto host = make_cpu_device();
  const auto stream = host->create_stream({});
  group.all_gather(bytes_of(own.data(), own.size()), bytes_of(all.data(), all.size()), *stream);
  stream->synchronize();
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    texts.push_back(all.substr(i * most, static_cast<std::size_t>(sizes[i])));
  }
  return texts;
}

}  // namespace tessera
