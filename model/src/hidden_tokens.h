#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tessera/kernels/kernel_table.h"
#include "tessera/model/token_masking.h"

namespace tessera::data {

/// The random numbers of a sample's masks.
RandomKey key_of_masks(std::uint64_t seed, std::int64_t sample);

/// Draws which of the tokens at `places` of a sample (L) are targets, hides them in `inputs`, and
/// writes them to `targets`, whose other places stay. Returns how many there are.
std::int64_t hide_tokens(const TokenMasking& masking, RandomKey key,
                         std::span<const std::size_t> places, std::span<std::int32_t> inputs,
                         std::span<std::int32_t> targets);

}  // namespace tessera::data
