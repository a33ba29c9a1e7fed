#include "cuda/attention_cudnn_cuda.h"

#include <cuda_runtime_api.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "cuda/attention_cuda.h"
#include "cuda/cudnn_attention_graphs_cuda.h"
#include "cuda/shared_object.h"
#include "tessera/core/error.h"

// Attention by cuDNN: which calls it takes, its plans, and their execution.
namespace tessera::cuda {
namespace {

constexpr std::size_t kScratchAlignment = 256;

/// A plan, or why there is none.
struct Planned {
  std::unique_ptr<const CudnnPlan> plan{};
  std::string objection{};
};

/// A handle of cuDNN's on the current device. One thread uses it at a time.
class CudnnHandle {
 public:
  explicit CudnnHandle(const CudnnLibrary& library) : library_(library) {
    check_available(library.create(&handle_), "cudnnCreate");
  }
  ~CudnnHandle() { static_cast<void>(library_.destroy(handle_)); }
  CudnnHandle(const CudnnHandle&) = delete;
  CudnnHandle& operator=(const CudnnHandle&) = delete;

  void set_stream(cudaStream_t stream) {
    check_available(library_.set_stream(handle_, stream), "cudnnSetStream");
  }
  cudnnHandle_t get() const { return handle_; }

 private:
  void check_available(cudnnStatus_t status, const char* call) const {
    require(status == CUDNN_STATUS_SUCCESS, ErrorCode::kUnavailable,
            "cuDNN cannot be used here: ", call, " failed with ", library_.describe(status));
  }

  const CudnnLibrary& library_;
  cudnnHandle_t handle_ = nullptr;
};

/// The library, and what has been planned so far for a GPU: a plan takes up to a second, so all
/// streams and ranks of the process that run on the GPU share them. Thread-safe.
class CudnnPlans {
 public:
  const CudnnLibrary& library() const { return library_; }

  const Planned& find(const CudnnAttentionShape& shape) {
    const std::lock_guard lock(mutex_);
    const auto known = plans_.find(shape);
    if (known != plans_.end()) return known->second;
    Planned planned;
    try {
      planned.plan = make_cudnn_attention_plan(library_, {.handle = handle_.get()}, shape);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kUnavailable) throw;
      planned.objection = error.what();
    }
    return plans_.emplace(shape, std::move(planned)).first->second;
  }

 private:
  const CudnnLibrary library_;
  std::mutex mutex_;
  CudnnHandle handle_{library_};                  // guarded by mutex_; plans outlive no handle
  std::map<CudnnAttentionShape, Planned> plans_;  // guarded by mutex_; none is ever removed
};

/// The plans of a stream's GPU, and a handle on the stream.
class CudnnAttention {
 public:
  explicit CudnnAttention(CudaStream& stream) : plans_(plans_of(stream.ordinal())) {
    handle_.set_stream(stream.handle());
  }
  const Planned& plan(const CudnnAttentionShape& shape) { return plans_->find(shape); }
  cudnnHandle_t handle() const { return handle_.get(); }

 private:
  static std::shared_ptr<CudnnPlans> plans_of(int gpu) {
    static SharedObjects<int, CudnnPlans> of_gpus;
    return of_gpus.get(gpu, [] { return std::make_shared<CudnnPlans>(); });
  }

  const std::shared_ptr<CudnnPlans> plans_;
  CudnnHandle handle_{plans_->library()};
};

std::string misalignment(std::initializer_list<const TensorView*> views) {
  for (const TensorView* view : views) {
    if (reinterpret_cast<std::uintptr_t>(view->data) % 16 != 0)
      return "a tensor is not aligned to 16 bytes";
  }
  return {};
}

/// A stream keeps this: cuDNN, or why it cannot be used.
struct StreamCudnn {
  std::unique_ptr<CudnnAttention> attention{};
  std::string objection{};
};

/// Loads cuDNN on first use.
StreamCudnn& stream_cudnn(CudaStream& stream) {
  std::shared_ptr<void>& slot = cuda_attention(stream).cudnn;
  if (!slot) {
    auto made = std::make_shared<StreamCudnn>();
    try {
      made->attention = std::make_unique<CudnnAttention>(stream);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kUnavailable) throw;
      made->objection = error.what();
    }
    slot = std::move(made);
  }
  return *static_cast<StreamCudnn*>(slot.get());
}

/// The work to run, and by which handle: a plan, or why there is none.
struct Choice {
  const CudnnPlan* plan = nullptr;
  cudnnHandle_t handle = nullptr;
  std::string objection{};
};

Choice choose(CudaStream& stream, const CudnnAttentionShape& shape) {
  const StreamCudnn& cudnn = stream_cudnn(stream);
  if (!cudnn.attention) return {.objection = cudnn.objection};
  const Planned& planned = cudnn.attention->plan(shape);
  return {.plan = planned.plan.get(),
          .handle = cudnn.attention->handle(),
          .objection = planned.objection};
}

/// Bytes of a pass's scratch: cuDNN's own, then delta, then the accumulator.
struct Scratch {
  explicit Scratch(const CudnnPlan& plan, const CudnnAttentionShape& shape) {
    const auto aligned = [](std::int64_t size) {
      return (static_cast<std::size_t>(size) + kScratchAlignment - 1) / kScratchAlignment *
             kScratchAlignment;
    };
    constexpr std::int64_t kFloatBytes = sizeof(float);
    delta = bytes = aligned(plan.workspace_bytes());
    if (shape.pass != CudnnPass::kForward) bytes += aligned(shape.rows() * kFloatBytes);
    accumulator = bytes;
    if (shape.pass == CudnnPass::kBackward)
      bytes += aligned(shape.rows() * shape.head_dim * kFloatBytes);
  }
  std::size_t delta = 0, accumulator = 0;  // offsets
  std::size_t bytes = 0;
};

template <typename Args>
CudnnAttentionShape shape_of(const Args& args, CudnnPass pass) {
  const TensorView& qkv = args.qkv;
  return {.batch = qkv.shape[0],
          .length = qkv.shape[1],
          .heads = qkv.shape[3],
          .head_dim = qkv.shape[4],
          .pass = pass,
          .dtype = qkv.dtype,
          .causal = args.causal,
          .scale = args.scores.scale};
}

/// Part 0, 1 or 2 of (B, L, 3, H, D).
void* part(const TensorView& qkv, std::int64_t index) {
  return qkv.data +
         index * qkv.shape[3] * qkv.shape[4] * static_cast<std::int64_t>(size_of(qkv.dtype));
}

/// The plan of a pass over `views`. None: our own kernels must run it,
/// and CudaAttention::fallback says why, unless the user wants them. Throws if the user does not.
template <typename Args>
Choice find_plan(const Args& args, CudnnPass pass, std::initializer_list<const TensorView*> views,
                 CudaStream& stream) {
  CudaAttention& state = cuda_attention(stream);
  if (state.options.attention == AttentionBackend::kOwn) return {};
  const CudnnAttentionShape shape = shape_of(args, pass);
  Choice choice{.objection = cudnn_objection({.batch = shape.batch,
                                              .length = shape.length,
                                              .heads = shape.heads,
                                              .head_dim = shape.head_dim,
                                              .dtype = shape.dtype,
                                              .backward = pass != CudnnPass::kForward,
                                              .window = args.window,
                                              .documents = static_cast<bool>(args.starts),
                                              .causal = args.causal,
                                              .soft_cap = args.scores.soft_cap != 0.0F},
                                             state.options)};
  if (choice.objection.empty()) {
    choice.objection = misalignment(views);
    if (choice.objection.empty()) choice = choose(stream, shape);
    if (!choice.objection.empty()) state.unforeseen = choice.objection;
  }
  require(choice.plan != nullptr || state.options.attention != AttentionBackend::kCudnn,
          ErrorCode::kUnavailable, "attention was to run on cuDNN only: ", choice.objection);
  state.fallback = choice.objection;
  return choice;
}

Choice find_plan(const AttentionForwardArgs& args, CudaStream& stream) {
  return find_plan(args, CudnnPass::kForward, {&args.qkv, &args.out, &args.lse}, stream);
}

CudnnPass backward_pass(CudaStream& stream) {
  return cuda_attention(stream).options.deterministic ? CudnnPass::kBackwardDeterministic
                                                      : CudnnPass::kBackward;
}

Choice find_plan(const AttentionBackwardArgs& args, CudaStream& stream) {
  return find_plan(args, backward_pass(stream),
                   {&args.qkv, &args.out, &args.lse, &args.d_out, &args.d_qkv}, stream);
}

}  // namespace

void plan_cudnn_attention(const AttentionForwardArgs& args, CudaStream& stream) {
  find_plan(args, stream);
}
void plan_cudnn_attention(const AttentionBackwardArgs& args, CudaStream& stream) {
  find_plan(args, stream);
}

bool cudnn_attention_forward(const AttentionForwardArgs& args, CudaStream& stream) {
  const Choice choice = find_plan(args, stream);
  if (choice.plan == nullptr) return false;
  const Scratch scratch(*choice.plan, shape_of(args, CudnnPass::kForward));
  choice.plan->execute(choice.handle,
                       {{kQ, part(args.qkv, 0)},
                        {kK, part(args.qkv, 1)},
                        {kV, part(args.qkv, 2)},
                        {kOut, args.out.data},
                        {kLse, args.lse.data}},
                       attention_scratch(args.workspace, scratch.bytes, stream));
  return true;
}

bool cudnn_attention_backward(const AttentionBackwardArgs& args, CudaStream& stream) {
  const Choice choice = find_plan(args, stream);
  if (choice.plan == nullptr) return false;
  const CudnnAttentionShape shape = shape_of(args, backward_pass(stream));
  const Scratch scratch(*choice.plan, shape);
  auto* base = static_cast<std::byte*>(attention_scratch(args.workspace, scratch.bytes, stream));
  std::map<std::int64_t, void*> tensors{{kQ, part(args.qkv, 0)},    {kK, part(args.qkv, 1)},
                                        {kV, part(args.qkv, 2)},    {kOut, args.out.data},
                                        {kLse, args.lse.data},      {kDOut, args.d_out.data},
                                        {kDQ, part(args.d_qkv, 0)}, {kDK, part(args.d_qkv, 1)},
                                        {kDV, part(args.d_qkv, 2)}, {kDelta, base + scratch.delta}};
  if (shape.pass == CudnnPass::kBackward) tensors[kDQAccumulator] = base + scratch.accumulator;
  choice.plan->execute(choice.handle, tensors, base);
  return true;
}

}  // namespace tessera::cuda
