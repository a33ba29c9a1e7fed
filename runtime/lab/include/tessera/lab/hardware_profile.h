#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/lab/measurement_noise.h"

namespace tessera {

/// A number of a profile, and where it is from.
struct Quantity {
  double value = 0.0;
  std::string source;
};

/// How fast a kernel runs at some sizes; KernelCall in kernel_calls.h says what a size is. Between
/// them the logarithm of the rate is fitted to those near by; beyond them it stays.
struct KernelRates {
  struct Point {
    std::vector<double> size;
    double per_second = 0.0;  ///< FLOPs; bytes of kernels that have none
  };
  std::string
      kernel;         ///< "gemm nt", "gelu_forward"; "gemm" stands for all that are not given apart
  std::string dtype;  ///< of its operands: "fp32", "bf16", "fp16"
  int threads = 1;    ///< of the rank; on a CPU
  std::string source;
  std::vector<Point> points;

  double at(const std::vector<double>& size) const;
};

/// How long a collective takes, measured.
struct CollectiveTimes {
  struct Point {
    double bytes = 0.0;  ///< that a rank sends
    double seconds = 0.0;
  };
  std::string collective;  ///< "all_gather"
  int ranks = 2;
  std::string source;
  std::vector<Point> points;  ///< bytes ascend

  /// Between the points the logarithm is linear; beyond the last the bandwidth stays.
  double at(double bytes) const;
};

/// How ranks exchange data: a collective of n ranks takes what was measured for as many ranks, or
/// nearly as many; if nothing was, latency + (n - 1) * hop + sent bytes / bandwidth, and an
/// all-reduce twice the hops, or those of a tree of nodes.
struct LinkProfile {
  Quantity latency;    ///< seconds
  Quantity hop;        ///< seconds, for each rank after the first
  Quantity bandwidth;  ///< bytes that a rank sends per second (nccl-tests' bus bandwidth)
  std::vector<CollectiveTimes> measured{};

  /// The times of the number of ranks that is nearest; null: none were measured.
  const CollectiveTimes* find(std::string_view collective, int ranks) const;
};

/// The limit of power, at which a GPU lowers its clock. A step needs at least (joules of its work
/// beside idling) / (limit - idle) seconds.
struct PowerProfile {
  Quantity limit;     ///< watts over many steps
  Quantity idle;      ///< watts of a GPU that has a context and computes nothing
  Quantity per_flop;  ///< joules of a FLOP of GEMMs and attention, at the limit, beside idling
  Quantity per_byte;  ///< joules of a byte that a kernel must read or write, in the same way
};

/// How long the kernels of a model took inside steps of ranks that ran alone, each with `threads`;
/// time_steps() takes them.
struct StepTimes {
  struct Kernel {
    std::string operation{};     ///< of the action that it belongs to: "forward"
    std::string kernel{};        ///< step_name() of its calls
    std::string dtype{};         ///< of its operands
    std::vector<double> size{};  ///< rates_size() of its calls
    double seconds = 0.0;        ///< of a call: its mean over the steps that count
    double spread = 0.0;         ///< of these means: the distance between quartiles over the median
    double alone = 0.0;          ///< what KernelRates say of a call
    double calls = 0.0;          ///< in a step
  };
  std::string model{};  ///< in words, with its batch
  int threads = 1;      ///< of a rank
  std::string source{};
  std::vector<Kernel> kernels{};
  double beside = 0.0;   ///< seconds that a pass takes for each of its kernels, beside them
  double gap = 0.0;      ///< seconds between two actions of a lane
  double between = 0.0;  ///< seconds from the last action of a step to the first of the next
  double step = 0.0;     ///< seconds of a whole step, with that
};

/// On what a predicted time of a kernel rests.
enum class Evidence : std::uint8_t {
  kMeasured,      ///< it was timed at this size inside steps
  kCorrected,     ///< its rate when timed alone, by the ratio of the nearest one inside steps
  kInterpolated,  ///< its rate when timed alone, or by a data sheet
};
inline constexpr int kEvidences = 3;
std::string_view to_string(Evidence evidence);

/// How far off predictions of measured steps were.
struct Residual {
  Evidence evidence = Evidence::kInterpolated;  ///< they rested mostly on this, or on better
  bool meets = false;                           ///< several ranks on one machine
  double half_width = 0.0;  ///< nine of ten are within it, relative to `ratio` times the prediction
  double ratio = 1.0;       ///< of the measured step to the predicted one, the median
  std::int64_t cells = 0;   ///< configurations
  std::string source{};
};

/// The rates of a machine, from which the lab computes how long actions take. As JSON, each number
/// is {"value": …, "source": "…"}, and each list of rates has a source; runtime/lab/README.md shows
/// a file.
struct HardwareProfile {
  std::string name;
  std::string device;  ///< "cuda" or "cpu"
  /// FLOP/s by dtype, dense, by the data sheet or of the fastest GEMM: 100 % of the MFU.
  std::map<std::string, Quantity> peak;
  std::vector<KernelRates> kernels;
  Quantity memory_bandwidth;  ///< bytes/s of kernels bound by memory that `kernels` does not have
  Quantity launch;            ///< seconds of each of those beside its bytes
  /// Seconds from the end of an action to the begin of one on another lane that waits for it.
  Quantity handover;
  Quantity memory_bytes;  ///< of a device
  Quantity copy_out;      ///< bytes/s from the device to the host, and the same back
  /// Bytes/s that an optimizer step on the host reads and writes, of all ranks of a node together.
  /// Unused where ranks are on the CPU, whose kernel has rates.
  Quantity host_bandwidth;
  /// Bytes/s read from or written to the disks of a node, of all its ranks together; each way has
  /// them to itself. A file may leave it out.
  Quantity disk_bandwidth{5e9, "an NVMe drive of PCIe 4 that writes: assumed"};
  /// Cores that the ranks of a node share, each with `threads` of KernelRates and a thread for its
  /// collectives; 0: a rank has a device to itself.
  Quantity cores;
  LinkProfile process;  ///< ranks that are threads of one process
  LinkProfile node;     ///< ranks of one node
  LinkProfile network;  ///< ranks of several: bandwidth of one rank's share of the network
  /// By how much work of the compute lane is slower while a lane of collectives is busy; 1: not at
  /// all. Of a CPU's ranks beyond the sharing of cores.
  Quantity under_gather, under_reduce;
  /// Kernels that are bound by memory have factors of their own, unless these are missing.
  std::optional<Quantity> memory_under_gather{}, memory_under_reduce{};
  /// The noise of a profile that was measured in one go; others have none.
  std::optional<MeasurementNoise> noise{};
  std::optional<PowerProfile> power{};
  std::vector<StepTimes> steps{};
  std::vector<Residual> residuals{};

  /// The rates of a kernel with as many threads, or nearly as many; null: it has none.
  const KernelRates* find(std::string_view kernel, std::string_view dtype, int threads) const;
};

/// Throws Error{kConfig} that names the file, the key and what belongs there.
HardwareProfile parse_profile(const std::string& text, const std::string& path);
/// The exact inverse.
std::string to_text(const HardwareProfile& profile);

/// The profiles that come with Tessera: "h100-sxm", "h200-sxm", "a100-sxm".
std::vector<std::string> builtin_profiles();
/// One of them by name, or a file. Throws Error{kNotFound, kConfig}.
HardwareProfile find_profile(const std::string& name_or_path);

}  // namespace tessera
