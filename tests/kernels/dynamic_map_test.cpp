#include "tessera/kernels/dynamic_map.h"
#include "kernels/golden.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <string>

#include "nlohmann/json.hpp"

namespace tessera::dynamic_map_test {
namespace {

TEST(DynamicMap, HasTheNumbersOfBitsandbytes) {
  const auto golden = kernel_golden("quantized.json").at("dynamic maps");
  for (const bool is_signed : {true, false}) {
    const auto digits = golden.at(is_signed ? "signed" : "unsigned").get<std::string>();
    const auto& map = dynamic_map(is_signed);
    ASSERT_EQ(digits.size(), map.size() * 8);
    for (std::size_t i = 0; i < map.size(); ++i) {
      const auto bits =
          static_cast<std::uint32_t>(std::stoul(digits.substr(i * 8, 8), nullptr, 16));
      ASSERT_EQ(__builtin_bswap32(bits), std::bit_cast<std::uint32_t>(map[i]))
          << "code " << i << ' ' << map[i];
    }
  }
  EXPECT_EQ(dynamic_map(true)[127], 0.0F);
  EXPECT_EQ(dynamic_map(false)[0], 0.0F);
}

}  // namespace
}  // namespace tessera::dynamic_map_test
