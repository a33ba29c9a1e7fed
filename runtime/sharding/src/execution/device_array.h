#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "tessera/core/device.h"
#include "tessera/core/memory.h"
#include "tessera/core/tensor.h"

namespace tessera {

/// A few numbers in device memory that the host writes or reads between steps, through mirrors in
/// host memory: one for each step in flight, or none if the host can wait with its writing until
/// the device's memory, which is accessible, is its own.
template <typename T>
class DeviceArray {
 public:
  /// For `what`, part of a step: counted as workspace.
  DeviceArray(Memory& memory, std::int64_t numel, std::string_view what, int mirrors = 1)
      : device_(memory.device()), numel_(numel) {
    counted_ =
        memory.allocate(static_cast<std::int64_t>(bytes()), MemoryCategory::kWorkspace, what);
    data_ = counted_.data();
    make_mirrors(mirrors);
  }
  /// Outside of the memory ledger: for what no step needs.
  DeviceArray(Device& device, std::int64_t numel) : device_(device), numel_(numel) {
    data_ = device.allocate(bytes());
    make_mirrors(1);
  }
  ~DeviceArray() {
    for (void* const mirror : mirrors_) {
      if (mirror != data_) device_.deallocate_host(mirror, bytes());
    }
    if (!counted_) device_.deallocate(data_, bytes());
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  std::int64_t numel() const { return numel_; }
  TensorView view() const { return TensorView(data_, dtype_of<T>(), Shape{numel_}); }
  TensorView view(std::int64_t begin, std::int64_t count) const {
    return view().narrow(0, begin, count);
  }
  T* host(std::size_t mirror = 0) { return static_cast<T*>(mirrors_[mirror]); }
  const T* host(std::size_t mirror = 0) const { return static_cast<const T*>(mirrors_[mirror]); }

  /// From the host to the device; in stream order.
  void upload(Stream& stream, std::size_t mirror = 0) { upload_first(numel_, stream, mirror); }
  /// The first `count` elements alone.
  void upload_first(std::int64_t count, Stream& stream, std::size_t mirror = 0) {
    if (mirrors_[mirror] == data_) return;
    stream.copy(data_, mirrors_[mirror], static_cast<std::size_t>(count) * sizeof(T));
  }
  /// From the device to the host: there once the stream has come so far.
  void download(Stream& stream, std::size_t mirror = 0) { download_first(numel_, stream, mirror); }
  /// The first `count` elements alone.
  void download_first(std::int64_t count, Stream& stream, std::size_t mirror = 0) {
    if (mirrors_[mirror] == data_) return;
    stream.copy(mirrors_[mirror], data_, static_cast<std::size_t>(count) * sizeof(T));
  }

 private:
  std::size_t bytes() const { return static_cast<std::size_t>(numel_) * sizeof(T); }
  void make_mirrors(int count) {
    const bool direct = device_.host_accessible() && count == 1;
    for (int i = 0; i < count; ++i) {
      mirrors_.push_back(direct ? data_ : device_.allocate_host(bytes()));
      std::fill_n(host(static_cast<std::size_t>(i)), numel_, T{});
    }
  }

  Device& device_;
  Buffer counted_;
  std::int64_t numel_;
  void* data_ = nullptr;
  std::vector<void*> mirrors_;
};

/// A DeviceArray with one more copy on the host, for work there. It is at one place for ever,
/// where mirrors take turns; on a device whose memory is the host's it is the array itself.
template <typename T>
class ArrayOnTiers : public DeviceArray<T> {
 public:
  /// Without `on_host`, at(Tier::kHost) is the device's.
  ArrayOnTiers(Memory& memory, std::int64_t numel, std::string_view what, bool on_host,
               int mirrors = 1)
      : DeviceArray<T>(memory, numel, what, mirrors), device_(memory.device()) {
    if (on_host && !device_.host_accessible()) host_copy_ = device_.allocate_host(bytes());
  }
  ~ArrayOnTiers() {
    if (host_copy_ != nullptr) device_.deallocate_host(host_copy_, bytes());
  }
  ArrayOnTiers(const ArrayOnTiers&) = delete;
  ArrayOnTiers& operator=(const ArrayOnTiers&) = delete;

  TensorView at(Tier tier) const {
    if (tier == Tier::kDevice || host_copy_ == nullptr) return this->view();
    return TensorView(host_copy_, dtype_of<T>(), Shape{this->numel()});
  }
  /// Copies the device's to the host, in stream order.
  void copy_to_host(Stream& stream) {
    if (host_copy_ != nullptr) stream.copy(host_copy_, this->view().data, bytes());
  }

 private:
  std::size_t bytes() const { return static_cast<std::size_t>(this->numel()) * sizeof(T); }

  Device& device_;
  void* host_copy_ = nullptr;
};

}  // namespace tessera
