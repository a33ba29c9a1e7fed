#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/autograd/layer.h"
#include "tessera/trainer/trainer_options.h"

namespace tessera {

/// How the schedule of these options adds up gradients; see gradient_sums.h. Equal numbers, equal
/// bits: proved from the plans, before anything runs.
std::uint64_t hash_of_sums(const Model& model, const TrainerOptions& resolved);

/// Every preset, by whether its plan adds up gradients as that of `resolved` does, all else equal.
struct BitsByStrategy {
  std::vector<std::string> same;
  std::vector<std::string> others;
};
BitsByStrategy compare_bits(const Model& model, const TrainerOptions& resolved);

}  // namespace tessera
