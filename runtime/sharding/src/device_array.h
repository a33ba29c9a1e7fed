#pragma once

#include <cstdint>
#include <vector>

#include "tessera/core/device.h"
#include "tessera/core/tensor.h"

namespace tessera {

/// A few numbers in device memory that the host writes or reads between steps, through a mirror in
/// host memory where the device's is not accessible. Outside of the memory ledger.
template <typename T>
class DeviceArray {
 public:
  DeviceArray(Device& device, std::int64_t numel) : device_(device), numel_(numel) {
    data_ = device.allocate(bytes());
    mirror_ = device.host_accessible() ? data_ : device.allocate_host(bytes());
    for (std::int64_t i = 0; i < numel; ++i) host()[i] = T{};
  }
  ~DeviceArray() {
    if (mirror_ != data_) device_.deallocate_host(mirror_, bytes());
    device_.deallocate(data_, bytes());
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  std::int64_t numel() const { return numel_; }
  TensorView view() const { return TensorView(data_, dtype_of<T>(), Shape{numel_}); }
  TensorView view(std::int64_t begin, std::int64_t count) const {
    return view().narrow(0, begin, count);
  }
  T* host() { return static_cast<T*>(mirror_); }
  const T* host() const { return static_cast<const T*>(mirror_); }

  /// The first `count` elements, from the host to the device; in stream order.
  void upload(Stream& stream, std::int64_t count) {
    if (mirror_ != data_) stream.copy(data_, mirror_, static_cast<std::size_t>(count) * sizeof(T));
  }
  void upload(Stream& stream) { upload(stream, numel_); }
  /// All elements, from the device to the host: there once the stream has been synchronised.
  void download(Stream& stream) {
    if (mirror_ != data_) stream.copy(mirror_, data_, bytes());
  }

 private:
  std::size_t bytes() const { return static_cast<std::size_t>(numel_) * sizeof(T); }

  Device& device_;
  std::int64_t numel_;
  void* data_ = nullptr;
  void* mirror_ = nullptr;
};

}  // namespace tessera
