#include "bench/rank_clock.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "tessera/core/tensor.h"

namespace tessera::bench {
namespace {

/// Holds a CPU stream back until the scope ends, however it ends.
class Gate {
 public:
  explicit Gate(Stream& stream) {
    stream.submit({.name = "gate"}, [open = open_] {
      while (!open->load()) std::this_thread::yield();
    });
  }
  ~Gate() { open_->store(true); }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

 private:
  std::shared_ptr<std::atomic<bool>> open_ = std::make_shared<std::atomic<bool>>(false);
};

void take_time(Stream& stream, double& time) {
  stream.submit({.name = "clock"}, [&time] { time = now(); });
}

}  // namespace

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void RankClock::meet() {
  world_.barrier(stream_);
  stream_.synchronize();
}

double RankClock::pipelined(int calls, const std::function<void()>& issue) {
  double begin = 0.0, end = 0.0;
  if (device_.kind() == DeviceKind::kCpu) {
    {
      const Gate gate(stream_);
      world_.barrier(stream_);
      take_time(stream_, begin);
      for (int i = 0; i < calls; ++i) issue();
      take_time(stream_, end);
    }
    stream_.synchronize();
  } else {
    meet();
    begin = now();
    for (int i = 0; i < calls; ++i) issue();
    stream_.synchronize();
    end = now();
  }
  return (end - begin) / calls;
}

std::vector<double> RankClock::one_by_one(int calls, const std::function<void()>& issue) {
  const auto count = static_cast<std::size_t>(calls);
  std::vector<double> begins(count), ends(count);
  if (device_.kind() == DeviceKind::kCpu) {
    {
      const Gate gate(stream_);
      for (std::size_t i = 0; i < count; ++i) {
        world_.barrier(stream_);
        take_time(stream_, begins[i]);
        issue();
        take_time(stream_, ends[i]);
      }
    }
    stream_.synchronize();
  } else {
    for (std::size_t i = 0; i < count; ++i) {
      meet();
      begins[i] = now();
      issue();
      stream_.synchronize();
      ends[i] = now();
    }
  }
  for (std::size_t i = 0; i < count; ++i) ends[i] -= begins[i];
  return ends;
}

std::vector<double> RankClock::gathered(const std::vector<double>& values) {
  const auto each = static_cast<std::int64_t>(values.size());
  const std::int64_t ranks = world_.size();
  const auto tensor = [&](std::int64_t numel) {
    return Tensor::empty(memory_, Shape{numel}, DType::kFloat64, MemoryCategory::kWorkspace,
                         "times of the benchmark");
  };
  const Tensor mine = tensor(each);
  const Tensor all = tensor(each * ranks);
  std::vector<double> result(static_cast<std::size_t>(each * ranks));
  const auto bytes = static_cast<std::size_t>(all.bytes());
  auto* const host = static_cast<double*>(device_.allocate_host(bytes));
  std::memcpy(host, values.data(), values.size() * sizeof(double));
  stream_.copy(mine.as<double>(), host, static_cast<std::size_t>(mine.bytes()));
  world_.all_gather(mine, all, stream_);
  stream_.copy(host, all.as<double>(), bytes);
  try {
    stream_.synchronize();
  } catch (...) {
    device_.deallocate_host(host, bytes);
    throw;
  }
  std::memcpy(result.data(), host, bytes);
  device_.deallocate_host(host, bytes);
  return result;
}

std::vector<double> RankClock::longest(std::vector<double> values) {
  if (values.empty()) return values;
  const std::vector<double> all = gathered(values);
  for (std::size_t i = 0; i < all.size(); ++i) {
    double& value = values[i % values.size()];
    value = std::max(value, all[i]);
  }
  return values;
}

double RankClock::total(double value) {
  double sum = 0.0;
  for (const double of_rank : gathered({value})) sum += of_rank;
  return sum;
}

}  // namespace tessera::bench
