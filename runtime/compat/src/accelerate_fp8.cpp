#include "accelerate_fp8.h"

#include <array>
#include <cctype>
#include <string_view>
#include <utility>
#include <vector>

#include "document.h"
#include "tessera/core/text.h"
#include "tessera/sharding/fp8_options.h"

namespace tessera::compat {
namespace {

constexpr const char* kBackend = "fp8_backend";
constexpr const char* kOverride = "fp8_override_linear_precision";

/// Settles the recipe. Whether scales are of histories, by the file and the command line.
bool read_backend(Section& section, const KnownSettings& known) {
  const auto backend = section.text(kBackend);
  const std::string given = known.override_text("fp8_recipe").value_or("");
  if (!backend) {
    section.absent(kBackend,
                   "Accelerate takes the one that is installed; here scales are those of "
                   "torchao's tensorwise recipe");
    return given == "delayed";
  }
  if (*backend == "MSAMP") {
    section.refuse(kBackend,
                   "asks for collectives and optimizer states of 8 bits; use AO or TE, and "
                   "--optimizer adamw8bit for the states");
  }
  if (*backend == "TE") {
    section.honour(kBackend, "fp8_recipe", "delayed");
    section.differ(kBackend,
                   "scales are powers of two here; TransformerEngine's are not, as with "
                   "--fp8-scales exact");
    return given.empty() || given == "delayed";
  }
  section.honour(kBackend, "fp8_recipe", "current");
  section.differ(kBackend,
                 "torchao leaves the first and the last linear layer in bf16; here all matrices "
                 "of blocks are in fp8, and --fp8-bf16-blocks 1,1 leaves out the first block "
                 "and the last");
  return given == "delayed";
}

/// Keys of TransformerEngine's recipe are without effect where scales are of the tensors as they
/// are. True: this one has an effect.
bool is_of_histories(Section& section, std::string_view key, bool delayed) {
  if (!section.has(key)) return false;
  if (!delayed) {
    section.no_effect(key,
                      "is of histories of magnitudes (backend TE), and a scale is of the tensor "
                      "itself here, as it is now",
                      Told::kByRun);
  }
  return delayed;
}

/// Accelerate has one name for a key, and its questionnaire writes another, which Accelerate does
/// not read.
struct TwoNames {
  std::string_view own, asked;
};

/// The names of the two that are there; both may be, with one value.
std::vector<std::string_view> names_of(Section& section, const TwoNames& names, bool delayed) {
  std::vector<std::string_view> there;
  for (const std::string_view key : {names.own, names.asked}) {
    if (!is_of_histories(section, key, delayed)) continue;
    there.push_back(key);
    if (key == names.own) continue;
    section.differ(key, concat("Accelerate's questionnaire writes this name, and Accelerate reads ",
                               names.own, " alone; it is taken as meant"));
  }
  return there;
}

void read_history(Section& section, bool delayed) {
  const auto lengths =
      names_of(section, {"fp8_amax_history_len", "fp8_amax_history_length"}, delayed);
  for (const std::string_view key : lengths) {
    if (const auto length = section.integer(key)) section.honour(key, "fp8_history", *length);
  }
  const auto rules =
      names_of(section, {"fp8_amax_compute_algo", "fp8_amax_compute_algorithm"}, delayed);
  for (const std::string_view key : rules) {
    const auto rule = section.text(key);
    if (!rule) continue;
    section.honour(key, "fp8_history_rule", *rule == "max" ? "max" : "most-recent");
    if (*rule == "max") continue;
    section.differ(key,
                   "Accelerate never passes most_recent on, so that TransformerEngine takes max; "
                   "here it is as written");
  }
  if (is_of_histories(section, "fp8_margin", delayed)) {
    if (const auto margin = section.integer("fp8_margin")) {
      section.honour("fp8_margin", "fp8_margin", *margin);
    }
  }
  if (is_of_histories(section, "fp8_interval", delayed)) {
    const auto interval = section.integer("fp8_interval");
    if (interval && *interval != 1) {
      section.refuse("fp8_interval",
                     "asks for scales that stay for several steps, which TransformerEngine no "
                     "longer has; set it to 1");
    }
    section.agree("fp8_interval", "histories move on in each step");
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
  bool delayed = false;
  attempt([&] { delayed = read_backend(section, known); });
  attempt([&] { read_history(section, delayed); });
  attempt([&] { read_format(section); });
  attempt([&] { read_override(section); });
  attempt([&] { read_gathers(section); });
}

}  // namespace tessera::compat
