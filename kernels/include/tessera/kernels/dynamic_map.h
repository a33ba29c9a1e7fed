#pragma once

#include <array>

namespace tessera {

/// The 256 numbers, ascending, that codes of 8 bits stand for in bitsandbytes' dynamic maps
/// (`create_dynamic_map`; Dettmers 2016 and 2022), with its bits. A number is its code's entry
/// times the scale of its block.
///
/// Signed: for i of 0 to 6, the middles of 2^i equal parts of [0.1, 1], times 10^(i - 6), of both
/// signs; besides, 0, code 127, and 1, code 255. The first is -0.99296874.
/// Unsigned: the middles of 2^(i + 1) parts, and 0, code 0, and 1, code 255.
const std::array<float, 256>& dynamic_map(bool is_signed);

}  // namespace tessera
