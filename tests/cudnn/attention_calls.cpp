#include <dlfcn.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "cuda/attention_cudnn_cuda.h"
#include "cuda/cudnn_attention_graphs_cuda.h"
#include "stub_cudnn.h"
#include "tessera/core/error.h"

// Which calls of attention go to cuDNN, with which addresses, and what is said of the others: over
// a library that only keeps what it was asked.
namespace tessera::cuda {
namespace {

using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

StubCudnn& stub() {
  // Loaded under cuDNN's name: the loader gives it to whoever asks for that.
  static StubCudnn* const loaded = [] {
    void* const library = dlopen(TESSERA_STUB_CUDNN, RTLD_NOW | RTLD_LOCAL);
    require(library != nullptr, ErrorCode::kInternal, "no stub of cuDNN: ", dlerror());
    return reinterpret_cast<decltype(&stub_cudnn)>(dlsym(library, "stub_cudnn"))();
  }();
  return *loaded;
}

/// As much of a stream as cuDNN needs: scratch and the slot for a library.
class ScratchStream : public CudaStream {
 public:
  void submit(const Work&, std::function<void()> task) override { task(); }
  Event record() override { return {}; }
  void wait(const Event&) override {}
  void copy(void*, const void*, std::size_t) override {}
  void synchronize() override {}
  bool failed() const override { return false; }
  void begin_capture() override {}
  std::unique_ptr<CudaGraph> end_capture(std::unique_ptr<CudaGraph> graph) override {
    return graph;
  }
  void launch(CudaGraph&) override {}
  Event make_event() override { return {}; }
  void record_again(const Event&) override {}
  CUstream_st* handle() const override {
    return reinterpret_cast<CUstream_st*>(const_cast<ScratchStream*>(this));
  }
  const KernelTable& kernels() const override { return cpu_kernels(); }
  int ordinal() const override { return 0; }
  void* scratch(std::size_t bytes) override {
    asked_ = bytes;
    return memory_;
  }
  void lend_scratch(void*, std::size_t) override {}
  std::shared_ptr<void>& library(Library) override { return library_; }
  std::function<double()> mark_time() override {
    fail(ErrorCode::kInternal, "this stream has no clock");
  }
  const std::shared_ptr<StreamFailure>& failure() override { return failure_; }

  std::size_t asked() const { return asked_; }
  std::byte* memory() { return memory_; }

 private:
  alignas(256) std::byte memory_[256] = {};
  std::size_t asked_ = 0;
  std::shared_ptr<void> library_;
  std::shared_ptr<StreamFailure> failure_ = std::make_shared<StreamFailure>();
};

/// Tensors of one call. Nothing looks at what they hold.
class CudnnCalls : public testing::Test {
 protected:
  static constexpr std::int64_t kBatch = 2, kHeads = 3, kDim = 64;

  CudnnCalls() { stub() = {}; }

  TensorView view(std::size_t which, const Shape& shape, DType dtype = DType::kBFloat16) {
    return TensorView(tensors_[which].data() + offset_, dtype, shape);
  }
  TensorView qkv() { return view(0, {kBatch, length_, 3, kHeads, kDim}, dtype_); }
  TensorView out() { return view(1, {kBatch, length_, kHeads, kDim}, dtype_); }
  TensorView lse() { return view(2, {kBatch, kHeads, length_}, DType::kFloat32); }
  TensorView d_out() { return view(3, {kBatch, length_, kHeads, kDim}, dtype_); }
  TensorView d_qkv() { return view(4, {kBatch, length_, 3, kHeads, kDim}, dtype_); }

  TensorView starts() {
    return documents_ ? view(4, {kBatch, length_}, DType::kInt32) : TensorView{};
  }

  bool forward() {
    return cudnn_attention_forward(
        {.qkv = qkv(), .out = out(), .lse = lse(), .starts = starts(), .scores = scores_}, stream_);
  }
  bool backward() {
    return cudnn_attention_backward({.d_out = d_out(),
                                     .qkv = qkv(),
                                     .out = out(),
                                     .lse = lse(),
                                     .d_qkv = d_qkv(),
                                     .starts = starts(),
                                     .scores = scores_},
                                    stream_);
  }
  void set(const CudaKernelOptions& options) { set_cuda_kernel_options(stream_, options); }
  std::string fallback() { return cuda_attention(stream_).fallback; }

  /// Element `begin` of a bf16 tensor.
  static void* element(const TensorView& tensor, std::int64_t begin) {
    return tensor.data + 2 * begin;
  }

  static constexpr std::int64_t kPart = kHeads * kDim;  // of qkv
  std::int64_t length_ = 128;
  DType dtype_ = DType::kBFloat16;
  std::int64_t offset_ = 0;  // bytes
  bool documents_ = false;
  AttentionScores scores_{};
  std::vector<std::byte> tensors_[5]{std::vector<std::byte>(64), std::vector<std::byte>(64),
                                     std::vector<std::byte>(64), std::vector<std::byte>(64),
                                     std::vector<std::byte>(64)};
  ScratchStream stream_;
};

TEST_F(CudnnCalls, ForwardPassesAddressesAndItsWorkspace) {
  stub().engines = {{.workspace_bytes = 300}};
  ASSERT_TRUE(forward());
  ASSERT_EQ(stub().executions.size(), 1U);
  EXPECT_EQ(stub().executions[0].workspace, stream_.memory());
  EXPECT_EQ(stream_.asked(), 512U);
  EXPECT_THAT(stub().executions[0].tensors,
              UnorderedElementsAre(Pair(kQ, qkv().data), Pair(kK, element(qkv(), kPart)),
                                   Pair(kV, element(qkv(), 2 * kPart)), Pair(kOut, out().data),
                                   Pair(kLse, lse().data)));
}

TEST_F(CudnnCalls, BackwardKeepsItsScratchBehindTheWorkspace) {
  stub().engines = {{.workspace_bytes = 300}};
  constexpr std::int64_t kRowBytes = kBatch * kHeads * 128 * 4;
  for (const bool deterministic : {true, false}) {
    SCOPED_TRACE(deterministic ? "deterministic" : "any order");
    set({.deterministic = deterministic});
    ASSERT_TRUE(backward());
    std::map<std::int64_t, void*> expected{{kQ, qkv().data},
                                           {kK, element(qkv(), kPart)},
                                           {kV, element(qkv(), 2 * kPart)},
                                           {kOut, out().data},
                                           {kLse, lse().data},
                                           {kDOut, d_out().data},
                                           {kDQ, d_qkv().data},
                                           {kDK, element(d_qkv(), kPart)},
                                           {kDV, element(d_qkv(), 2 * kPart)},
                                           {kDelta, stream_.memory() + 512}};
    if (!deterministic) expected[kDQAccumulator] = stream_.memory() + 512 + kRowBytes;
    EXPECT_EQ(stub().executions.back().tensors, expected);
    EXPECT_EQ(stub().executions.back().workspace, stream_.memory());
    EXPECT_EQ(stream_.asked(),
              512U + kRowBytes + (deterministic ? 0U : std::size_t{kRowBytes} * kDim));
  }
}

TEST_F(CudnnCalls, OthersAreLeftToOurKernelsWithTheReason) {
  length_ = 100;
  EXPECT_FALSE(forward());
  EXPECT_EQ(fallback(), "a length of 100 is no multiple of 64");
  length_ = 128;
  offset_ = 8;
  EXPECT_FALSE(backward());
  EXPECT_EQ(fallback(), "a tensor is not aligned to 16 bytes");
  offset_ = 0;
  dtype_ = DType::kFloat32;
  EXPECT_FALSE(forward());
  EXPECT_EQ(fallback(), "cuDNN's attention takes bf16 and fp16 only");
  dtype_ = DType::kBFloat16;
  documents_ = true;
  EXPECT_FALSE(forward() || backward());
  EXPECT_EQ(fallback(), "cuDNN's attention is used without the documents of packed samples");
  documents_ = false;
  scores_.soft_cap = 50.0F;
  EXPECT_FALSE(forward() || backward());
  EXPECT_EQ(fallback(), "cuDNN's attention is used without a soft cap of the scores");
  EXPECT_TRUE(stub().executions.empty());
  // Of these, the only one that no plan tells; later ones do not hide it.
  EXPECT_EQ(cuda_attention(stream_).unforeseen, "a tensor is not aligned to 16 bytes");
}

/// Which is a number in the graph.
TEST_F(CudnnCalls, TakesAnyScaleOfTheScores) {
  scores_.scale = 0.25F;
  stub().engines = {{}};
  EXPECT_TRUE(forward() && backward());
  EXPECT_EQ(fallback(), "");
}

TEST_F(CudnnCalls, TheReasonGoesOnceCudnnRuns) {
  for (const bool backwards : {false, true}) {
    dtype_ = DType::kFloat32;
    ASSERT_FALSE(forward());
    ASSERT_NE(fallback(), "");
    dtype_ = DType::kBFloat16;
    ASSERT_TRUE(backwards ? backward() : forward());
    EXPECT_EQ(fallback(), "");
  }
}

TEST_F(CudnnCalls, Fp16HasPlansOfItsOwn) {
  ASSERT_TRUE(forward() && backward());
  dtype_ = DType::kFloat16;
  EXPECT_TRUE(forward() && backward());
  EXPECT_EQ(stub().graphs, 4);
  EXPECT_EQ(fallback(), "");
}

TEST_F(CudnnCalls, OurOwnAreNotExplained) {
  set({.attention = AttentionBackend::kOwn});
  EXPECT_FALSE(forward() || backward());
  EXPECT_EQ(fallback(), "");
}

TEST_F(CudnnCalls, AreRefusedIfCudnnMustRunButCannot) {
  set({.attention = AttentionBackend::kCudnn});
  dtype_ = DType::kFloat32;
  try {
    forward();
    FAIL() << "was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
    EXPECT_THAT(error.what(), HasSubstr("cuDNN only: cuDNN's attention takes bf16 and fp16 only"));
  }
  dtype_ = DType::kBFloat16;
  length_ = 100;  // slow to plan, but asked for
  EXPECT_TRUE(forward());
}

TEST_F(CudnnCalls, ALimitOnScratchHoldsForAutoOnly) {
  stub().engines = {{.workspace_bytes = 10'000}};
  set({.attention_scratch_limit = 10'000});
  EXPECT_TRUE(forward());
  EXPECT_FALSE(backward());
  EXPECT_THAT(fallback(), HasSubstr("bytes of scratch, over the limit of 10000"));
  EXPECT_EQ(cuda_attention(stream_).unforeseen, "");
  set({.attention = AttentionBackend::kCudnn, .attention_scratch_limit = 10'000});
  EXPECT_TRUE(backward());
}

TEST_F(CudnnCalls, WhatCudnnDoesNotSupportRunsOnOurKernels) {
  for (const bool in_heuristics : {false, true}) {
    ScratchStream fresh;
    (in_heuristics ? stub().heuristics : stub().graph) = CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH;
    EXPECT_FALSE(cudnn_attention_forward({.qkv = qkv(), .out = out(), .lse = lse()}, fresh));
    EXPECT_THAT(cuda_attention(fresh).fallback,
                HasSubstr(concat(in_heuristics ? "asking for engines" : "an operation graph",
                                 " failed with a status of the stub")));
    stub() = {};
  }
}

TEST_F(CudnnCalls, OtherErrorsOfCudnnAreErrors) {
  stub().graph = CUDNN_STATUS_INTERNAL_ERROR;
  try {
    forward();
    FAIL() << "was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInternal);
    EXPECT_THAT(error.what(), HasSubstr("an operation graph failed"));
  }
}

TEST_F(CudnnCalls, EnginesOfAnyOrderAreForThoseWhoAllowThem) {
  stub().engines = {{.makes_plans = false}, {.deterministic = false}, {.deterministic = true}};
  EXPECT_TRUE(backward());
  EXPECT_EQ(stub().executions.back().engine, 2U);
  set({.deterministic = false});
  EXPECT_TRUE(backward());
  EXPECT_EQ(stub().executions.back().engine, 1U);
  set({.deterministic = true});
  stub().engines.pop_back();
  length_ = 256;  // a plan of its own
  for (int i = 0; i < 2; ++i) {
    EXPECT_FALSE(backward());
    EXPECT_EQ(fallback(),
              "cuDNN has no engine for this graph (2 candidates; none that gives the same bits "
              "every time)");
  }
}

TEST_F(CudnnCalls, AShapeIsPlannedOnce) {
  EXPECT_TRUE(forward() && forward() && backward() && backward());
  EXPECT_EQ(stub().graphs, 2);
  length_ = 256;
  EXPECT_TRUE(forward());
  EXPECT_EQ(stub().graphs, 3);
  stub().graph = CUDNN_STATUS_NOT_SUPPORTED;
  length_ = 512;
  EXPECT_FALSE(forward() || forward());
  EXPECT_EQ(stub().graphs, 4) << "a refusal is remembered, too";
}

/// Each by a handle of its own, which is on its own stream.
TEST_F(CudnnCalls, RanksThatShareAGpuShareItsPlans) {
  constexpr int kRanks = 4, kSteps = 5;
  ASSERT_TRUE(forward());  // this stream keeps the plans
  const AttentionForwardArgs forward_args{.qkv = qkv(), .out = out(), .lse = lse()};
  const AttentionBackwardArgs backward_args{
      .d_out = d_out(), .qkv = qkv(), .out = out(), .lse = lse(), .d_qkv = d_qkv()};
  std::vector<ScratchStream> streams(kRanks);
  std::vector<std::thread> ranks;
  for (ScratchStream& stream : streams) {
    ranks.emplace_back([&] {
      for (int step = 0; step < kSteps; ++step) {
        EXPECT_NO_THROW(EXPECT_TRUE(cudnn_attention_forward(forward_args, stream)));
        EXPECT_NO_THROW(EXPECT_TRUE(cudnn_attention_backward(backward_args, stream)));
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(stub().graphs, 2);
  for (const ScratchStream& stream : streams) {
    EXPECT_EQ(std::ranges::count(stub().executions, stream.handle(), &StubExecution::stream),
              2 * kSteps);
  }
}

TEST_F(CudnnCalls, APlanIsThereBeforeTheCall) {
  const AttentionForwardArgs forward_args{.qkv = qkv(), .out = out(), .lse = lse()};
  const AttentionBackwardArgs backward_args{
      .d_out = d_out(), .qkv = qkv(), .out = out(), .lse = lse(), .d_qkv = d_qkv()};
  plan_cudnn_attention(forward_args, stream_);
  plan_cudnn_attention(backward_args, stream_);
  EXPECT_EQ(stub().graphs, 2);
  EXPECT_TRUE(stub().executions.empty());
  EXPECT_TRUE(forward() && backward());
  EXPECT_EQ(stub().graphs, 2);
}

TEST_F(CudnnCalls, TakeTheirScratchFromTheCallersWorkspaceIfItSuffices) {
  stub().engines = {{.workspace_bytes = 300}};
  alignas(256) std::byte memory[1024] = {};
  for (const std::int64_t bytes : {511, 512}) {
    const TensorView workspace(memory, DType::kUInt8, Shape{bytes});
    ASSERT_TRUE(cudnn_attention_forward(
        {.qkv = qkv(), .out = out(), .lse = lse(), .workspace = workspace}, stream_));
    EXPECT_EQ(stub().executions.back().workspace, bytes == 512 ? memory : stream_.memory());
  }
}

}  // namespace
}  // namespace tessera::cuda
