#include "tessera/sharding/fp8_options.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "tessera/core/error.h"
#include "tessera/core/text.h"

namespace tessera {
namespace {

struct ProductName {
  const char* name;
  bool Fp8ProductSet::*member;
};
constexpr std::array kProductNames{
    ProductName{"forward", &Fp8ProductSet::forward},
    ProductName{"input-gradient", &Fp8ProductSet::input_gradient},
    ProductName{"weight-gradient", &Fp8ProductSet::weight_gradient},
};

}  // namespace

std::vector<Fp8Products> fp8_products(const ModelLayout& layout, const Fp8Options& options) {
  std::vector<Fp8Products> all(layout.layers.size());
  if (!options.enabled) return all;
  std::vector<std::size_t> blocks;
  for (std::size_t l = 0; l < layout.layers.size(); ++l) {
    const bool is_block = std::ranges::any_of(
        layout.layers[l].parameters,
        [&](const ParameterAddress& address) { return layout.tensor_of(address).spec.fp8; });
    if (is_block) blocks.push_back(l);
  }
  const auto count = static_cast<std::int64_t>(blocks.size());
  for (std::int64_t b = options.bf16_blocks.first; b < count - options.bf16_blocks.last; ++b) {
    all[blocks[static_cast<std::size_t>(b)]] = {
        .forward = options.products.forward,
        .input_gradient = options.products.input_gradient,
        .weight_gradient = options.products.weight_gradient,
        .gradient_format =
            options.formats == Fp8Formats::kHybrid ? Fp8Format::kE5M2 : Fp8Format::kE4M3,
        .scales = options.scales};
  }
  return all;
}

std::string_view to_string(GatherFormat format) {
  return format == GatherFormat::kE4M3 ? "e4m3" : "bf16";
}

std::string_view to_string(Fp8Recipe recipe) {
  return recipe == Fp8Recipe::kCurrent ? "current" : "delayed";
}

std::string_view to_string(Fp8HistoryRule rule) {
  return rule == Fp8HistoryRule::kMax ? "max" : "most-recent";
}

std::string_view to_string(Fp8Formats formats) {
  return formats == Fp8Formats::kHybrid ? "hybrid" : "e4m3";
}

std::string_view to_string(Fp8Scales scales) {
  return scales == Fp8Scales::kPowerOfTwo ? "power-of-two" : "exact";
}

std::string to_string(const Fp8ProductSet& products) {
  std::string text;
  for (const auto& [name, member] : kProductNames) {
    if (products.*member) text += concat(text.empty() ? "" : ",", name);
  }
  return text;
}

Fp8ProductSet parse_fp8_products(std::string_view text) {
  Fp8ProductSet products{false, false, false};
  for (const std::string& word : split_text(text, ',')) {
    const auto found = std::ranges::find_if(
        kProductNames, [&](const ProductName& product) { return word == product.name; });
    require(found != kProductNames.end(), ErrorCode::kConfig, "'", word,
            "' is no product of a linear layer; choose some of forward, input-gradient and "
            "weight-gradient, with commas between them");
    products.*(found->member) = true;
  }
  return products;
}

std::string to_string(const Fp8Bf16Blocks& blocks) {
  return concat(blocks.first, ',', blocks.last);
}

Fp8Bf16Blocks parse_fp8_bf16_blocks(std::string_view text) {
  Fp8Bf16Blocks blocks;
  const char* const end = text.data() + text.size();
  const auto first = std::from_chars(text.data(), end, blocks.first);
  bool is_pair = first.ec == std::errc() && first.ptr != end && *first.ptr == ',';
  if (is_pair) {
    const auto last = std::from_chars(first.ptr + 1, end, blocks.last);
    is_pair = last.ec == std::errc() && last.ptr == end;
  }
  require(is_pair && blocks.first >= 0 && blocks.last >= 0, ErrorCode::kConfig, "'", text,
          "' does not say how many blocks stay in bf16; write how many first ones and how many "
          "last ones, like 1,1");
  return blocks;
}

}  // namespace tessera
