#pragma once

#include <map>
#include <string>
#include <vector>

namespace tessera {

/// A number of a profile, and where it is from.
struct Quantity {
  double value = 0.0;
  std::string source;
};

/// The rate at which GEMMs of so many FLOPs run; in between it is interpolated over the logarithm
/// of the FLOPs, and beyond the first and the last it stays.
struct GemmRate {
  double flops = 0.0;
  double flops_per_second = 0.0;
  std::string source;
};

/// How ranks exchange data: a collective of n ranks takes
/// latency + (n - 1) * hop + sent bytes / bandwidth, and an all-reduce twice the hops, or those of
/// a tree of nodes.
struct LinkProfile {
  Quantity latency;    ///< seconds
  Quantity hop;        ///< seconds, for each rank after the first
  Quantity bandwidth;  ///< bytes that a rank sends per second (nccl-tests' bus bandwidth)
};

/// What a machine achieves: from which the lab computes how long actions take. As JSON, each number
/// is {"value": …, "source": "…"}; runtime/lab/README.md shows a file.
struct HardwareProfile {
  std::string name;
  std::string device;  ///< "cuda" or "cpu"
  /// FLOP/s by dtype, dense, by the data sheet: 100 % of the MFU.
  std::map<std::string, Quantity> peak;
  std::map<std::string, std::vector<GemmRate>> gemm;  ///< by dtype of the operands
  Quantity attention_forward, attention_backward;     ///< FLOP/s of the causal half
  Quantity memory_bandwidth;                          ///< bytes/s of kernels bound by memory
  Quantity launch;        ///< seconds between two kernels that follow each other
  Quantity memory_bytes;  ///< of a device
  Quantity copy_out;      ///< bytes/s from the device to the host
  LinkProfile node;       ///< ranks of one node
  LinkProfile network;    ///< ranks of several: bandwidth of one rank's share of the network
  /// By how much work of the compute lane is slower while a lane of collectives is busy; 1: not at
  /// all.
  Quantity under_gather, under_reduce;

  /// FLOP/s of a GEMM. Throws Error{kConfig} if there is no rate for the dtype.
  double gemm_rate(const std::string& dtype, double flops) const;
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
