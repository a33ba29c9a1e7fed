#include "cuda/cudnn_graph_cuda.h"

#include <algorithm>

#include "tessera/core/error.h"

namespace tessera::cuda {

CudnnDescriptor::CudnnDescriptor(const CudnnLibrary& library, cudnnBackendDescriptorType_t type)
    : library_(&library) {
  library.check(library.create_descriptor(type, &raw_), "cudnnBackendCreateDescriptor");
}

CudnnDescriptor::~CudnnDescriptor() {
  if (raw_ != nullptr) static_cast<void>(library_->destroy_descriptor(raw_));
}

CudnnDescriptor& CudnnDescriptor::set_raw(cudnnBackendAttributeName_t name,
                                          cudnnBackendAttributeType_t type, const void* values,
                                          std::size_t count) {
  library_->check(
      library_->set_attribute(raw_, name, type, static_cast<std::int64_t>(count), values),
      "cudnnBackendSetAttribute");
  return *this;
}

CudnnDescriptor& CudnnDescriptor::finalize(const char* what) {
  library_->check(try_finalize(), what);
  return *this;
}

void CudnnPlan::execute(cudnnHandle_t handle, const std::map<std::int64_t, void*>& tensors,
                        void* workspace) const {
  std::vector<std::int64_t> ids;
  std::vector<void*> addresses;
  for (const auto& [id, address] : tensors) {
    ids.push_back(id);
    addresses.push_back(address);
  }
  for (const auto& [id, number] : scalars_) {
    ids.push_back(id);
    addresses.push_back(const_cast<float*>(&number));
  }
  CudnnDescriptor pack(*library_, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, ids.data(), ids.size())
      .set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, addresses.data(),
           addresses.size())
      .set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, workspace)
      .finalize("describing a graph's tensors");
  const std::lock_guard lock(mutex_);
  library_->check(library_->execute(handle, plan_.raw(), pack.raw()), "cudnnBackendExecute");
}

CudnnDescriptor& CudnnGraph::make(cudnnBackendDescriptorType_t type) {
  return parts_.emplace_back(*library_, type);
}

CudnnGraph::Tensor CudnnGraph::add_tensor(std::int64_t id, cudnnDataType_t type, const Sizes& sizes,
                                          const Sizes& strides, bool is_virtual, bool by_value) {
  constexpr std::int64_t kAlignment = 16;
  make(CUDNN_BACKEND_TENSOR_DESCRIPTOR)
      .set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, id)
      .set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, type)
      .set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, sizes.data(), sizes.size())
      .set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, strides.data(), strides.size())
      .set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, kAlignment)
      .set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, is_virtual)
      .set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, by_value)
      .finalize("describing a tensor");
  return {parts_.size() - 1};
}

CudnnGraph::Tensor CudnnGraph::tensor(std::int64_t id, cudnnDataType_t type, const Sizes& sizes,
                                      const Sizes& strides) {
  return add_tensor(id, type, sizes, strides, false, false);
}

CudnnGraph::Tensor CudnnGraph::value(cudnnDataType_t type, const Sizes& sizes,
                                     const Sizes& strides) {
  return add_tensor(next_id_++, type, sizes, strides, true, false);
}

CudnnGraph::Tensor CudnnGraph::scalar(float number) {
  scalars_[next_id_] = number;
  return add_tensor(next_id_++, CUDNN_DATA_FLOAT, {1, 1, 1, 1}, {1, 1, 1, 1}, false, true);
}

void CudnnGraph::add_operation(CudnnDescriptor operation, const char* what) {
  operation.finalize(what);
  operations_.push_back(operation.raw());
  parts_.push_back(std::move(operation));
}

CudnnDescriptor CudnnGraph::pointwise_operation(cudnnPointwiseMode_t mode, Tensor x, Tensor y,
                                                std::int64_t axis) {
  CudnnDescriptor& description = make(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  description.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, mode)
      .set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
  if (axis >= 0) description.set(CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, axis);
  description.finalize("describing an element-wise operation");
  CudnnDescriptor operation(*library_, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, description)
      .set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, at(x))
      .set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, at(y));
  return operation;
}

void CudnnGraph::pointwise(cudnnPointwiseMode_t mode, Tensor x, Tensor y) {
  add_operation(pointwise_operation(mode, x, y), "an element-wise operation");
}

void CudnnGraph::pointwise(cudnnPointwiseMode_t mode, Tensor x, Tensor b, Tensor y) {
  CudnnDescriptor operation = pointwise_operation(mode, x, y);
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, at(b));
  add_operation(std::move(operation), "an element-wise operation");
}

void CudnnGraph::index(Tensor x, std::int64_t axis, Tensor y) {
  add_operation(pointwise_operation(CUDNN_POINTWISE_GEN_INDEX, x, y, axis), "an index");
}

void CudnnGraph::select(Tensor condition, Tensor x, Tensor otherwise, Tensor y) {
  CudnnDescriptor operation = pointwise_operation(CUDNN_POINTWISE_BINARY_SELECT, x, y);
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, at(otherwise))
      .set(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, at(condition));
  add_operation(std::move(operation), "a selection");
}

void CudnnGraph::multiply(Tensor a, Tensor b, Tensor c) {
  CudnnDescriptor& description = make(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  description.set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT)
      .finalize("describing a GEMM");
  CudnnDescriptor operation(*library_, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_MATMUL_DESC, description)
      .set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, at(a))
      .set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, at(b))
      .set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, at(c));
  add_operation(std::move(operation), "a GEMM");
}

void CudnnGraph::reduce(cudnnReduceTensorOp_t operation_kind, Tensor x, Tensor y) {
  CudnnDescriptor& description = make(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  description.set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT)
      .set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, operation_kind)
      .finalize("describing a reduction");
  CudnnDescriptor operation(*library_, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, description)
      .set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, at(x))
      .set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, at(y));
  add_operation(std::move(operation), "a reduction");
}

void CudnnGraph::reshape(Tensor x, Tensor y) {
  CudnnDescriptor operation(*library_, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, at(x))
      .set(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, at(y));
  add_operation(std::move(operation), "a reshape");
}

std::vector<CudnnDescriptor> CudnnGraph::engine_configs(const CudnnDescriptor& graph,
                                                        const CudnnTarget& target) {
  CudnnDescriptor heuristics(*library_, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph)
      .set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, CUDNN_HEUR_MODE_A);
  if (!target.device_json.empty()) {
    CudnnDescriptor& device = make(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
    device.set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
               target.device_json.c_str(), target.device_json.size() + 1);
    device.finalize("describing the device");
    heuristics.set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, device);
  }
  heuristics.finalize("asking for engines");
  const auto results = [&](std::int64_t room, cudnnBackendDescriptor_t* to) {
    std::int64_t count = 0;
    library_->check(library_->get_attribute(heuristics.raw(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                            CUDNN_TYPE_BACKEND_DESCRIPTOR, room, &count, to),
                    "cudnnBackendGetAttribute");
    return count;
  };
  std::vector<CudnnDescriptor> configs;
  std::vector<cudnnBackendDescriptor_t> raw;
  for (std::int64_t i = results(0, nullptr); i > 0; --i) {
    raw.push_back(configs.emplace_back(*library_, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR).raw());
  }
  const std::int64_t found = results(std::ssize(raw), raw.data());
  configs.erase(configs.begin() + std::min(found, std::ssize(configs)), configs.end());
  return configs;
}

bool CudnnGraph::is_deterministic(const CudnnDescriptor& config) const {
  const CudnnDescriptor engine(*library_, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  cudnnBackendDescriptor_t raw = engine.raw();
  std::int64_t count = 0;
  library_->check(library_->get_attribute(config.raw(), CUDNN_ATTR_ENGINECFG_ENGINE,
                                          CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &raw),
                  "asking for a config's engine");
  std::array<cudnnBackendNumericalNote_t, CUDNN_NUMERICAL_NOTE_TYPE_COUNT> notes{};
  library_->check(library_->get_attribute(
                      engine.raw(), CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                      static_cast<std::int64_t>(notes.size()), &count, notes.data()),
                  "asking for an engine's notes");
  const auto end = notes.begin() + std::min<std::int64_t>(count, std::ssize(notes));
  return std::find(notes.begin(), end, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) == end;
}

std::unique_ptr<CudnnPlan> CudnnGraph::build(const CudnnTarget& target, bool deterministic) {
  CudnnDescriptor graph(*library_, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, operations_.data(),
            operations_.size());
  if (target.handle != nullptr) {
    graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, target.handle);
  }
  graph.finalize("an operation graph");
  std::vector<CudnnDescriptor> configs = engine_configs(graph, target);
  std::string why = "no engine";
  for (CudnnDescriptor& config : configs) {
    if (deterministic && !is_deterministic(config)) {
      why = "none that gives the same bits every time";
      continue;
    }
    CudnnDescriptor plan(*library_, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
    if (target.handle != nullptr) {
      plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, target.handle);
    }
    if (const cudnnStatus_t status = plan.try_finalize(); status != CUDNN_STATUS_SUCCESS) {
      why = library_->describe(status);
      continue;
    }
    std::unique_ptr<CudnnPlan> result(new CudnnPlan(*library_, std::move(plan)));
    std::int64_t count = 0;
    library_->check(
        library_->get_attribute(result->plan_.raw(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                CUDNN_TYPE_INT64, 1, &count, &result->workspace_bytes_),
        "cudnnBackendGetAttribute");
    parts_.push_back(std::move(graph));
    parts_.push_back(std::move(config));
    result->parts_ = std::move(parts_);
    result->scalars_ = std::move(scalars_);
    return result;
  }
  fail(ErrorCode::kUnavailable, "cuDNN has no engine for this graph (", configs.size(),
       " candidates; ", why, ")");
}

}  // namespace tessera::cuda
