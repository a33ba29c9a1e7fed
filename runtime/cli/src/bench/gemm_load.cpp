#include "bench/gemm_load.h"

#include "bench/rank_clock.h"
#include "tessera/core/cuda_device.h"
#include "tessera/core/start_thread.h"
#include "tessera/kernels/kernel_table.h"

namespace tessera::bench {
namespace {

/// Rows and columns. On a CPU a GEMM takes about half a millisecond of a core, on a GPU it fills
/// the processors.
std::int64_t side_on(const Device& device) {
  return device.kind() == DeviceKind::kCpu ? 256 : 2048;
}

}  // namespace

GemmLoad::GemmLoad(Device& device, int threads)
    : device_(device),
      memory_(device),
      stream_(device.create_stream({.name = "compute", .threads = threads})) {
  const std::int64_t side = side_on(device);
  for (Tensor* tensor : {&a_, &b_, &c_}) {
    *tensor = Tensor::empty(memory_, Shape{side, side}, DType::kFloat32, MemoryCategory::kWorkspace,
                            "GEMMs beside collectives");
    stream_->submit({.name = "fill"}, [this, tensor] {
      kernels_for(device_).fill({.dst = tensor->view().flat(), .value = 0.5F}, *stream_);
    });
  }
  stream_->synchronize();
}

GemmLoad::~GemmLoad() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

void GemmLoad::run() {
  try {
    Event earlier;
    while (!stop_) {
      stream_->submit({.name = "gemm"},
                      [this] { kernels_for(device_).gemm({.a = a_, .b = b_, .c = c_}, *stream_); });
      // The host is one GEMM ahead, so the stream is never without work.
      const Event latest = stream_->record();
      earlier.synchronize();
      if (earlier.state() != nullptr) {
        last_end_ = now();
        if (done_.load() == 0) first_end_ = last_end_;
        ++done_;
      }
      earlier = latest;
    }
    stream_->synchronize();
  } catch (...) {
    failure_ = std::current_exception();
    failed_ = true;
  }
}

void GemmLoad::start() {
  stop_ = false;
  done_ = 0;
  failed_ = false;
  thread_ = start_thread<std::thread>("GEMMs", [this] { run(); });
  while (done_.load() == 0 && !failed_) std::this_thread::yield();
}

double GemmLoad::stop() {
  // One interval at least, however short the collective was.
  while (done_.load() < 2 && !failed_) std::this_thread::yield();
  stop_ = true;
  thread_.join();
  if (failed_) std::rethrow_exception(failure_);
  return (last_end_ - first_end_) / static_cast<double>(done_.load() - 1);
}

}  // namespace tessera::bench
