#include "builtin_profiles.h"

#include <algorithm>

// Numbers of data sheets and of others' publications, and what follows from them. None was measured
// by Tessera: `tessera simulate --profile FILE` takes a profile that was.
namespace tessera {
namespace {

constexpr const char* kTiles =
    "waves of tiles of 128x256 or 128x128 on 132 multiprocessors at the best published rate "
    "(bench/gpu/predict.py), for a cube";
constexpr const char* kBestGemm =
    "best published product on an H100 or H200, 2048x2048x13312 (stas00/ml-engineering)";
constexpr const char* kBandwidthShare =
    "data sheet, times 0.85: assumed for kernels bound by memory";
constexpr const char* kNcclRing =
    "NCCL's own model of ring and Simple protocol (src/graph/tuning.cc)";

/// What an H100 and an H200 share; `memory` in bytes and bytes/s.
HardwareProfile hopper(const char* name, double memory_bytes, double memory_rate) {
  HardwareProfile p;
  p.name = name;
  p.device = "cuda";
  p.peak = {{"bf16", {989e12, "data sheet, dense"}}, {"fp32", {67e12, "data sheet"}}};
  p.gemm["bf16"] = {{1e8, 37e12, kTiles},   {1e9, 171e12, kTiles},      {3e9, 404e12, kTiles},
                    {1e10, 511e12, kTiles}, {3e10, 544e12, kTiles},     {1.1e11, 666e12, kTiles},
                    {1e12, 759e12, kTiles}, {1e13, 794.5e12, kBestGemm}};
  p.gemm["fp32"] = {{1e9, 50e12, "data sheet, times 0.75: assumed; no tensor cores"}};
  p.attention_forward = {330e12,
                         "causal, heads of 64, length 1024: about cuDNN's in the paper of "
                         "FlashAttention-3"};
  p.attention_backward = {250e12, "the same"};
  p.memory_bandwidth = {0.85 * memory_rate, kBandwidthShare};
  p.launch = {1e-6, "assumed: between kernels of a CUDA graph"};
  p.memory_bytes = {memory_bytes, "data sheet"};
  p.copy_out = {55.1e9, "PCIe 5 x16, device to host (stas00/ml-engineering)"};
  p.node = {.latency = {8.4e-6, kNcclRing},
            .hop = {3.4e-6, kNcclRing},
            .bandwidth = {370.8e9, "NCCL: 20.6 GB/s for each of 18 NVLinks (src/graph/topo.h)"}};
  p.network = {.latency = {8.4e-6, kNcclRing},
               .hop = {14e-6, kNcclRing},
               .bandwidth = {48.5e9, "one NDR adapter for each GPU, as SimAI measured it"}};
  p.under_gather = {1.15, "Calculon's share of multiprocessors for NCCL (systems/h100_80g_nvl8)"};
  p.under_reduce = p.under_gather;
  return p;
}

HardwareProfile ampere() {
  HardwareProfile p = hopper("a100-sxm", 80e9, 2.039e12);
  const char* const scaled = "an H100's, times the ratio of the data sheets' peaks: not measured";
  constexpr double kScale = 312.0 / 989.0;
  p.peak = {{"bf16", {312e12, "data sheet, dense"}}, {"fp32", {19.5e12, "data sheet"}}};
  for (GemmRate& rate : p.gemm["bf16"]) {
    rate.flops *= kScale;
    rate.flops_per_second *= kScale;
    rate.source = scaled;
  }
  p.gemm["fp32"] = {{1e9, 14.6e12, "data sheet, times 0.75: assumed; no tensor cores"}};
  p.attention_forward = {p.attention_forward.value * kScale, scaled};
  p.attention_backward = {p.attention_backward.value * kScale, scaled};
  p.copy_out = {25e9, "PCIe 4 x16: half of PCIe 5's published 55 GB/s, less overhead"};
  p.node.bandwidth = {240e9, "NCCL: 20.0 GB/s for each of 12 NVLinks (src/graph/topo.h)"};
  p.network.bandwidth = {24.2e9, "one HDR adapter for each GPU: half of SimAI's NDR"};
  return p;
}

}  // namespace

std::vector<HardwareProfile> all_builtin_profiles() {
  return {hopper("h100-sxm", 80e9, 3.35e12), hopper("h200-sxm", 141e9, 4.8e12), ampere()};
}

std::vector<std::string> builtin_profiles() {
  std::vector<std::string> names;
  for (const HardwareProfile& profile : all_builtin_profiles()) names.push_back(profile.name);
  return names;
}

}  // namespace tessera
