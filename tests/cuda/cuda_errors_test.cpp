#include "cuda/cuda_run.h"
#include "cuda/emulated_gpu.h"

#include <functional>

#include "tessera/core/cuda_device.h"
#include "tessera/core/error.h"
#include "tessera/core/memory.h"
#include "tessera/kernels/cuda_options.h"

// What can be wrong with a GPU: a clear error each.
namespace tessera {
namespace {

using test::counting_gpt;
using test::cuda_options;
using test::run;

class CudaErrors : public test::EmulatedGpu {};

void expect_error(ErrorCode code, const std::vector<std::string>& words,
                  const std::function<void()>& body) {
  try {
    body();
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    for (const std::string& word : words) {
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos)
          << "'" << word << "' is not in: " << error.what();
    }
  }
}

TEST_F(CudaErrors, NoDriver) {
  fake_cuda::configure({.driver_version = 0});
  EXPECT_FALSE(cuda_status().usable());
  expect_error(ErrorCode::kUnavailable, {"driver", "`device` cpu"},
               [] { run(counting_gpt(), cuda_options("no_shard", 1)); });
}

TEST_F(CudaErrors, DriverTooOld) {
  fake_cuda::configure({.driver_version = 12040});
  expect_error(ErrorCode::kUnavailable, {"too old", "12.4", "580"}, [] { make_cuda_device(); });
}

TEST_F(CudaErrors, GpuTooOld) {
  fake_cuda::configure({.major = 7, .minor = 5});
  expect_error(ErrorCode::kUnavailable, {"compute capability 7.5", "8.0"},
               [] { make_cuda_device(); });
}

TEST_F(CudaErrors, GpuThatTheBuildHasNoCodeFor) {
  fake_cuda::configure({.major = 12, .minor = 0});
  constexpr auto kNoKernelImage = static_cast<cudaError_t>(209);
  fake_cuda::fail_call("cudaLaunchKernel", 1, kNoKernelImage);
  expect_error(ErrorCode::kUnavailable,
               {"GPU 0", "compute capability 12.0", "TESSERA_CUDA_ARCHITECTURES=120"},
               [] { make_cuda_device(); });
  EXPECT_NE(make_cuda_device(), nullptr);
}

TEST_F(CudaErrors, NoSuchGpu) {
  expect_error(ErrorCode::kUnavailable, {"no GPU 3", "gpu-info"},
               [] { make_cuda_device({.ordinal = 3}); });
}

TEST_F(CudaErrors, FewerGpusThanRanksOfNccl) {
  TrainerOptions options = cuda_options("full_shard", 2);
  options.group = GroupChoice::kNccl;
  expect_error(ErrorCode::kConfig, {"ranks is 2", "1 GPU", "leave `group` nccl out"},
               [&] { run(counting_gpt(), options); });
}

TEST_F(CudaErrors, OutOfMemoryBeforeTheRunNamesWhatWouldFit) {
  fake_cuda::configure({.memory_bytes = 60000});
  expect_error(ErrorCode::kOutOfMemory, {"each rank needs", "parameters"},
               [] { run(counting_gpt(), cuda_options("no_shard", 1)); });
}

/// What trainer.train throws: how much is free, who holds the rest, the plan, and advice.
void expect_out_of_memory(const Trainer& trainer, const std::vector<std::string>& advice) {
  std::vector<std::string> words{"rank 0",           "GPU 0 has",  "this rank",
                                 "other ranks",      "peaks: par", "by the plan each rank needs",
                                 "per rank are free"};
  words.insert(words.end(), advice.begin(), advice.end());
  expect_error(ErrorCode::kOutOfMemory, words, [&] { trainer.train(); });
}

TEST_F(CudaErrors, OutOfMemoryBecauseOthersTookItNamesWhatWouldFit) {
  constexpr std::size_t kMemory = kCudaScratchBytes + (std::size_t{1} << 20);
  fake_cuda::configure({.memory_bytes = kMemory});
  const test::CountingTokens data;
  const Model model = counting_gpt();
  TrainerOptions options = cuda_options("no_shard", 1);
  options.micro_batch = 16;
  const Trainer trainer(model, data, options);  // fits
  const auto planned = static_cast<std::size_t>(trainer.plan().memory.total);
  const auto expect_with = [&](std::size_t left, const std::vector<std::string>& advice) {
    void* taken = nullptr;
    ASSERT_EQ(cudaMalloc(&taken, kMemory - left), cudaSuccess);
    expect_out_of_memory(trainer, advice);
    cudaFree(taken);
  };
  // A part of what activations need.
  const std::size_t rest = planned - kCudaScratchBytes;
  expect_with(kCudaScratchBytes + rest * 3 / 4, {"others have taken memory", "this would fit: `"});
  // Too little for even the first tensor: memory comes in pages of 2 MiB.
  expect_with(4096, {"bytes of parameters for embedding", "others have taken memory",
                     "would fit (at least"});
}

TEST_F(CudaErrors, OutOfMemoryThoughThePlanFitsSaysThat) {
  const test::CountingTokens data;
  const Model model = counting_gpt();
  const Trainer trainer(model, data, cuda_options("no_shard", 1));
  fake_cuda::fail_call("cudaMalloc", 1, cudaErrorMemoryAllocation, fake_cuda::Repeat::kFromThenOn);
  expect_out_of_memory(trainer, {"it should fit"});
  fake_cuda::stop_failing();
}

/// Once, whether the plan knows the reason or only the GPU does.
TEST_F(CudaErrors, AttentionThatIsNotCudnnsIsTold) {
  const Model model = test::cudnn_gpt();
  const test::CountingTokens data(test::kCudnnLength);
  TrainerOptions options = cuda_options("no_shard", 1);
  for (const bool known : {true, false}) {
    options.precision = known ? DType::kFloat32 : DType::kBFloat16;
    const Trainer trainer(model, data, options);
    EXPECT_EQ(trainer.plan().notes.size(), known ? 1U : 0U);
    const auto notes = test::notes_of(trainer);
    ASSERT_EQ(notes.size(), 1U);
    const std::string why =
        known ? "cuDNN's attention takes bf16 and fp16 only" : "the emulator has none";
    EXPECT_NE(notes.front().find("not on cuDNN: " + why), std::string::npos) << notes.front();
  }
}

TEST_F(CudaErrors, OutOfMemoryNamesTensorAndCategory) {
  const auto device = make_cuda_device();
  Memory memory(*device);
  expect_error(ErrorCode::kOutOfMemory, {"big tensor", "activations", "GPU 0"}, [&] {
    memory.allocate(std::int64_t{1} << 40, MemoryCategory::kActivations, "big tensor");
  });
}

TEST_F(CudaErrors, MisuseOfGraphsIsNamed) {
  const auto device = make_cuda_device();
  const auto stream = device->create_stream({.name = "compute"});
  auto& cuda = dynamic_cast<CudaStream&>(*stream);
  cuda.begin_capture();
  expect_error(ErrorCode::kInvalidArgument, {"already capturing"}, [&] { cuda.begin_capture(); });
  expect_error(ErrorCode::kInvalidArgument, {"scratch"}, [&] { cuda.scratch(1024); });
  const auto graph = cuda.end_capture(nullptr);
  cuda.launch(*graph);
  stream->synchronize();
}

}  // namespace
}  // namespace tessera
