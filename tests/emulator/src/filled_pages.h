#pragma once

#include <cstddef>

namespace tessera::emulator {

/// What memory holds that nothing has been written to: NaN.
inline constexpr int kFill = 0xff;

/// Memory full of kFill that takes neither time nor memory where nothing is written: private
/// mappings of one file. The segments of a training step are mostly such pages. Null if the system
/// has none.
void* take_filled_pages(std::size_t bytes, std::size_t alignment);
/// With the size that was asked for. Whoever still reads there sees kFill, until the pages are
/// taken again.
void give_filled_pages_back(void* address, std::size_t bytes);

}  // namespace tessera::emulator
