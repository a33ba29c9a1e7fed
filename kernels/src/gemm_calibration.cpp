#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>
#include <set>
#include <utility>

#include "gemm_arguments.h"
#include "gemm_candidates.h"
#include "tessera/core/error.h"
#include "tessera/core/memory.h"
#include "tessera/kernels/cuda_options.h"
#include "tessera/kernels/gemm_table.h"

// Times each way to run a GEMM as a training step would run it: by the kernel table, under a table
// of GEMMs that names this way, captured as a graph and replayed, on a GPU that is as hot as in a
// step. A cold one runs at a higher clock until it reaches its limit of power, and ranks ways that
// draw little power too low.

namespace tessera {
namespace gemm_calibration {  // for Impl, which has a name outside of this file

constexpr int kMostAlgorithms = 8;
/// Turns of each way. Odd, so that one of them is the median.
constexpr std::size_t kTurns = 11;
/// How long the ways take turns, uncounted, before the first problem and before each further one.
constexpr double kFirstHeatSeconds = 3.0, kHeatSeconds = 0.25;
/// A replay lasts about this long: far longer than its launch.
constexpr double kReplaySeconds = 2e-3;
constexpr std::int64_t kMostCalls = 32;
/// Operands take turns that are so large together: more than twice the L2 cache of an H200.
constexpr std::int64_t kOperandBytes = std::int64_t{128} << 20;
constexpr std::int64_t kMostOperands = 8;

inline std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

inline std::array<TensorView*, 7> views_of(GemmArgs& args) {
  return {&args.a,
          &args.b,
          &args.c,
          &args.bias,
          &args.residual,
          &args.gelu_input,
          &args.gelu_backward_input};
}

/// From the first element of a view to behind its last.
inline std::int64_t span_of(const TensorView& view) {
  std::int64_t last = 0;
  for (int i = 0; i < view.shape.rank(); ++i) {
    last += (view.shape[i] - 1) * view.strides[at(i)];
  }
  return last + 1;
}

/// Copies of a call's operands with the alignment of the originals, full of random numbers:
/// products of constants draw less power, which lets a GPU run faster.
class Operands {
 public:
  Operands(const GemmArgs& like, Memory& memory, const KernelTable& kernels, Stream& stream)
      : args_(like), memory_(memory), kernels_(kernels), stream_(stream) {
    std::uint64_t number = 0;
    for (TensorView* view : views_of(args_)) move(*view, ++number);
  }
  const GemmArgs& args() const { return args_; }
  std::int64_t bytes() const { return bytes_; }

 private:
  void move(TensorView& view, std::uint64_t number) {
    if (!view) return;
    const auto address = reinterpret_cast<std::uintptr_t>(view.data);
    const auto alignment = std::int64_t{1} << std::min(std::countr_zero(address), 4);
    const std::int64_t numel = span_of(view);
    const auto element = static_cast<std::int64_t>(size_of(view.dtype));
    const Tensor buffer = Tensor::empty(memory_, Shape{alignment + numel * element}, DType::kUInt8,
                                        MemoryCategory::kWorkspace, "operand of a GEMM");
    bytes_ += buffer.bytes();
    // The buffer itself is better aligned.
    view.data = buffer.view().data + (alignment < kGemmAlignment ? alignment : 0);
    fill(TensorView(view.data, view.dtype, Shape{numel}), number);
    buffers_.push_back(buffer);
  }

  void fill(const TensorView& values, std::uint64_t number) {
    const RandomKey key{.seed = number, .stream = 0};
    if (values.dtype == DType::kFloat32) {
      stream_.submit({.name = "fill"},
                     [&] { kernels_.fill_normal({.dst = values, .key = key}, stream_); });
    } else {
      const Tensor wide = Tensor::empty(memory_, values.shape, DType::kFloat32,
                                        MemoryCategory::kWorkspace, "operand of a GEMM in fp32");
      stream_.submit({.name = "fill"}, [&] {
        kernels_.fill_normal({.dst = wide, .key = key}, stream_);
        if (values.dtype == DType::kUInt8) return encode(wide, values, number == 1);
        kernels_.cast({.src = wide, .dst = values}, stream_);
      });
    }
    stream_.synchronize();
  }

  /// Codes of A or B, and their amax.
  void encode(const TensorView& from, const TensorView& codes, bool is_a) {
    Fp8Operand& operand = is_a ? args_.a_fp8 : args_.b_fp8;
    const Tensor amax = Tensor::empty(memory_, Shape{1}, DType::kInt32, MemoryCategory::kWorkspace,
                                      "largest magnitude");
    operand.amax = amax;
    buffers_.push_back(amax);
    kernels_.amax({.x = from, .amax = operand.amax}, stream_);
    kernels_.fp8_encode({.x = from,
                         .amax = operand.amax,
                         .codes = codes,
                         .format = operand.format,
                         .scales = operand.scales},
                        stream_);
  }

  GemmArgs args_;
  Memory& memory_;
  const KernelTable& kernels_;
  Stream& stream_;
  std::vector<Tensor> buffers_;
  std::int64_t bytes_ = 0;
};

/// One way to run a problem: a choice, on a stream of its own whose table has it.
class Way {
 public:
  Way(CudaDevice& device, const TensorView& scratch, const GemmTable& known,
      const GemmProblem& problem, const GemmChoice& choice)
      : choice_(choice),
        stream_(device.create_stream(
            {.name = "gemm", .on_span = [this](const Work&, double begin, double end) {
               seconds_ = end - begin;
             }})) {
    auto table = std::make_shared<GemmTable>(known);
    table->choices.insert_or_assign(problem, choice);
    set_cuda_kernel_options(cuda(), {.gemm_table = std::move(table)});
    cuda().lend_scratch(scratch.data, static_cast<std::size_t>(scratch.bytes()));
  }

  const GemmChoice& choice() const { return choice_; }

  /// Makes the graph of as many calls as last kReplaySeconds.
  void prepare(const std::vector<std::unique_ptr<Operands>>& operands) {
    for (int i = 0; i < 2; ++i) {  // the first call loads the kernel
      stream_->submit({.name = "gemm"}, [&] { call(*operands.front()); });
      stream_->synchronize();
    }
    const double wanted = std::ceil(kReplaySeconds / std::max(seconds_, 1e-9));
    calls_ =
        std::clamp<std::int64_t>(static_cast<std::int64_t>(std::min(wanted, 1e6)), 1, kMostCalls);
    cuda().begin_capture();
    for (std::int64_t i = 0; i < calls_; ++i) call(*operands[at(i) % operands.size()]);
    graph_ = cuda().end_capture(nullptr);
    replay();
  }
  /// Gives the seconds it took.
  double replay() {
    stream_->submit({.name = "gemms"}, [&] { cuda().launch(*graph_); });
    stream_->synchronize();
    return seconds_;
  }
  void take_turn() { turns_.push_back(replay() / static_cast<double>(calls_)); }
  double median() const {
    std::vector<double> sorted = turns_;
    std::ranges::sort(sorted);
    return sorted[sorted.size() / 2];
  }

 private:
  CudaStream& cuda() const { return dynamic_cast<CudaStream&>(*stream_); }
  void call(const Operands& operands) { cuda().kernels().gemm(operands.args(), cuda()); }

  const GemmChoice choice_;
  double seconds_ = 0.0;  ///< of the last task
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<CudaGraph> graph_;
  std::int64_t calls_ = 1;
  std::vector<double> turns_;
};

}  // namespace gemm_calibration

using namespace gemm_calibration;  // NOLINT: this file's

GemmMachine gemm_machine(CudaDevice& device) {
  GemmMachine machine;
  const auto fill = reinterpret_cast<FillGemmMachine*>(cuda_symbol(kFillGemmMachine));
  fill(device.ordinal(), machine);
  return machine;
}

class GemmCalibration::Impl {
 public:
  explicit Impl(CudaDevice& device)
      : device_(device),
        memory_(device),
        stream_(device.create_stream({.name = "calibration"})),
        scratch_(Tensor::empty(memory_, Shape{kCudaScratchBytes}, DType::kUInt8,
                               MemoryCategory::kWorkspace, "scratch of GEMMs")),
        find_(reinterpret_cast<FindGemmCandidates*>(cuda_symbol(kFindGemmCandidates))) {}

  GemmCandidates candidates(const GemmArgs& args) {
    GemmCandidates found;
    find_(args, dynamic_cast<CudaStream&>(*stream_), kMostAlgorithms, found);
    return found;
  }

  GemmProblem time(const GemmArgs& args, GemmTable& table) {
    const GemmCandidates found = candidates(args);
    const std::optional<GemmArgs> left = without_epilogue(args);
    std::optional<GemmProblem> alone;
    if (left) alone = time(*left, table);
    if (found.algorithms.empty() || table.choices.contains(found.problem)) return found.problem;
    std::vector<std::unique_ptr<Way>> ways;
    const auto add = [&](const GemmChoice& choice) {
      ways.push_back(std::make_unique<Way>(device_, scratch_, table, found.problem, choice));
    };
    for (const GemmAlgorithm& algorithm : found.algorithms) add({.algorithm = algorithm});
    // Without an algorithm of cuBLASLt it would run on a plain kernel, which is always slower.
    if (alone && table.choices.contains(*alone)) add({.fused = false});
    take_turns(args, ways);
    table.choices.emplace(found.problem, fastest(ways));
    return found.problem;
  }

 private:
  void take_turns(const GemmArgs& args, const std::vector<std::unique_ptr<Way>>& ways) {
    std::vector<std::unique_ptr<Operands>> operands;
    std::int64_t bytes = 0;
    do {
      operands.push_back(std::make_unique<Operands>(args, memory_, device_.kernels(), *stream_));
      bytes += operands.back()->bytes();
    } while (bytes < kOperandBytes && std::ssize(operands) < kMostOperands);
    for (const auto& way : ways) way->prepare(operands);
    double heated = 0.0;
    while (heated < heat_seconds_) {
      for (const auto& way : ways) heated += way->replay();
    }
    heat_seconds_ = kHeatSeconds;
    for (std::size_t turn = 0; turn < kTurns; ++turn) {
      for (const auto& way : ways) way->take_turn();
    }
  }

  static GemmChoice fastest(const std::vector<std::unique_ptr<Way>>& ways) {
    std::vector<GemmChoice> timed;
    for (const auto& way : ways) {
      timed.push_back(way->choice());
      timed.back().seconds = way->median();
    }
    const double heuristic = timed.front().seconds;
    std::ranges::stable_sort(timed, {}, &GemmChoice::seconds);
    GemmChoice choice = timed.front();
    choice.heuristic_seconds = heuristic;
    if (timed.size() > 1) choice.runner_up_seconds = timed[1].seconds;
    return choice;
  }

  CudaDevice& device_;
  Memory memory_;
  std::unique_ptr<Stream> stream_;
  Tensor scratch_;
  FindGemmCandidates* find_;
  double heat_seconds_ = kFirstHeatSeconds;
};

GemmCalibration::GemmCalibration(CudaDevice& device) : impl_(std::make_unique<Impl>(device)) {}
GemmCalibration::~GemmCalibration() = default;

std::vector<GemmArgs> GemmCalibration::missing(const std::vector<GemmArgs>& gemms,
                                               const GemmTable& table) {
  std::set<GemmProblem> seen;
  std::vector<GemmArgs> result;
  for (const GemmArgs& args : gemms) {
    std::optional<GemmArgs> call = args;
    bool known = true;  // and what it may leave
    for (; call && known; call = without_epilogue(*call)) {
      const GemmCandidates found = impl_->candidates(*call);
      known = found.algorithms.empty() || table.choices.contains(found.problem) ||
              seen.contains(found.problem);
    }
    if (known) continue;
    result.push_back(args);
    for (call = args; call; call = without_epilogue(*call)) {
      seen.insert(impl_->candidates(*call).problem);
    }
  }
  return result;
}

GemmProblem GemmCalibration::time(const GemmArgs& gemm, GemmTable& table) {
  return impl_->time(gemm, table);
}

}  // namespace tessera
