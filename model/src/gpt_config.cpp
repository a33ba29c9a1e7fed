#include "gpt_config.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <sstream>
#include <utility>

#include "tessera/core/error.h"
#include "tessera/model/gpt_family.h"

namespace tessera {
namespace {

/// The numbers of a configuration, by name: one table for both ways.
constexpr std::array<std::pair<std::string_view, std::int64_t GptConfig::*>, 5> kSizes{{
    {"vocab_size", &GptConfig::vocab_size},
    {"context_length", &GptConfig::context_length},
    {"layers", &GptConfig::layers},
    {"heads", &GptConfig::heads},
    {"width", &GptConfig::width},
}};

/// Those of the families other than GPT-2, besides.
constexpr std::array<std::pair<std::string_view, std::int64_t GptConfig::*>, 5> kMoreSizes{{
    {"kv_heads", &GptConfig::kv_heads},
    {"head_width", &GptConfig::head_width},
    {"mlp_width", &GptConfig::mlp_width},
    {"window", &GptConfig::window},
    {"first_window_layer", &GptConfig::first_window_layer},
}};
constexpr std::array<std::pair<std::string_view, double RotaryConfig::*>, 5> kRotaryNumbers{{
    {"rotary_base", &RotaryConfig::base},
    {"rotary_share", &RotaryConfig::share},
    {"rotary_factor", &RotaryConfig::factor},
    {"rotary_low_frequency", &RotaryConfig::low_frequency},
    {"rotary_high_frequency", &RotaryConfig::high_frequency},
}};
constexpr std::array<std::pair<std::string_view, std::vector<double> RotaryConfig::*>, 2>
    kRotaryLists{{
        {"rotary_short_factors", &RotaryConfig::short_factors},
        {"rotary_long_factors", &RotaryConfig::long_factors},
    }};
constexpr std::array<std::string_view, 3> kScalings{"none", "llama3", "longrope"};
constexpr std::string_view kTrainedContext = "rotary_trained_context";
constexpr std::string_view kAmplitude = "rotary_amplitude";  // only where it is set

/// Writes as many digits as give the same number again.
template <typename T>
std::string exactly(T value) {
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  return {text.data(), end};
}

/// Reads the words of a configuration by name.
class Words {
 public:
  explicit Words(const std::vector<NamedText>& words) : words_(words) {}

  const std::string& text(std::string_view name) const {
    const auto found = std::ranges::find(words_, name, &NamedText::name);
    require(found != words_.end(), ErrorCode::kConfig, "the model's configuration has no '", name,
            "'");
    return found->value;
  }
  /// Null if there is none.
  const std::string* find(std::string_view name) const {
    const auto found = std::ranges::find(words_, name, &NamedText::name);
    return found != words_.end() ? &found->value : nullptr;
  }
  template <typename T>
  T number(std::string_view name) const {
    std::istringstream in(text(name));
    T value{};
    require(static_cast<bool>(in >> value) && in.eof(), ErrorCode::kConfig, name, " '", text(name),
            "' of the model's configuration is no number");
    return value;
  }
  std::vector<double> numbers(std::string_view name) const {
    std::istringstream in(text(name));
    std::vector<double> all;
    for (double value = 0.0; in >> value;) all.push_back(value);
    require(in.eof(), ErrorCode::kConfig, name, " '", text(name),
            "' of the model's configuration is no list of numbers");
    return all;
  }
  /// Its index in `choices`.
  std::size_t choice(std::string_view name, std::span<const std::string_view> choices) const {
    const auto found = std::ranges::find(choices, text(name));
    require(found != choices.end(), ErrorCode::kConfig, name, " '", text(name),
            "' of the model's configuration is not known here");
    return static_cast<std::size_t>(found - choices.begin());
  }

 private:
  const std::vector<NamedText>& words_;
};

void add_rotary(const RotaryConfig& rotary, std::vector<NamedText>& words) {
  const auto scaling = static_cast<std::size_t>(rotary.scaling);
  words.push_back({"rotary_scaling", std::string(kScalings.at(scaling))});
  for (const auto& [name, member] : kRotaryNumbers)
    words.push_back({std::string(name), exactly(rotary.*member)});
  words.push_back({std::string(kTrainedContext), concat(rotary.trained_context)});
  if (rotary.amplitude != 0.0)
    words.push_back({std::string(kAmplitude), exactly(rotary.amplitude)});
  for (const auto& [name, member] : kRotaryLists) {
    std::string list;
    for (const double value : rotary.*member) list += (list.empty() ? "" : " ") + exactly(value);
    words.push_back({std::string(name), list});
  }
}

RotaryConfig read_rotary(const Words& words) {
  RotaryConfig rotary;
  rotary.scaling = static_cast<RotaryConfig::Scaling>(words.choice("rotary_scaling", kScalings));
  for (const auto& [name, member] : kRotaryNumbers) rotary.*member = words.number<double>(name);
  rotary.trained_context = words.number<std::int64_t>(kTrainedContext);
  if (words.find(kAmplitude) != nullptr) rotary.amplitude = words.number<double>(kAmplitude);
  for (const auto& [name, member] : kRotaryLists) rotary.*member = words.numbers(name);
  return rotary;
}

void check_rotary(const GptConfig& config) {
  const RotaryConfig& rotary = config.rotary;
  const double channels = static_cast<double>(config.head_width_used()) * rotary.share;
  const auto rotated = static_cast<std::int64_t>(channels);
  require(rotary.base > 0.0, ErrorCode::kConfig, "model: rotary base must be positive, got ",
          rotary.base);
  require(rotary.share > 0.0 && rotary.share <= 1.0 && rotated >= 2 && rotated % 2 == 0,
          ErrorCode::kConfig, "model: ", rotary.share, " of a head's ", config.head_width_used(),
          " channels are rotated; that must be an even number, at least 2");
  require(rotary.scaling == RotaryConfig::Scaling::kNone || rotary.trained_context > 0,
          ErrorCode::kConfig, "model: scaled rotary frequencies need the context before scaling");
  require(rotary.amplitude == 0.0 ||
              (rotary.amplitude > 0.0 && rotary.scaling == RotaryConfig::Scaling::kLongRope),
          ErrorCode::kConfig,
          "model: a rotary amplitude is for longrope and must be positive, got ", rotary.amplitude);
  if (rotary.scaling == RotaryConfig::Scaling::kLlama3) {
    require(rotary.factor >= 1.0 && rotary.low_frequency > 0.0 &&
                rotary.high_frequency > rotary.low_frequency,
            ErrorCode::kConfig, "model: rotary scaling by ", rotary.factor, " between ",
            rotary.low_frequency, " and ", rotary.high_frequency,
            " waves; the factor must be at least 1 and the bounds rise");
  }
  if (rotary.scaling == RotaryConfig::Scaling::kLongRope) {
    const auto wanted = static_cast<std::size_t>(rotated / 2);
    const auto positive = [](double factor) { return factor > 0.0; };
    require(rotary.short_factors.size() == wanted && rotary.long_factors.size() == wanted &&
                std::ranges::all_of(rotary.short_factors, positive) &&
                std::ranges::all_of(rotary.long_factors, positive),
            ErrorCode::kConfig, "model: longrope takes ", wanted, " short and ", wanted,
            " long factors above 0, got ", rotary.short_factors.size(), " and ",
            rotary.long_factors.size());
  }
}

}  // namespace

std::string_view embedding_name(const GptConfig& config) {
  return config.family == GptFamily::kGpt2 ? "wte.weight" : "embed_tokens.weight";
}

void check(const GptConfig& config) {
  const auto positive = [](const char* what, std::int64_t value) {
    require(value > 0, ErrorCode::kConfig, "model: ", what, " must be positive, got ", value);
  };
  for (const auto& [name, size] : kSizes) positive(name.data(), config.*size);
  require(config.head_width != 0 || config.width % config.heads == 0, ErrorCode::kConfig,
          "model: width ", config.width, " is not a multiple of heads ", config.heads,
          "; change one of them");
  require(config.dropout >= 0.0F && config.dropout < 1.0F, ErrorCode::kConfig,
          "model: dropout must be in [0, 1), got ", config.dropout);
  require(config.base_format == WeightFormat::kNone || config.adapter.is_set(), ErrorCode::kConfig,
          "a base in ", to_string(config.base_format),
          " stays as it is: give adapters to train: `adapter`");
  if (config.family == GptFamily::kGpt2) {
    GptConfig plain = config;
    for (const auto& [name, size] : kMoreSizes) plain.*size = GptConfig{}.*size;
    plain.rotary = {};
    plain.norm_epsilon = GptConfig{}.norm_epsilon;
    require(plain == config, ErrorCode::kConfig,
            "model: a GPT-2 has neither kv_heads, head_width, mlp_width, a window nor rotary "
            "positions of its own");
    return;
  }
  for (const auto& [name, size] : kMoreSizes) {
    require(config.*size >= 0, ErrorCode::kConfig, "model: ", name, " must not be negative, got ",
            config.*size);
  }
  require(config.heads % config.kv_heads_used() == 0, ErrorCode::kConfig, "model: heads ",
          config.heads, " is not a multiple of kv_heads ", config.kv_heads, "; change one of them");
  require(config.norm_epsilon > 0.0F, ErrorCode::kConfig,
          "model: norm_epsilon must be positive, got ", config.norm_epsilon);
  check_rotary(config);
}

std::vector<NamedText> configuration_of(const GptConfig& config) {
  std::vector<NamedText> words{{"family", std::string(family_of(config).name)}};
  for (const auto& [name, size] : kSizes)
    words.push_back({std::string(name), concat(config.*size)});
  words.push_back({"dropout", exactly(config.dropout)});
  words.push_back({"tie_embedding", config.tie_embedding ? "true" : "false"});
  if (config.adapter.is_set()) {
    words.push_back({"adapter", to_adapter_json(config.adapter, config)});
  }
  if (config.base_format != WeightFormat::kNone) {
    words.push_back({"base_format", std::string(to_string(config.base_format))});
  }
  if (!config.unquantized.empty()) {
    std::string names;
    for (const std::string& name : config.unquantized) names += (names.empty() ? "" : " ") + name;
    words.push_back({"unquantized", names});
  }
  if (config.family == GptFamily::kGpt2) return words;
  for (const auto& [name, size] : kMoreSizes)
    words.push_back({std::string(name), concat(config.*size)});
  words.push_back({"norm_epsilon", exactly(static_cast<double>(config.norm_epsilon))});
  add_rotary(config.rotary, words);
  return words;
}

GptConfig parse_gpt_configuration(const std::vector<NamedText>& named) {
  const Words words(named);
  std::vector<std::string_view> families;
  for (const FamilyRow& row : gpt_families()) families.push_back(row.name);
  GptConfig config;
  config.family = gpt_families()[words.choice("family", families)].family;
  for (const auto& [name, size] : kSizes) config.*size = words.number<std::int64_t>(name);
  config.dropout = words.number<float>("dropout");
  config.tie_embedding = words.text("tie_embedding") == "true";
  if (const std::string* const adapter = words.find("adapter")) {
    config.adapter = parse_adapter_json(*adapter, "the model's configuration", config);
  }
  if (const std::string* const format = words.find("base_format")) {
    config.base_format = parse_weight_format(*format);
  }
  if (const std::string* const matrices = words.find("unquantized")) {
    std::istringstream in(*matrices);
    for (std::string name; in >> name;) config.unquantized.push_back(name);
  }
  if (config.family == GptFamily::kGpt2) return config;
  for (const auto& [name, size] : kMoreSizes) config.*size = words.number<std::int64_t>(name);
  config.norm_epsilon = static_cast<float>(words.number<double>("norm_epsilon"));
  config.rotary = read_rotary(words);
  return config;
}

}  // namespace tessera
