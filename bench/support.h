#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <functional>
#include <string>
#include <vector>

#include "program.h"
#include "tessera/autograd/layer.h"
#include "tessera/core/device.h"
#include "tessera/core/error.h"
#include "tessera/core/quantile.h"
#include "tessera/kernels/philox.h"

// Tools that the benchmark programs share: the clock, the median, the command line (program.h),
// inputs.
namespace tessera::bench {

enum class Clock { kPassed, kRunning };  ///< seconds that passed, or that the process ran

inline double now(Clock clock = Clock::kPassed) {
  timespec time{};
  clock_gettime(clock == Clock::kRunning ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

template <typename Work>
double seconds_of(const Work& work, Clock clock = Clock::kPassed) {
  const double begin = now(clock);
  work();
  return now(clock) - begin;
}

/// CPU kernels run on the calling thread: this stream only has to exist.
class NoStream : public Stream {
 public:
  void submit(const Work&, std::function<void()> task) override { task(); }
  Event record() override { return {}; }
  void wait(const Event&) override {}
  void copy(void* destination, const void* source, std::size_t bytes) override {
    std::memcpy(destination, source, bytes);
  }
  void synchronize() override {}
  bool failed() const override { return false; }
};

/// Samples of `length` random tokens below `vocab_size`.
class RandomTokens : public BatchSource {
 public:
  RandomTokens(std::int64_t length, std::int64_t vocab_size)
      : length_(length), vocab_size_(vocab_size) {}
  Shape input_shape(std::int64_t micro_batch) const override { return {micro_batch, length_}; }
  Shape target_shape(std::int64_t micro_batch) const override { return {micro_batch, length_}; }
  DType input_dtype() const override { return DType::kInt32; }
  DType target_dtype() const override { return DType::kInt32; }
  std::int64_t fill(std::int64_t first, std::int64_t micro_batch, TensorView inputs,
                    TensorView targets) const override {
    for (std::int64_t i = 0; i < micro_batch * length_; ++i) {
      inputs.as<std::int32_t>()[i] = token(first * length_ + i);
      targets.as<std::int32_t>()[i] = token(first * length_ + i + 1);
    }
    return micro_batch * length_;
  }

 private:
  std::int32_t token(std::int64_t place) const {
    return static_cast<std::int32_t>(random_word({1, 2}, place) %
                                     static_cast<std::uint32_t>(vocab_size_));
  }

  std::int64_t length_, vocab_size_;
};

}  // namespace tessera::bench
