#include "stub_cudnn.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>
#include <set>
#include <string>
#include <thread>

/// What cudnnHandle_t points to.
struct cudnnContext {
  cudaStream_t stream = nullptr;
  std::atomic<bool> in_use = false;
};

namespace {

StubCudnn& state() {
  static StubCudnn state;
  return state;
}
std::mutex& mutex() {  // of what is counted in the state
  static std::mutex mutex;
  return mutex;
}

/// While one lives, a thread uses what only one may. It takes long enough for another to notice.
class Use {
 public:
  explicit Use(std::atomic<bool>& in_use) : in_use_(in_use), alone_(!in_use.exchange(true)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ~Use() {
    if (alone_) in_use_ = false;
  }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;
  bool alone() const { return alone_; }

 private:
  std::atomic<bool>& in_use_;
  const bool alone_;
};

struct Descriptor {
  cudnnBackendDescriptorType_t type{};
  std::map<cudnnBackendAttributeName_t, std::string> attributes{};  // their bytes
  std::vector<Descriptor*> parts{};                                 // attributes, too
  std::size_t engine = 0;                                           // of configs and engines
  std::atomic<bool> in_use{false};                                  // of plans

  template <typename T>
  std::vector<T> get(cudnnBackendAttributeName_t name) const {
    const auto found = attributes.find(name);
    if (found == attributes.end()) return {};
    std::vector<T> values(found->second.size() / sizeof(T));
    std::memcpy(values.data(), found->second.data(), found->second.size());
    return values;
  }
};

Descriptor& of(void* descriptor) { return *static_cast<Descriptor*>(descriptor); }

std::size_t size_of(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_BOOLEAN:
    case CUDNN_TYPE_CHAR:
      return 1;
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
      return 8;
    default:
      return 4;  // enumerations
  }
}

/// The ids of the tensors below `descriptor` that have an address: not virtual.
void collect(const Descriptor& descriptor, std::set<std::int64_t>& ids) {
  if (descriptor.type == CUDNN_BACKEND_TENSOR_DESCRIPTOR &&
      descriptor.get<char>(CUDNN_ATTR_TENSOR_IS_VIRTUAL).at(0) == 0) {
    ids.insert(descriptor.get<std::int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID).at(0));
  }
  for (const Descriptor* part : descriptor.parts) collect(*part, ids);
}

template <typename T>
cudnnStatus_t answer(const T& value, std::int64_t* count, void* to) {
  *count = 1;
  std::memcpy(to, &value, sizeof(T));
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t answer_configs(Descriptor& heuristics, std::int64_t room, std::int64_t* count,
                             void* to) {
  *count = static_cast<std::int64_t>(state().engines.size());
  for (std::int64_t i = 0; i < std::min(room, *count); ++i) {
    Descriptor& config = of(static_cast<cudnnBackendDescriptor_t*>(to)[i]);
    config.engine = static_cast<std::size_t>(i);
    config.parts = heuristics.parts;  // the graph
  }
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace

extern "C" {

StubCudnn* stub_cudnn() { return &state(); }

std::size_t cudnnGetVersion() { return 91900; }
const char* cudnnGetErrorString(cudnnStatus_t) { return "a status of the stub"; }
void cudnnGetLastErrorString(char* text, std::size_t size) {
  if (size > 0) text[0] = '\0';
}
cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  *handle = new cudnnContext;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  delete handle;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t* descriptor) {
  auto* const made = new Descriptor;
  made->type = type;
  *descriptor = made;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  delete &of(descriptor);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, std::int64_t count,
                                       const void* values) {
  const auto bytes = static_cast<std::size_t>(count) * size_of(type);
  of(descriptor).attributes[name].assign(static_cast<const char*>(values), bytes);
  if (type != CUDNN_TYPE_BACKEND_DESCRIPTOR) return CUDNN_STATUS_SUCCESS;
  for (Descriptor* part : of(descriptor).get<Descriptor*>(name)) {
    of(descriptor).parts.push_back(part);
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  switch (of(descriptor).type) {
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR: {
      const auto handles = of(descriptor).get<cudnnHandle_t>(CUDNN_ATTR_OPERATIONGRAPH_HANDLE);
      const Use use(handles.at(0)->in_use);
      if (!use.alone()) return CUDNN_STATUS_BAD_PARAM;
      const std::lock_guard lock(mutex());
      ++state().graphs;
      return state().graph;
    }
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR:
      return state().heuristics;
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR:
      return state().engines.at(of(descriptor).parts.at(0)->engine).makes_plans
                 ? CUDNN_STATUS_SUCCESS
                 : CUDNN_STATUS_NOT_SUPPORTED_SHAPE;
    default:
      return CUDNN_STATUS_SUCCESS;
  }
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t, std::int64_t room,
                                       std::int64_t* count, void* to) {
  Descriptor& asked = of(descriptor);
  switch (name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS:
      return answer_configs(asked, room, count, to);
    case CUDNN_ATTR_ENGINECFG_ENGINE:
      of(*static_cast<cudnnBackendDescriptor_t*>(to)).engine = asked.engine;
      *count = 1;
      return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE:
      *count = 0;
      if (state().engines.at(asked.engine).deterministic) return CUDNN_STATUS_SUCCESS;
      return answer(CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC, count, to);
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
      return answer(state().engines.at(asked.parts.at(0)->engine).workspace_bytes, count, to);
    default:
      return CUDNN_STATUS_BAD_PARAM;
  }
}

/// The addresses must be of the graph's tensors, of all of them, and of no others.
cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack) {
  const Use handle_use(handle->in_use), plan_use(of(plan).in_use);
  if (!handle_use.alone() || !plan_use.alone()) return CUDNN_STATUS_BAD_PARAM;
  constexpr std::int64_t kFirstScalar = 100;
  const auto ids = of(pack).get<std::int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const auto addresses = of(pack).get<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  std::set<std::int64_t> wanted;
  collect(of(plan), wanted);
  if (std::set<std::int64_t>(ids.begin(), ids.end()) != wanted || ids.size() != addresses.size()) {
    return CUDNN_STATUS_BAD_PARAM;
  }
  StubExecution execution{.engine = of(plan).parts.at(0)->engine,
                          .workspace = of(pack).get<void*>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE).at(0),
                          .stream = handle->stream};
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < kFirstScalar) execution.tensors[ids[i]] = addresses[i];
  }
  const std::lock_guard lock(mutex());
  state().executions.push_back(execution);
  return CUDNN_STATUS_SUCCESS;
}

}  // extern "C"
