#include "builtin_profiles.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>

#include "tessera/core/error.h"

// Numbers of data sheets and of others' publications, and what follows from them; of an H100 and an
// H200 also what Tessera's kernels were measured to do, each alone, and the energy of steps.
namespace tessera {
namespace {

constexpr const char* kTiles =
    "cubes: waves of tiles of 128x256 or 128x128 on 132 multiprocessors at the best published rate "
    "(bench/gpu/predict.py); the last: the best published product on an H100 or H200 "
    "(stas00/ml-engineering)";
constexpr const char* kNoTensorCores = "assumed: half of a GEMM's without tensor cores";
constexpr const char* kBandwidthShare =
    "data sheet, times 0.85: assumed for kernels bound by memory";
constexpr const char* kNcclRing =
    "NCCL's own model of ring and Simple protocol (src/graph/tuning.cc)";

/// The profile that an H100 and an H200 share; `memory` in bytes and bytes/s.
HardwareProfile hopper(const char* name, double memory_bytes, double memory_rate) {
  HardwareProfile p;
  p.name = name;
  p.device = "cuda";
  p.peak = {{"bf16", {989e12, "data sheet, dense"}}, {"fp32", {67e12, "data sheet"}}};
  const auto cube = [](double flops, double rate) {
    const double side = std::cbrt(flops / 2.0);
    return KernelRates::Point{{side, side, side}, rate};
  };
  const char* const attention =
      "causal, heads of 64, length 1024: about cuDNN's in the paper of FlashAttention-3";
  p.kernels = {
      {"gemm",
       "bf16",
       1,
       kTiles,
       {cube(1e8, 37e12), cube(1e9, 171e12), cube(3e9, 404e12), cube(1e10, 511e12),
        cube(3e10, 544e12), cube(1.1e11, 666e12), cube(1e12, 759e12), cube(1e13, 794.5e12)}},
      {"gemm",
       "fp32",
       1,
       "data sheet, times 0.75: assumed; no tensor cores",
       {{{1024.0, 1024.0, 1024.0}, 50e12}}},
      {"attention_forward", "bf16", 1, attention, {{{128.0, 1024.0, 64.0}, 330e12}}},
      {"attention_backward", "bf16", 1, attention, {{{128.0, 1024.0, 64.0}, 250e12}}},
      {"attention_forward", "fp32", 1, kNoTensorCores, {{{128.0, 1024.0, 64.0}, 25e12}}},
      {"attention_backward", "fp32", 1, kNoTensorCores, {{{128.0, 1024.0, 64.0}, 20e12}}}};
  p.memory_bandwidth = {0.85 * memory_rate, kBandwidthShare};
  p.launch = {1e-6, "assumed: between kernels of a CUDA graph"};
  p.handover = {0.0, "not modelled: streams wait for events on the device"};
  p.cores = {0.0, "a rank has a GPU to itself"};
  p.memory_bytes = {memory_bytes, "data sheet"};
  p.copy_out = {55.1e9, "PCIe 5 x16, device to host (stas00/ml-engineering)"};
  p.host_bandwidth = {430e9, "2 sockets with 8 channels of DDR5-4800, times 0.7: assumed"};
  p.node = {.latency = {8.4e-6, kNcclRing},
            .hop = {3.4e-6, kNcclRing},
            .bandwidth = {370.8e9, "NCCL: 20.6 GB/s for each of 18 NVLinks (src/graph/topo.h)"}};
  p.process = p.node;  // NCCL moves the data either way
  p.network = {.latency = {8.4e-6, kNcclRing},
               .hop = {14e-6, kNcclRing},
               .bandwidth = {48.5e9, "one NDR adapter for each GPU, as SimAI measured it"}};
  p.under_gather = {1.15, "Calculon's share of multiprocessors for NCCL (systems/h100_80g_nvl8)"};
  p.under_reduce = p.under_gather;
  return p;
}

/// The rates that `profile` has of a kernel in bf16.
KernelRates& rates_of(HardwareProfile& profile, std::string_view kernel) {
  return *std::ranges::find_if(profile.kernels, [&](const KernelRates& known) {
    return known.kernel == kernel && known.dtype == "bf16";
  });
}

/// Sets the rates of kernels that Tessera measured on one GPU, each alone: GEMMs of gpt2-1558m with
/// a micro-batch of 16, as cuBLASLt's heuristic runs them, epilogues included (smaller ones stay as
/// they are), attention in FLOP/s, kernels bound by memory in bytes/s.
void set_measured(HardwareProfile& p, const std::string& where,
                  const std::vector<KernelRates::Point>& products, double attention_forward,
                  double attention_backward, double memory_bandwidth) {
  KernelRates& gemm = rates_of(p, "gemm");
  gemm.source = concat(where, "; cubes: waves of tiles (bench/gpu/predict.py)");
  gemm.points.resize(5);  // to 3e10 FLOPs
  gemm.points.insert(gemm.points.end(), products.begin(), products.end());
  const std::string attention = concat(where, ": cuDNN, causal, in a fixed order");
  for (const auto& [kernel, rate] : {std::pair{"attention_forward", attention_forward},
                                     std::pair{"attention_backward", attention_backward}}) {
    rates_of(p, kernel) = {kernel, "bf16", 1, attention, {{{400.0, 1024.0, 64.0}, rate}}};
  }
  p.memory_bandwidth = {memory_bandwidth, concat(where, ": AdamW, cross-entropy, LayerNorm")};
}

HardwareProfile h100() {
  HardwareProfile p = hopper("h100-sxm", 80e9, 3.35e12);
  const std::string measured = "measured on an H100 (bench/results/h100)";
  set_measured(p, measured,
               {{{1600.0, 1600.0, 16384.0}, 692e12},
                {{1600.0, 6400.0, 16384.0}, 657e12},
                {{4096.0, 1600.0, 50304.0}, 633e12},
                {{4096.0, 50304.0, 1600.0}, 626e12},
                {{4800.0, 1600.0, 16384.0}, 609e12},
                {{6400.0, 1600.0, 16384.0}, 661e12},
                {{16384.0, 1600.0, 1600.0}, 564e12},
                {{16384.0, 1600.0, 4800.0}, 651e12},
                {{16384.0, 1600.0, 6400.0}, 616e12},
                {{16384.0, 4800.0, 1600.0}, 645e12},
                {{16384.0, 6400.0, 1600.0}, 555e12},
                {{50304.0, 1600.0, 4096.0}, 632e12}},
               321e12, 199e12, 2.85e12);
  const std::string fitted = concat(
      measured, ": fitted to steps of gpt2-1558m, micro-batches 16 and 8, and gpt2-124m, 16");
  p.power = {
      .limit = {691.0, concat(measured, ": energy over time of hot steps; the limit is 700")},
      .idle = {128.0, measured},
      .per_flop = {0.809e-12, fitted},
      .per_byte = {0.160e-9, fitted}};
  return p;
}

HardwareProfile h200() {
  HardwareProfile p = hopper("h200-sxm", 141e9, 4.8e12);
  const std::string measured = "measured on an H200 (bench/results/h200)";
  set_measured(p, measured,
               {{{1600.0, 1600.0, 16384.0}, 690e12},
                {{1600.0, 6400.0, 16384.0}, 660e12},
                {{4096.0, 1600.0, 50304.0}, 657e12},
                {{4096.0, 50304.0, 1600.0}, 633e12},
                {{4800.0, 1600.0, 16384.0}, 646e12},
                {{6400.0, 1600.0, 16384.0}, 636e12},
                {{16384.0, 1600.0, 1600.0}, 576e12},
                {{16384.0, 1600.0, 4800.0}, 653e12},
                {{16384.0, 1600.0, 6400.0}, 629e12},
                {{16384.0, 4800.0, 1600.0}, 630e12},
                {{16384.0, 6400.0, 1600.0}, 599e12},
                {{50304.0, 1600.0, 4096.0}, 635e12}},
               318e12, 226e12, 3.9e12);
  const std::string fitted =
      concat(measured, ": fitted to steps of gpt2-1558m, micro-batches 8, 16 and 32");
  p.power = {.limit = {691.0, concat(measured, ": power in hot steps; the limit is 700")},
             .idle = {132.0, measured},
             .per_flop = {0.885e-12, fitted},
             .per_byte = {0.117e-9, fitted}};
  return p;
}

HardwareProfile ampere() {
  HardwareProfile p = hopper("a100-sxm", 80e9, 2.039e12);
  const char* const scaled = "an H100's, times the ratio of the data sheets' peaks: not measured";
  p.peak = {{"bf16", {312e12, "data sheet, dense"}}, {"fp32", {19.5e12, "data sheet"}}};
  for (KernelRates& rates : p.kernels) {
    const double scale = rates.dtype == "bf16" ? 312.0 / 989.0 : 19.5 / 67.0;
    rates.source = scaled;
    for (KernelRates::Point& point : rates.points) {
      if (rates.kernel == "gemm" && rates.dtype == "bf16") {
        for (double& side : point.size) side *= std::cbrt(scale);
      }
      point.per_second *= scale;
    }
  }
  p.copy_out = {25e9, "PCIe 4 x16: half of PCIe 5's published 55 GB/s, less overhead"};
  p.host_bandwidth = {287e9, "2 sockets with 8 channels of DDR4-3200, times 0.7: assumed"};
  p.node.bandwidth = {240e9, "NCCL: 20.0 GB/s for each of 12 NVLinks (src/graph/topo.h)"};
  p.process = p.node;
  p.network.bandwidth = {24.2e9, "one HDR adapter for each GPU: half of SimAI's NDR"};
  return p;
}

/// fp16 as fast as bf16: data sheets have one number for both.
HardwareProfile with_fp16(HardwareProfile p) {
  p.peak["fp16"] = p.peak.at("bf16");
  const std::vector<KernelRates> known = p.kernels;
  for (KernelRates rates : known) {
    if (rates.dtype != "bf16") continue;
    rates.dtype = "fp16";
    rates.source += "; as in bf16";
    p.kernels.push_back(std::move(rates));
  }
  return p;
}

}  // namespace

std::vector<HardwareProfile> all_builtin_profiles() {
  return {with_fp16(h100()), with_fp16(h200()), with_fp16(ampere())};
}

std::vector<std::string> builtin_profiles() {
  std::vector<std::string> names;
  for (const HardwareProfile& profile : all_builtin_profiles()) names.push_back(profile.name);
  return names;
}

}  // namespace tessera
