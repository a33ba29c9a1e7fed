#include "self_test/self_test.h"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "tessera/core/error.h"
#include "tessera/core/tensor.h"

namespace tessera::cli {
namespace {

constexpr std::int64_t kNumels[] = {0, 1, 64, 10007};

/// Element `i` of rank `rank`: of many magnitudes, so that sums round.
float element(int rank, std::int64_t i) {
  const std::int64_t mixed = (i * 7919 + rank * 104729) % 10007;
  return static_cast<float>(mixed - 5003) / static_cast<float>(1 + mixed % 89);
}

float sum_over_ranks(int ranks, std::int64_t i) {
  float sum = element(0, i);
  for (int rank = 1; rank < ranks; ++rank) sum += element(rank, i);
  return sum;
}

/// Memory of the host that the device copies from and to.
struct HostFloats {
  HostFloats(Device& of, std::int64_t numel)
      : device(of),
        bytes(static_cast<std::size_t>(numel) * sizeof(float)),
        values(static_cast<float*>(of.allocate_host(bytes))) {}
  ~HostFloats() { device.deallocate_host(values, bytes); }
  HostFloats(const HostFloats&) = delete;
  HostFloats& operator=(const HostFloats&) = delete;

  Device& device;
  const std::size_t bytes;
  float* const values;
};

class Collectives {
 public:
  Collectives(ProcessGroup& group, Device& device, std::int64_t numel)
      : group_(group),
        numel_(numel),
        stream_(device.create_stream({.name = "collectives check"})),
        memory_(device),
        part_(tensor(numel)),
        whole_(tensor(numel * group.size())),
        host_(device, whole_.numel()) {}

  void check() {
    const int rank = group_.rank();
    fill(part_, rank);
    group_.all_gather(part_, whole_, *stream_);
    expect("all-gather", whole_,
           [&](std::int64_t i) { return element(static_cast<int>(i / numel_), i % numel_); });
    fill(whole_, rank);
    group_.reduce_scatter(whole_, part_, false, *stream_);
    expect("reduce-scatter", part_,
           [&](std::int64_t i) { return sum_over_ranks(group_.size(), rank * numel_ + i); });
    fill(part_, rank);
    group_.all_reduce(part_, *stream_);
    expect("all-reduce", part_, [&](std::int64_t i) { return sum_over_ranks(group_.size(), i); });
  }

 private:
  Tensor tensor(std::int64_t numel) {
    return Tensor::empty(memory_, Shape{numel}, DType::kFloat32, MemoryCategory::kWorkspace,
                         "collectives check");
  }

  void fill(const Tensor& tensor, int rank) {
    for (std::int64_t i = 0; i < tensor.numel(); ++i) host_.values[i] = element(rank, i);
    copy(tensor.as<float>(), host_.values, tensor.numel());
    stream_->synchronize();  // `host_` is filled again before the collective has run
  }

  template <typename Wanted>
  void expect(const char* what, const Tensor& tensor, const Wanted& wanted) {
    copy(host_.values, tensor.as<float>(), tensor.numel());
    stream_->synchronize();
    for (std::int64_t i = 0; i < tensor.numel(); ++i) {
      const float found = host_.values[i];
      const float right = wanted(i);
      require(std::bit_cast<std::uint32_t>(found) == std::bit_cast<std::uint32_t>(right),
              ErrorCode::kInternal, what, " of ", numel_, " elements gave ", found, " instead of ",
              right, " at element ", i, " of rank ", group_.rank());
    }
  }

  void copy(float* to, const float* from, std::int64_t numel) {
    if (numel > 0) stream_->copy(to, from, static_cast<std::size_t>(numel) * sizeof(float));
  }

  ProcessGroup& group_;
  const std::int64_t numel_;
  const std::unique_ptr<Stream> stream_;
  Memory memory_;
  const Tensor part_;
  const Tensor whole_;
  const HostFloats host_;
};

}  // namespace

void check_collectives(ProcessGroup& group, Device& device) {
  for (const std::int64_t numel : kNumels) Collectives(group, device, numel).check();
}

}  // namespace tessera::cli
