#pragma once

#include <map>
#include <memory>
#include <mutex>

namespace tessera::cuda {

/// The streams of a process share it, one object for each key: made by the first that asks for
/// it, kept as long as one of them keeps it. Thread-safe.
template <typename Key, typename T>
class SharedObjects {
 public:
  /// `make()` gives the std::shared_ptr<T> of a key that nobody keeps; others wait for it.
  template <typename Make>
  std::shared_ptr<T> get(const Key& key, const Make& make) {
    const std::lock_guard lock(mutex_);
    std::weak_ptr<T>& kept = objects_[key];
    std::shared_ptr<T> object = kept.lock();
    if (object == nullptr) kept = object = make();
    return object;
  }

 private:
  std::mutex mutex_;
  std::map<Key, std::weak_ptr<T>> objects_;  // guarded by mutex_
};

}  // namespace tessera::cuda
