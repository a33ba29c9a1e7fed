#include "self_test/preflight_collectives.h"

#include <bit>
#include <cstdint>

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

class Collectives {
 public:
  Collectives(ProcessGroup& group, Device& device, std::int64_t numel)
      : group_(group),
        numel_(numel),
        stream_(device.create_stream({.name = "preflight"})),
        memory_(device),
        part_(tensor(numel)),
        whole_(tensor(numel * group.size())) {}

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
                         "preflight");
  }

  static void fill(const Tensor& tensor, int rank) {
    float* const values = tensor.as<float>();
    for (std::int64_t i = 0; i < tensor.numel(); ++i) values[i] = element(rank, i);
  }

  template <typename Wanted>
  void expect(const char* what, const Tensor& tensor, const Wanted& wanted) {
    stream_->synchronize();
    const float* const values = tensor.as<float>();
    for (std::int64_t i = 0; i < tensor.numel(); ++i) {
      const float right = wanted(i);
      require(std::bit_cast<std::uint32_t>(values[i]) == std::bit_cast<std::uint32_t>(right),
              ErrorCode::kInternal, what, " of ", numel_, " elements gave ", values[i],
              " instead of ", right, " at element ", i, " of rank ", group_.rank());
    }
  }

  ProcessGroup& group_;
  const std::int64_t numel_;
  const std::unique_ptr<Stream> stream_;
  Memory memory_;
  const Tensor part_;
  const Tensor whole_;
};

}  // namespace

void check_collectives(ProcessGroup& group, Device& device) {
  for (const std::int64_t numel : kNumels) Collectives(group, device, numel).check();
}

}  // namespace tessera::cli
