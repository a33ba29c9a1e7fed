#include "cuda/attention_cudnn_cuda.h"

#include <cuda_runtime_api.h>

#include <string>

#include "cuda/cudnn_attention_graphs_cuda.h"
#include "tessera/core/error.h"

// Attention by cuDNN: which calls it takes, its plans, and their execution.
namespace tessera::cuda {
namespace {

/// Shapes of training are multiples of this. Generation meets every length once, which is not worth
/// a plan.
constexpr std::int64_t kLengthStep = 64;
constexpr std::size_t kScratchAlignment = 256;

/// The library, a handle on the stream, and the plans made so far. A null plan: no engine takes it.
class CudnnAttention {
 public:
  explicit CudnnAttention(cudaStream_t stream) {
    check_available(library_.create(&handle_), "cudnnCreate");
    if (const cudnnStatus_t status = library_.set_stream(handle_, stream);
        status != CUDNN_STATUS_SUCCESS) {
      static_cast<void>(library_.destroy(handle_));
      check_available(status, "cudnnSetStream");
    }
  }
  ~CudnnAttention() {
    plans_.clear();
    static_cast<void>(library_.destroy(handle_));
  }
  CudnnAttention(const CudnnAttention&) = delete;
  CudnnAttention& operator=(const CudnnAttention&) = delete;

  /// Null if cuDNN has no engine for the shape.
  CudnnPlan* plan(const CudnnAttentionShape& shape) {
    const auto known = plans_.find(shape);
    if (known != plans_.end()) return known->second.get();
    std::unique_ptr<CudnnPlan> plan;
    try {
      plan = make_cudnn_attention_plan(library_, {.handle = handle_}, shape);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kUnavailable) throw;
    }
    return (plans_[shape] = std::move(plan)).get();
  }

 private:
  void check_available(cudnnStatus_t status, const char* call) const {
    require(status == CUDNN_STATUS_SUCCESS, ErrorCode::kUnavailable,
            "cuDNN cannot be used here: ", call, " failed with ",
            library_.get_error_string(status));
  }

  CudnnLibrary library_;
  cudnnHandle_t handle_ = nullptr;
  std::map<CudnnAttentionShape, std::unique_ptr<CudnnPlan>> plans_;
};

/// Why cuDNN does not take these views, or nothing. Only a call with an insistent user has every
/// length.
std::string objection(const TensorView& qkv, const AttentionBackend backend) {
  const std::int64_t length = qkv.shape[1], head_dim = qkv.shape[4];
  if (qkv.dtype != DType::kBFloat16) return "cuDNN's attention takes bf16 only";
  if (head_dim != 64 && head_dim != 128)
    return concat("cuDNN's attention is used for a head size of 64 or 128, not ", head_dim);
  if (backend == AttentionBackend::kAuto && length % kLengthStep != 0)
    return concat("a length of ", length, " is no multiple of ", kLengthStep);
  return {};
}

std::string objection(std::initializer_list<const TensorView*> views) {
  for (const TensorView* view : views) {
    if (reinterpret_cast<std::uintptr_t>(view->data) % 16 != 0)
      return "a tensor is not aligned to 16 bytes";
  }
  return {};
}

/// What a stream keeps: cuDNN, or why it cannot be used.
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
      made->attention = std::make_unique<CudnnAttention>(stream.handle());
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kUnavailable) throw;
      made->objection = error.what();
    }
    slot = std::move(made);
  }
  return *static_cast<StreamCudnn*>(slot.get());
}

/// What to run: a plan, or why there is none.
struct Choice {
  CudnnPlan* plan = nullptr;
  std::string objection{};
};

Choice choose(CudaStream& stream, const CudnnAttentionShape& shape) {
  const StreamCudnn& cudnn = stream_cudnn(stream);
  if (!cudnn.attention) return {.objection = cudnn.objection};
  CudnnPlan* plan = cudnn.attention->plan(shape);
  if (plan == nullptr) return {.objection = "cuDNN has no kernel for this shape on this GPU"};
  return {.plan = plan};
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

/// Records why cuDNN was not used, or throws if it had to be. Returns false.
bool decline(CudaAttention& state, const std::string& why) {
  require(state.options.attention != AttentionBackend::kCudnn, ErrorCode::kUnavailable,
          "attention was to run on cuDNN only: ", why);
  state.fallback = why;
  return false;
}

/// The call ran on cuDNN. Returns true.
bool accept(CudaAttention& state) {
  state.fallback.clear();
  return true;
}

CudnnAttentionShape shape_of(const TensorView& qkv, CudnnPass pass) {
  return {.batch = qkv.shape[0],
          .length = qkv.shape[1],
          .heads = qkv.shape[3],
          .head_dim = qkv.shape[4],
          .pass = pass};
}

/// Part 0, 1 or 2 of (B, L, 3, H, D).
void* part(const TensorView& qkv, std::int64_t index) {
  return qkv.data +
         index * qkv.shape[3] * qkv.shape[4] * static_cast<std::int64_t>(size_of(qkv.dtype));
}

}  // namespace

bool cudnn_attention_forward(const AttentionForwardArgs& args, CudaStream& stream) {
  CudaAttention& state = cuda_attention(stream);
  if (state.options.attention == AttentionBackend::kOwn) return false;
  std::string why = objection(args.qkv, state.options.attention);
  if (why.empty()) why = objection({&args.qkv, &args.out, &args.lse});
  if (!why.empty()) return decline(state, why);
  const CudnnAttentionShape shape = shape_of(args.qkv, CudnnPass::kForward);
  const Choice choice = choose(stream, shape);
  if (choice.plan == nullptr) return decline(state, choice.objection);
  const Scratch scratch(*choice.plan, shape);
  choice.plan->execute({{kQ, part(args.qkv, 0)},
                        {kK, part(args.qkv, 1)},
                        {kV, part(args.qkv, 2)},
                        {kOut, args.out.data},
                        {kLse, args.lse.data}},
                       stream.scratch(scratch.bytes));
  return accept(state);
}

bool cudnn_attention_backward(const AttentionBackwardArgs& args, CudaStream& stream) {
  CudaAttention& state = cuda_attention(stream);
  const CudaKernelOptions& options = state.options;
  if (options.attention == AttentionBackend::kOwn) return false;
  std::string why = objection(args.qkv, options.attention);
  if (why.empty()) why = objection({&args.qkv, &args.out, &args.lse, &args.d_out, &args.d_qkv});
  if (!why.empty()) return decline(state, why);
  const CudnnAttentionShape shape = shape_of(
      args.qkv, options.deterministic ? CudnnPass::kBackwardDeterministic : CudnnPass::kBackward);
  const Choice choice = choose(stream, shape);
  if (choice.plan == nullptr) return decline(state, choice.objection);
  const Scratch scratch(*choice.plan, shape);
  if (options.attention == AttentionBackend::kAuto &&
      static_cast<std::int64_t>(scratch.bytes) > options.attention_scratch_limit)
    return decline(
        state, concat("cuDNN's attention backward needs ", scratch.bytes,
                      " bytes of scratch, over the limit of ", options.attention_scratch_limit,
                      "; use a smaller --micro-batch, --deterministic-attention false, which needs "
                      "less, or --attention cudnn, which has no limit"));
  auto* base = static_cast<std::byte*>(stream.scratch(scratch.bytes));
  std::map<std::int64_t, void*> tensors{{kQ, part(args.qkv, 0)},    {kK, part(args.qkv, 1)},
                                        {kV, part(args.qkv, 2)},    {kOut, args.out.data},
                                        {kLse, args.lse.data},      {kDOut, args.d_out.data},
                                        {kDQ, part(args.d_qkv, 0)}, {kDK, part(args.d_qkv, 1)},
                                        {kDV, part(args.d_qkv, 2)}, {kDelta, base + scratch.delta}};
  if (shape.pass == CudnnPass::kBackward) tensors[kDQAccumulator] = base + scratch.accumulator;
  choice.plan->execute(tensors, base);
  return accept(state);
}

}  // namespace tessera::cuda
