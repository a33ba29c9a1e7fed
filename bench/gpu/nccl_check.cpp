#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support.h"
#include "tessera/collectives/nccl_group.h"
#include "tessera/core/cuda_device.h"
#include "tessera/core/error.h"
#include "tessera/core/tensor.h"

// Whether the NCCL group computes what it should, on a machine with one GPU: its ranks are
// processes that share it. Each operation runs as it is called, and again as a graph replays it, on
// memory that NCCL gave out and has registered. Correctness only: processes take turns on the GPU,
// so times mean nothing.
//
// NCCL refuses two ranks on one GPU of one host; each process says that it is a host of its own,
// and they talk over the loopback interface.
//
//   nccl_check [ranks=2]
//
// prints "PASS nccl_check ..." or "FAIL nccl_check ..." and exits with 0 or 1.
namespace {

using tessera::bfloat16;
using tessera::CudaStream;
using tessera::DType;
using tessera::ProcessGroup;
using tessera::Shape;
using tessera::TensorView;

constexpr std::int64_t kNumel = 100003;  // of one rank's part: odd, and more than one NCCL chunk

/// Small integers, whose sums over ranks are exact in bf16 whatever their order.
float value_of(int rank, std::int64_t i) { return static_cast<float>((i * 7 + rank * 5) % 17); }

class Rank {
 public:
  Rank(ProcessGroup& group, tessera::CudaDevice& device)
      : group_(group),
        device_(device),
        made_(device.create_stream({.name = "nccl_check"})),
        stream_(dynamic_cast<CudaStream*>(made_.get())) {}

  /// Throws Error that names the first wrong element.
  template <typename T>
  void check_all() {
    const int n = group_.size();
    const auto sum = [n](std::int64_t i) {
      float total = 0.0F;
      for (int r = 0; r < n; ++r) total += value_of(r, i);
      return total;
    };
    const auto own = [this](std::int64_t i) { return value_of(group_.rank(), i); };
    check<T>(
        "all_gather", kNumel, own, kNumel * n,
        [](std::int64_t i) { return value_of(static_cast<int>(i / kNumel), i % kNumel); },
        [&](TensorView in, TensorView out) { group_.all_gather(in, out, *stream_); });
    check<T>(
        "reduce_scatter", kNumel * n, own, kNumel,
        [&](std::int64_t i) { return sum(group_.rank() * kNumel + i); },
        [&](TensorView in, TensorView out) { group_.reduce_scatter(in, out, false, *stream_); });
    check<T>("all_reduce", kNumel, own, kNumel, sum, [&](TensorView in, TensorView out) {
      stream_->copy(out.data, in.data, static_cast<std::size_t>(in.bytes()));
      group_.all_reduce(out, *stream_);
    });
    check<T>(
        "all_to_all", kNumel * n, own, kNumel * n,
        [&](std::int64_t i) {
          return value_of(static_cast<int>(i / kNumel), group_.rank() * kNumel + i % kNumel);
        },
        [&](TensorView in, TensorView out) { group_.all_to_all(in, out, *stream_); });
    check<T>(
        "broadcast", kNumel, own, kNumel, [n](std::int64_t i) { return value_of(n - 1, i); },
        [&](TensorView in, TensorView out) {
          stream_->copy(out.data, in.data, static_cast<std::size_t>(in.bytes()));
          group_.broadcast(out, n - 1, *stream_);
        });
  }

 private:
  template <typename T, typename Value, typename Expected, typename Operation>
  void check(const char* name, std::int64_t input_numel, const Value& value,
             std::int64_t output_numel, const Expected& expected, const Operation& operation) {
    std::vector<T> host(static_cast<std::size_t>(input_numel));
    for (std::size_t i = 0; i < host.size(); ++i) {
      host[i] = static_cast<T>(value(static_cast<std::int64_t>(i)));
    }
    const std::size_t in_bytes = host.size() * sizeof(T);
    const std::size_t out_bytes = static_cast<std::size_t>(output_numel) * sizeof(T);
    void* const in = allocate(in_bytes);
    void* const out = allocate(out_bytes);
    const auto run = [&] {
      operation(TensorView(in, tessera::dtype_of<T>(), Shape{input_numel}),
                TensorView(out, tessera::dtype_of<T>(), Shape{output_numel}));
    };
    const auto check_result = [&](const char* how) {
      std::vector<T> result(static_cast<std::size_t>(output_numel));
      stream_->copy(result.data(), out, out_bytes);
      stream_->synchronize();
      for (std::size_t i = 0; i < result.size(); ++i) {
        const float wanted = expected(static_cast<std::int64_t>(i));
        tessera::require(static_cast<float>(result[i]) == wanted, tessera::ErrorCode::kInternal,
                         name, " of ", to_string(tessera::dtype_of<T>()), ", ", how, ", on rank ",
                         group_.rank(), " of ", group_.size(), ": element ", i, " is ",
                         static_cast<float>(result[i]), ", expected ", wanted);
      }
    };
    stream_->copy(in, host.data(), in_bytes);
    run();
    check_result("eager");
    const std::vector<T> nothing(static_cast<std::size_t>(output_numel));
    stream_->copy(out, nothing.data(), out_bytes);
    stream_->begin_capture();
    run();
    const auto graph = stream_->end_capture(nullptr);
    stream_->launch(*graph);
    check_result("replayed");
    device_.deallocate(in, in_bytes);
    device_.deallocate(out, out_bytes);
  }

  void* allocate(std::size_t bytes) {
    void* const memory = device_.allocate(bytes);
    const std::string why =
        dynamic_cast<tessera::NcclGroup&>(group_).register_buffer(memory, bytes);
    if (!why.empty() && group_.rank() == 0 && !std::exchange(told_, true)) {
      std::cout << "nccl_check: NCCL has not registered memory: " << why << std::endl;
    }
    return memory;
  }

  ProcessGroup& group_;
  tessera::CudaDevice& device_;
  const std::unique_ptr<tessera::Stream> made_;
  CudaStream* const stream_;
  bool told_ = false;
};

/// Before the first call of NCCL, which reads them once. A rank that waits wastes its turn on the
/// GPU, so no protocol that waits for every few bytes.
void set_environment(int rank) {
  setenv("NCCL_HOSTID", ("rank" + std::to_string(rank)).c_str(), 1);
  setenv("NCCL_SOCKET_IFNAME", "lo", 0);
  setenv("NCCL_IB_DISABLE", "1", 0);
  setenv("NCCL_MNNVL_ENABLE", "0", 0);
  setenv("NCCL_RAS_ENABLE", "0", 0);
  setenv("NCCL_MAX_CTAS", "2", 0);
  setenv("NCCL_ALGO", "Ring", 0);
  setenv("NCCL_PROTO", "Simple", 0);
}

using Pipe = std::array<int, 2>;

/// Rank 0 makes the id and writes it to everybody's pipe.
tessera::NcclId exchange_id(int rank, const std::vector<Pipe>& pipes) {
  tessera::NcclId id;
  const auto bytes = static_cast<ssize_t>(id.bytes.size());
  if (rank > 0) {
    const int end = pipes[static_cast<std::size_t>(rank)][0];
    tessera::require(read(end, id.bytes.data(), id.bytes.size()) == bytes, tessera::ErrorCode::kIo,
                     "rank ", rank, " got no id from rank 0");
    return id;
  }
  id = tessera::make_nccl_id();
  for (std::size_t r = 1; r < pipes.size(); ++r) {
    tessera::require(write(pipes[r][1], id.bytes.data(), id.bytes.size()) == bytes,
                     tessera::ErrorCode::kIo, "rank 0 cannot write to rank ", r);
  }
  return id;
}

void run_rank(int rank, int size, const std::vector<Pipe>& pipes) {
  set_environment(rank);
  const std::array<tessera::NcclId, 2> ids{exchange_id(rank, pipes), exchange_id(rank, pipes)};
  const auto device = tessera::make_cuda_device({.segments = tessera::nccl_segments(0)});
  for (const bool deterministic : {false, true}) {
    const auto group = tessera::make_nccl_group(
        ids[deterministic ? 1 : 0], rank, size,
        {.timeout = std::chrono::seconds(60), .deterministic = deterministic});
    Rank member(*group, *device);
    member.check_all<float>();
    member.check_all<bfloat16>();
    const auto half = group->split(rank % 2, rank);
    Rank(*half, *device).check_all<float>();
  }
}

int run_child(int rank, int size, const std::vector<Pipe>& pipes) {
  try {
    run_rank(rank, size, pipes);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "nccl_check: " << error.what() << "\n";
    return 1;
  }
}

/// Throws Error if any rank failed.
void check_ranks(int size) {
  std::vector<Pipe> pipes(static_cast<std::size_t>(size));
  for (Pipe& ends : pipes) {
    tessera::require(pipe(ends.data()) == 0, tessera::ErrorCode::kIo, "cannot make a pipe");
  }
  std::vector<pid_t> children;
  for (int rank = 0; rank < size; ++rank) {
    const pid_t child = fork();
    if (child == 0) _exit(run_child(rank, size, pipes));
    children.push_back(child);
  }
  int failed = 0;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) ++failed;
  }
  std::cout << (failed == 0 ? "PASS" : "FAIL") << " nccl_check " << size
            << " ranks on one GPU: fp32 and bf16, every collective, eager and replayed"
            << std::endl;
  tessera::require(failed == 0, tessera::ErrorCode::kInternal, failed, " of ", size,
                   " ranks failed; what they said is above");
}

}  // namespace

int main(int argc, char** argv) {
  int size = 2;
  tessera::bench::Program program(
      "nccl_check", "Every collective of the NCCL group, by processes that share one GPU.");
  program.option("ranks", &size, "number of processes", {.at_most = 8});
  return program.run(argc, argv, [&] { check_ranks(size); });
}
