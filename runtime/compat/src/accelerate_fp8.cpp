#include "accelerate_fp8.h"

#include <array>
#include <cctype>
#include <utility>

#include "document.h"
#include "tessera/core/text.h"
#include "tessera/sharding/fp8_options.h"

namespace tessera::compat {
namespace {

constexpr const char* kBackend = "fp8_backend";
constexpr const char* kOverride = "fp8_override_linear_precision";

void read_backend(Section& section) {
  const auto backend = section.text(kBackend);
  if (!backend) {
    section.absent(kBackend,
                   "Accelerate takes the one that is installed; here scales are those of "
                   "torchao's tensorwise recipe");
    return;
  }
  if (*backend == "MSAMP") {
    section.refuse(kBackend,
                   "asks for collectives and optimizer states of 8 bits; use AO or TE, and "
                   "--optimizer adamw8bit for the states");
  }
  section.honour(kBackend, "fp8_recipe", "current");
  if (*backend == "TE") {
    section.differ(kBackend,
                   "TransformerEngine makes scales of a history of magnitudes (delayed scaling); "
                   "here they are of the tensor itself, as it is now");
  } else {
    section.differ(kBackend,
                   "torchao leaves the first and the last linear layer in bf16; here all matrices "
                   "of blocks are in fp8, and --fp8-bf16-blocks 1,1 leaves out the first block "
                   "and the last");
  }
}

/// torchao casts shards before FSDP2 gathers them, with scales of the whole matrix.
void read_gathers(Section& section) {
  constexpr const char* kGathers = "fp8_enable_fsdp_float8_all_gather";
  const auto in_codes = section.flag(kGathers);
  if (in_codes) section.honour(kGathers, "gather_format", *in_codes ? "e4m3" : "bf16");
}

void read_format(Section& section) {
  constexpr const char* kFormat = "fp8_format";
  const auto format = section.text(kFormat);
  if (!format) return;
  if (*format == "E5M2") {
    section.refuse(kFormat,
                   "E5M2 for inputs and weights has two bits of fraction, which "
                   "TransformerEngine refuses, too; use HYBRID or E4M3");
  }
  section.honour(kFormat, "fp8_format", *format == "HYBRID" ? "hybrid" : "e4m3");
}

/// Three flags, a list or the text of a Python tuple: which of forward, input gradient and weight
/// gradient are in higher precision.
void read_override(Section& section) {
  if (!section.has(kOverride)) return;
  std::array<bool, 3> higher{};
  std::size_t count = 0;
  bool is_known = true;
  const auto take = [&](const std::string& word) {
    const std::string flag = lowercase(word);
    is_known = is_known && count < higher.size() && (flag == "true" || flag == "false");
    if (is_known) higher[count++] = flag == "true";
  };
  static const Node kNothing;
  const Node* const found = section.node(kOverride);
  const Node& node = found != nullptr ? *found : kNothing;
  for (const Node& item : node.items) {
    const auto flag = as_flag(item);
    take(!flag ? "" : *flag ? "true" : "false");
  }
  std::string word;
  for (const char c : node.scalar.is_string() ? node.scalar.get<std::string>() + " " : "") {
    if (std::isalpha(static_cast<unsigned char>(c)) != 0) {
      word += c;
    } else if (!word.empty()) {
      take(std::exchange(word, ""));
    }
  }
  if (!is_known || count != higher.size()) {
    section.refuse(kOverride,
                   "must be three flags, of forward, input gradient and weight gradient, like "
                   "[false, false, true]");
  }
  const std::string products = to_string(Fp8ProductSet{!higher[0], !higher[1], !higher[2]});
  if (products.empty()) {
    section.refuse(kOverride, "leaves no product in fp8; use mixed_precision: bf16");
  }
  section.honour(kOverride, "fp8_products", products);
}

}  // namespace

void translate_fp8_section(Section& section, const std::string& mixed_precision,
                           const KnownSettings& known) {
  const std::string precision = known.override_text("precision").value_or(mixed_precision);
  if (mixed_precision != "fp8") {
    return section.switch_off("is read only with mixed_precision: fp8, as in Accelerate");
  }
  if (precision != "fp8") return section.switch_off(concat("precision is ", precision));
  attempt([&] { read_backend(section); });
  attempt([&] { read_format(section); });
  attempt([&] { read_override(section); });
  attempt([&] { read_gathers(section); });
}

}  // namespace tessera::compat
