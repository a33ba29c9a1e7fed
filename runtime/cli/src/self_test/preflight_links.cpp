#include "self_test/preflight_links.h"

#include <algorithm>
#include <chrono>

#include "tessera/core/tensor.h"
#include "tessera/trainer/gather.h"

namespace tessera::cli {
namespace {

constexpr int kMachinesInPairs = 8;  // more of them are measured in a ring
constexpr int kWarmups = 5;
constexpr int kRoundTrips = 51;
constexpr int kLargeTrips = 3;
constexpr std::int64_t kLargeNumel = std::int64_t{4} << 20;

/// Messages between this rank and its partner.
class Echo {
 public:
  Echo(ProcessGroup& group, Device& device, const Pair& pair)
      : group_(group),
        asks_(group.rank() == pair.first),
        partner_(asks_ ? pair.second : pair.first),
        stream_(device.create_stream({.name = "link"})),
        memory_(device) {}

  /// Seconds of each round trip, ascending.
  std::vector<double> trips(std::int64_t numel, int count) {
    const Tensor data =
        Tensor::empty(memory_, Shape{numel}, DType::kFloat32, MemoryCategory::kWorkspace, "link");
    std::fill_n(data.as<float>(), numel, 1.0F);
    std::vector<double> seconds;
    for (int i = 0; i < kWarmups + count; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      if (asks_) group_.send(data, partner_, *stream_);
      group_.recv(data, partner_, *stream_);
      if (!asks_) group_.send(data, partner_, *stream_);
      stream_->synchronize();
      const auto took = std::chrono::steady_clock::now() - begin;
      if (i >= kWarmups) seconds.push_back(std::chrono::duration<double>(took).count());
    }
    std::sort(seconds.begin(), seconds.end());
    return seconds;
  }

 private:
  ProcessGroup& group_;
  const bool asks_;
  const int partner_;
  const std::unique_ptr<Stream> stream_;
  Memory memory_;
};

}  // namespace

std::vector<Pair> pairs_of_machines(const World& world) {
  std::vector<int> firsts;
  for (int rank = 0; rank < world.size(); ++rank) {
    if (world.machine_of(rank) == static_cast<int>(firsts.size())) firsts.push_back(rank);
  }
  const std::size_t machines = firsts.size();
  std::vector<Pair> pairs;
  for (std::size_t a = 0; a < machines; ++a) {
    for (std::size_t b = a + 1; b < machines; ++b) {
      const bool neighbours = b == a + 1 || (a == 0 && b == machines - 1);
      if (machines <= kMachinesInPairs || neighbours) pairs.push_back({firsts[a], firsts[b]});
    }
  }
  return pairs;
}

Link measure_link(ProcessGroup& group, Device& device, const Pair& pair) {
  Link measured;
  if (group.rank() == pair.first || group.rank() == pair.second) {
    constexpr double kThereAndBack = 2.0 * sizeof(float) * static_cast<double>(kLargeNumel);
    Echo echo(group, device, pair);
    measured.round_trip_seconds = echo.trips(1, kRoundTrips)[kRoundTrips / 2];
    measured.bytes_per_second = kThereAndBack / echo.trips(kLargeNumel, kLargeTrips).front();
  }
  return gather(group, measured)[static_cast<std::size_t>(pair.first)];
}

}  // namespace tessera::cli
