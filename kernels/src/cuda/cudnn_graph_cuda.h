#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cuda/cudnn_library_cuda.h"

// Operation graphs of cuDNN's backend API: described operation by operation, then made into a plan
// that runs them as one kernel.
namespace tessera::cuda {

/// A descriptor of the backend API.
class CudnnDescriptor {
 public:
  CudnnDescriptor(const CudnnLibrary& library, cudnnBackendDescriptorType_t type);
  CudnnDescriptor(CudnnDescriptor&& other) noexcept
      : library_(other.library_), raw_(std::exchange(other.raw_, nullptr)) {}
  CudnnDescriptor& operator=(CudnnDescriptor&& other) noexcept {
    std::swap(library_, other.library_);
    std::swap(raw_, other.raw_);
    return *this;
  }
  ~CudnnDescriptor();

  template <typename T>
  CudnnDescriptor& set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                       const T* values, std::size_t count) {
    return set_raw(name, type, values, count);
  }
  template <typename T>
  CudnnDescriptor& set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                       const T& value) {
    return set_raw(name, type, &value, 1);
  }
  CudnnDescriptor& set(cudnnBackendAttributeName_t name, const CudnnDescriptor& value) {
    return set_raw(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, &value.raw_, 1);
  }
  /// Checks the attributes and makes it usable in others.
  CudnnDescriptor& finalize(const char* what);
  cudnnStatus_t try_finalize() { return library_->finalize(raw_); }
  cudnnBackendDescriptor_t raw() const { return raw_; }

 private:
  CudnnDescriptor& set_raw(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                           const void* values, std::size_t count);

  const CudnnLibrary* library_;
  cudnnBackendDescriptor_t raw_ = nullptr;
};

/// A plan is made for it: the device of a handle, or, to plan without one, a device described in
/// JSON as cuDNN's CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION writes it.
struct CudnnTarget {
  cudnnHandle_t handle = nullptr;
  std::string device_json{};
};

/// A graph that can be run, on any stream of the device that it was made for.
class CudnnPlan {
 public:
  std::int64_t workspace_bytes() const { return workspace_bytes_; }
  /// Enqueues it into the handle's stream. `tensors` are the addresses of the graph's tensors by
  /// their id; `workspace` has workspace_bytes(). Thread-safe, though a handle is not.
  void execute(cudnnHandle_t handle, const std::map<std::int64_t, void*>& tensors,
               void* workspace) const;

 private:
  friend class CudnnGraph;
  CudnnPlan(const CudnnLibrary& library, CudnnDescriptor plan)
      : library_(&library), plan_(std::move(plan)) {}

  const CudnnLibrary* library_;
  /// Held while it is enqueued: cuDNN promises that threads may call it with handles of their own,
  /// but not that they may use one plan at a time (https://github.com/pytorch/pytorch/pull/103939
  /// saw it fail).
  mutable std::mutex mutex_;
  CudnnDescriptor plan_;
  std::vector<CudnnDescriptor> parts_;  // what the plan was made of
  std::map<std::int64_t, float> scalars_;
  std::int64_t workspace_bytes_ = 0;
};

/// The builder. Tensors have four dimensions; values between operations ("virtual" tensors) are
/// never in memory. Arithmetic is fp32.
class CudnnGraph {
 public:
  using Sizes = std::array<std::int64_t, 4>;
  /// A tensor of the graph, by its place in the list of descriptors.
  struct Tensor {
    std::size_t index = 0;
  };

  explicit CudnnGraph(const CudnnLibrary& library) : library_(&library) {}

  /// One that is in memory, aligned to 16 bytes; `id` is positive and below kFirstOwnId.
  Tensor tensor(std::int64_t id, cudnnDataType_t type, const Sizes& sizes, const Sizes& strides);
  Tensor value(cudnnDataType_t type, const Sizes& sizes, const Sizes& strides);
  Tensor scalar(float number);

  /// y = mode(x), or mode(x, b).
  void pointwise(cudnnPointwiseMode_t mode, Tensor x, Tensor y);
  void pointwise(cudnnPointwiseMode_t mode, Tensor x, Tensor b, Tensor y);
  /// y = the index along `axis` of each element of x.
  void index(Tensor x, std::int64_t axis, Tensor y);
  /// y = condition ? x : otherwise.
  void select(Tensor condition, Tensor x, Tensor otherwise, Tensor y);
  /// c = a b, over the last two dimensions.
  void multiply(Tensor a, Tensor b, Tensor c);
  /// y = x reduced over the dimensions in which y has size 1.
  void reduce(cudnnReduceTensorOp_t operation, Tensor x, Tensor y);
  /// y = x with other sizes or strides.
  void reshape(Tensor x, Tensor y);

  /// The plan of the first engine that takes the graph; if `deterministic`, of those that give the
  /// same bits every time. Throws Error{kUnavailable} if there is none. The graph is used up.
  std::unique_ptr<CudnnPlan> build(const CudnnTarget& target, bool deterministic);

  static constexpr std::int64_t kFirstOwnId = 100;

 private:
  CudnnDescriptor& make(cudnnBackendDescriptorType_t type);
  Tensor add_tensor(std::int64_t id, cudnnDataType_t type, const Sizes& sizes, const Sizes& strides,
                    bool is_virtual, bool by_value);
  CudnnDescriptor pointwise_operation(cudnnPointwiseMode_t mode, Tensor x, Tensor y,
                                      std::int64_t axis = -1);
  void add_operation(CudnnDescriptor operation, const char* what);
  const CudnnDescriptor& at(Tensor tensor) const { return parts_[tensor.index]; }
  std::vector<CudnnDescriptor> engine_configs(const CudnnDescriptor& graph,
                                              const CudnnTarget& target);
  /// Tells what cuDNN notes about the engine of a config.
  bool is_deterministic(const CudnnDescriptor& config) const;

  const CudnnLibrary* library_;
  std::vector<CudnnDescriptor> parts_;                // tensors, and modes of operations
  std::vector<cudnnBackendDescriptor_t> operations_;  // members of parts_
  std::map<std::int64_t, float> scalars_;
  std::int64_t next_id_ = kFirstOwnId;
};

}  // namespace tessera::cuda
