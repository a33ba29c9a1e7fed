#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "calibration_run.h"
#include "kernel_calibration.h"
#include "kernel_probes.h"
#include "tessera/core/cpu_device.h"
#include "tessera/core/cuda_device.h"
#include "tessera/core/error.h"
#include "tessera/lab/calibrate.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

/// One GPU, timed by the host: a batch is launched, then the host waits for its end.
class GpuProbing {
 public:
  explicit GpuProbing(CudaDevice& device)
      : device_(device),
        memory_(device),
        stream_(device.create_stream({.name = "probe"})),
        other_(device.create_stream({.name = "other"})),
        operands_(memory_, *stream_) {}
  ~GpuProbing() { stream_->synchronize(); }
  GpuProbing(const GpuProbing&) = delete;
  GpuProbing& operator=(const GpuProbing&) = delete;

  PointTime time(const KernelProbe& probe, double seconds) {
    stream_->synchronize();
    operands_.begin_probe();
    return time_point(seconds, [&](int calls) {
      return timed([&] {
        for (int i = 0; i < calls; ++i) probe.run(device_.kernels(), operands_, *stream_);
      });
    });
  }

  /// Bytes per second from the device to memory of allocate_host.
  double copy_out(double seconds_of_point) {
    constexpr std::size_t kBytes = std::size_t{32} << 20;
    const TensorView from = operands_.output({std::int64_t{kBytes}}, DType::kUInt8);
    const auto free = [this](void* address) { device_.deallocate_host(address, kBytes); };
    const std::unique_ptr<void, decltype(free)> to(device_.allocate_host(kBytes), free);
    const double seconds = time_point(seconds_of_point, [&](int calls) {
                             return timed([&] {
                               for (int i = 0; i < calls; ++i)
                                 stream_->copy(to.get(), from.data, kBytes);
                             });
                           }).seconds;
    return kBytes / seconds;
  }

  /// From the end of a kernel to the begin of one on another stream that waits for it: how much
  /// longer small kernels take that change streams each time.
  double handover(double seconds_of_point) {
    const TensorView small = operands_.output({64}, DType::kFloat32);
    const auto fill = [&](Stream& stream) {
      device_.kernels().fill({.dst = small, .value = 1.0F}, stream);
    };
    const double alone = time_point(seconds_of_point, [&](int calls) {
                           return timed([&] {
                             for (int i = 0; i < 2 * calls; ++i) fill(*stream_);
                           });
                         }).seconds;
    const double in_turns = time_point(seconds_of_point, [&](int calls) {
                              return timed([&] {
                                for (int i = 0; i < calls; ++i) {
                                  fill(*stream_);
                                  other_->wait(stream_->record());
                                  fill(*other_);
                                  stream_->wait(other_->record());
                                }
                              });
                            }).seconds;
    return std::max(in_turns - alone, 0.0) / 2.0;
  }

 private:
  template <typename Launch>
  BatchTime timed(const Launch& launch) {
    const Clock::time_point begin = Clock::now();
    launch();
    stream_->synchronize();
    return {.seconds = since(begin)};
  }

  CudaDevice& device_;
  Memory memory_;
  std::unique_ptr<Stream> stream_, other_;
  ProbeOperands operands_;
};

/// Bytes per second that the host's cores read and write together, far beyond their caches.
double host_bandwidth(int cores, double seconds_of_point) {
  constexpr std::int64_t kNumel = std::int64_t{64} << 20;  // 256 MiB
  const auto host = make_cpu_device();
  Memory memory(*host);
  const auto tensor = [&memory] {
    return Tensor::empty(memory, Shape{kNumel}, DType::kFloat32, MemoryCategory::kWorkspace,
                         "the probe of the host's memory");
  };
  const Tensor from = tensor(), to = tensor();
  const auto stream = host->create_stream({.threads = cores});
  kernels_for(*host).fill({.dst = from}, *stream);
  const double seconds = time_point(seconds_of_point, [&](int calls) {
                           stream->synchronize();
                           const Clock::time_point begin = Clock::now();
                           for (int i = 0; i < calls; ++i)
                             kernels_for(*host).cast({.src = from, .dst = to}, *stream);
                           stream->synchronize();
                           return BatchTime{.seconds = since(begin)};
                         }).seconds;
  return 2.0 * sizeof(float) * kNumel / seconds;
}

Quantity borrowed(Quantity quantity, const std::string& from) {
  quantity.source = concat("not measured here; ", from, ": ", quantity.source);
  return quantity;
}

LinkProfile borrowed(LinkProfile link, const std::string& from) {
  for (Quantity* quantity : {&link.latency, &link.hop, &link.bandwidth}) {
    *quantity = borrowed(*quantity, from);
  }
  for (CollectiveTimes& times : link.measured) {
    times.source = concat("not measured here; ", from, ": ", times.source);
  }
  return link;
}

}  // namespace

HardwareProfile calibrate_gpu(CudaDevice& device, const CalibrationOptions& options,
                              const HardwareProfile& links) {
  check_calibration(options);
  const std::string source = "measured on " + options.machine;
  const auto measured = [&](double value) { return Quantity{value, source}; };
  HardwareProfile profile;
  profile.name = options.name;
  profile.device = "cuda";
  KernelCalibration kernels(source, options.coarseness);
  kernels.add(0, 1);
  GpuProbing gpu(device);
  constexpr int kOthers = 3;
  CalibrationRun run(options, kernels.size() + kOthers);
  const auto measure = [&](const char* what, const auto& value) {
    run.announce(what);
    const Quantity quantity = measured(value(options.seconds));
    run.finish();
    return quantity;
  };
  profile.copy_out = measure("copies to the host", [&](double s) { return gpu.copy_out(s); });
  profile.handover =
      measure("a kernel that waits for another stream", [&](double s) { return gpu.handover(s); });
  profile.host_bandwidth =
      measure("the host's memory", [&](double s) { return host_bandwidth(options.cores, s); });
  kernels.run(profile, run, [&](const KernelProbe& probe, int /*threads*/, double seconds) {
    return gpu.time(probe, seconds);
  });
  profile.noise = run.noise(1);
  profile.memory_bandwidth = measured(profile.find("cast", "fp32", 1)->points.back().per_second);
  const KernelRates::Point& fill = profile.find("fill", "fp32", 1)->points.front();
  profile.launch = measured(4.0 * fill.size.front() / fill.per_second);
  profile.memory_bytes = measured(options.memory_bytes);
  profile.cores = {0.0, "each rank has a GPU"};
  profile.process = borrowed(links.process, links.name);
  profile.node = borrowed(links.node, links.name);
  profile.network = borrowed(links.network, links.name);
  profile.under_gather = borrowed(links.under_gather, links.name);
  profile.under_reduce = borrowed(links.under_reduce, links.name);
  return profile;
}

}  // namespace tessera
