#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/autograd/parameter.h"
#include "tessera/kernels/fp8_history.h"
#include "tessera/sharding/layout.h"

namespace tessera {

/// Where the largest magnitude comes from that decides a tensor's scale.
enum class Fp8Recipe : std::uint8_t {
  kCurrent,  ///< the tensor itself, as it is now
  kDelayed,  ///< its history: the tensor as it was in earlier steps
};

enum class Fp8Formats : std::uint8_t {
  kHybrid,  ///< E5M2 for gradients of outputs, E4M3 for all others
  kE4M3,
};

/// The products of a linear layer that take fp8.
struct Fp8ProductSet {
  bool forward = true, input_gradient = true, weight_gradient = true;
  bool operator==(const Fp8ProductSet&) const = default;
};

/// How many blocks stay in bf16 at each end of a model.
struct Fp8Bf16Blocks {
  int first = 0, last = 0;
  bool operator==(const Fp8Bf16Blocks&) const = default;
};

/// The format in which matrices of products in fp8 travel between ranks.
enum class GatherFormat : std::uint8_t {
  kE4M3,  ///< as codes, where layers read nothing else of them
  kBf16,  ///< as other parameters; each rank rounds the whole matrix
};

/// Training in fp8: products of the blocks' matrices take operands in fp8, everything else is in
/// bf16. Blocks are the layers with parameters of which ParameterSpec::fp8 is set.
struct Fp8Options {
  bool enabled = false;
  Fp8Recipe recipe = Fp8Recipe::kCurrent;
  Fp8Formats formats = Fp8Formats::kHybrid;
  Fp8Scales scales = Fp8Scales::kPowerOfTwo;
  Fp8ProductSet products{};
  Fp8Bf16Blocks bf16_blocks{};
  GatherFormat gather_format = GatherFormat::kE4M3;
  /// Units whose scales are joined by one message.
  int scale_units = 8;
  /// Delayed scaling: the steps whose largest magnitudes decide a scale, which of them does, and
  /// the powers of two that are left above it.
  int history = 1024;
  Fp8HistoryRule history_rule = Fp8HistoryRule::kMax;
  int margin = 0;
  bool operator==(const Fp8Options&) const = default;

  /// Whether scales are made of histories.
  bool is_delayed() const { return enabled && recipe == Fp8Recipe::kDelayed; }
};

/// By layer, what its matrices with ParameterSpec::fp8 take in fp8.
std::vector<Fp8Products> fp8_products(const ModelLayout& layout, const Fp8Options& options);

/// Whether codes are all that layers read of matrices in fp8.
constexpr bool reads_codes_only(const Fp8Options& options) {
  return options.enabled && options.products.forward && options.products.input_gradient;
}

/// The layout with matrices that layers can read in E4M3 in flat parameters of their own,
/// "parameter-e4m3" behind "parameter": their codes can be gathered while biases and norms stay in
/// bf16. Of options with which codes are not all that layers read, the same layout, but for
/// LayerLayout::fp8_histories. `parts` and
/// `alignment` are those of make_layout().
ModelLayout with_fp8_apart(ModelLayout layout, const Fp8Options& options, int parts,
                           std::int64_t alignment = kFlatAlignment);

std::string_view to_string(Fp8HistoryRule rule);
std::string_view to_string(GatherFormat format);
std::string_view to_string(Fp8Recipe recipe);
std::string_view to_string(Fp8Formats formats);
std::string_view to_string(Fp8Scales scales);
/// "forward,input-gradient,weight-gradient"
std::string to_string(const Fp8ProductSet& products);
Fp8ProductSet parse_fp8_products(std::string_view text);  ///< Throws Error{kConfig}.
/// "1,2": first and last.
std::string to_string(const Fp8Bf16Blocks& blocks);
Fp8Bf16Blocks parse_fp8_bf16_blocks(std::string_view text);  ///< Throws Error{kConfig}.

}  // namespace tessera
