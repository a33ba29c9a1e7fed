#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "tessera/core/device.h"
#include "tessera/core/memory.h"
#include "tessera/core/tensor.h"

namespace tessera {

/// A few numbers in device memory that the host writes or reads between steps, through a mirror in
/// host memory where the device's is not accessible.
template <typename T>
class DeviceArray {
 public:
  /// For `what`, part of a step: counted as workspace.
  DeviceArray(Memory& memory, std::int64_t numel, std::string_view what)
      : device_(memory.device()), numel_(numel) {
    counted_ =
        memory.allocate(static_cast<std::int64_t>(bytes()), MemoryCategory::kWorkspace, what);
    data_ = counted_.data();
    make_mirror();
  }
  /// Outside of the memory ledger: for what no step needs.
  DeviceArray(Device& device, std::int64_t numel) : device_(device), numel_(numel) {
    data_ = device.allocate(bytes());
    make_mirror();
  }
  ~DeviceArray() {
    if (mirror_ != data_) device_.deallocate_host(mirror_, bytes());
    if (!counted_) device_.deallocate(data_, bytes());
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
  void make_mirror() {
    mirror_ = device_.host_accessible() ? data_ : device_.allocate_host(bytes());
    std::fill_n(host(), numel_, T{});
  }

  Device& device_;
  Buffer counted_;
  std::int64_t numel_;
  void* data_ = nullptr;
  void* mirror_ = nullptr;
};

}  // namespace tessera
