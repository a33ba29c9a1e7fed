#include "gpt_config.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <utility>

#include "tessera/core/error.h"
#include "tessera/model/gpt_family.h"

namespace tessera {
namespace {

using Scaling = RotaryConfig::Scaling;

/// The numbers of a configuration, by name: one table for both ways.
constexpr std::array<std::pair<std::string_view, std::int64_t GptConfig::*>, 5> kSizes{{
    {"vocab_size", &GptConfig::vocab_size},
    {"context_length", &GptConfig::context_length},
    {"layers", &GptConfig::layers},
    {"heads", &GptConfig::heads},
    {"width", &GptConfig::width},
}};

/// The families other than GPT-2 have these numbers, too.
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
constexpr std::array<std::string_view, 6> kScalings{"none",   "llama3",  "longrope",
                                                    "linear", "dynamic", "yarn"};
constexpr std::string_view kScaling = "rotary_scaling";
constexpr std::string_view kTrainedContext = "rotary_trained_context";
constexpr std::string_view kAmplitude = "rotary_amplitude";  // only where it is set
/// The numbers of yarn alone.
constexpr std::array<std::pair<std::string_view, double RotaryConfig::*>, 2> kYarnNumbers{{
    {"rotary_fast_turns", &RotaryConfig::fast_turns},
    {"rotary_slow_turns", &RotaryConfig::slow_turns},
}};
constexpr std::string_view kWholeChannels = "rotary_whole_channels";
/// In front of the names of what layers with a window have for themselves.
constexpr std::string_view kOfWindows = "window_";

constexpr std::string_view kTokenTypes = "token_types";
/// Written only where they are not 0.
constexpr std::string_view kPeriod = "window_period";
constexpr std::array<std::pair<std::string_view, double GptConfig::*>, 3> kNumbers{{
    {"attention_scalar", &GptConfig::attention_scalar},
    {"attention_cap", &GptConfig::attention_cap},
    {"logit_cap", &GptConfig::logit_cap},
}};

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

/// With `prefix` in front of all names.
void add_rotary(const RotaryConfig& rotary, std::string_view prefix,
                std::vector<NamedText>& words) {
  const auto add = [&](std::string_view name, std::string value) {
    words.push_back({concat(prefix, name), std::move(value)});
  };
  add(kScaling, std::string(kScalings.at(static_cast<std::size_t>(rotary.scaling))));
  for (const auto& [name, member] : kRotaryNumbers) add(name, exactly(rotary.*member));
  add(kTrainedContext, concat(rotary.trained_context));
  if (rotary.amplitude != 0.0) add(kAmplitude, exactly(rotary.amplitude));
  if (rotary.scaling == Scaling::kYarn) {
    for (const auto& [name, member] : kYarnNumbers) add(name, exactly(rotary.*member));
    add(kWholeChannels, rotary.whole_channels ? "true" : "false");
  }
  for (const auto& [name, member] : kRotaryLists) {
    std::string list;
    for (const double value : rotary.*member) list += (list.empty() ? "" : " ") + exactly(value);
    add(name, list);
  }
}

RotaryConfig read_rotary(const Words& words, std::string_view prefix) {
  const auto named = [&](std::string_view name) { return concat(prefix, name); };
  RotaryConfig rotary;
  rotary.scaling = static_cast<Scaling>(words.choice(named(kScaling), kScalings));
  for (const auto& [name, member] : kRotaryNumbers)
    rotary.*member = words.number<double>(named(name));
  rotary.trained_context = words.number<std::int64_t>(named(kTrainedContext));
  if (words.find(named(kAmplitude)) != nullptr)
    rotary.amplitude = words.number<double>(named(kAmplitude));
  if (rotary.scaling == Scaling::kYarn) {
    for (const auto& [name, member] : kYarnNumbers)
      rotary.*member = words.number<double>(named(name));
    rotary.whole_channels = words.text(named(kWholeChannels)) == "true";
  }
  for (const auto& [name, member] : kRotaryLists) rotary.*member = words.numbers(named(name));
  return rotary;
}

void check_labels(const GptConfig& config) {
  const std::vector<std::string>& labels = config.labels;
  if (labels.empty()) return;
  require(labels.size() > 1, ErrorCode::kConfig, "model: '", labels.front(),
          "' is the only label; a classifier takes at least two, and regression is not built");
  require(std::cmp_less_equal(labels.size(), config.vocab_size), ErrorCode::kConfig,
          "model: ", labels.size(),
          " labels; a classifier takes at most as many as the vocabulary has tokens, ",
          config.vocab_size);
  const std::set<std::string_view> names(labels.begin(), labels.end());
  require(names.size() == labels.size() && !names.contains(""), ErrorCode::kConfig,
          "model: a label is empty or there twice; give each class a name of its own");
  require(!config.adapter.is_prompt(), ErrorCode::kConfig,
          "a tuned prompt is for models that write text; classify with `lora` or ia3 adapters, or "
          "train the whole model");
}

/// Without what families with learned positions do not have.
GptConfig without_rotary(const GptConfig& config) {
  GptConfig plain = config;
  for (const auto& [name, size] : kMoreSizes) plain.*size = GptConfig{}.*size;
  for (const auto& [name, number] : kNumbers) plain.*number = 0.0;
  plain.mlp_width = config.mlp_width;
  plain.window_period = 0;
  plain.rotary = {};
  plain.window_rotary = {};
  return plain;
}

void check_encoder(const GptConfig& config) {
  const std::string_view name = family_of(config).name;
  require(config.token_types > 0, ErrorCode::kConfig, "model: a ", name,
          " has token_types, at least 1, got ", config.token_types);
  require(config.mlp_width >= 0 && config.norm_epsilon > 0.0F, ErrorCode::kConfig,
          "model: mlp_width must not be negative, and norm_epsilon must be positive, got ",
          config.mlp_width, " and ", config.norm_epsilon);
  require(without_rotary(config) == config, ErrorCode::kConfig, "model: a ", name,
          " has neither kv_heads, head_width, a window, rotary positions nor soft caps");
  require(config.tie_embedding || !config.labels.empty(), ErrorCode::kConfig, "model: a ", name,
          " tells masked tokens by its embedding alone (tie_word_embeddings, tie_embedding)");
  require(config.base_format == WeightFormat::kNone, ErrorCode::kConfig,
          "a quantised base is for decoders; leave out `base_format` for a ", name);
  require(!config.adapter.is_prompt(), ErrorCode::kConfig,
          "a tuned prompt is for models that write text; train a ", name,
          " with `lora` or ia3 adapters, or as a whole");
}

void check_rotary(const GptConfig& config, const RotaryConfig& rotary) {
  const double channels = static_cast<double>(config.head_width_used()) * rotary.share;
  const auto rotated = static_cast<std::int64_t>(channels);
  require(rotary.base > 0.0, ErrorCode::kConfig, "model: rotary base must be positive, got ",
          rotary.base);
  require(rotary.share > 0.0 && rotary.share <= 1.0 && rotated >= 2 && rotated % 2 == 0,
          ErrorCode::kConfig, "model: ", rotary.share, " of a head's ", config.head_width_used(),
          " channels are rotated; that must be an even number, at least 2");
  require(rotary.scaling == Scaling::kNone || rotary.scaling == Scaling::kLinear ||
              rotary.trained_context > 0,
          ErrorCode::kConfig, "model: scaled rotary frequencies need the context before scaling");
  require(rotary.amplitude == 0.0 ||
              (rotary.amplitude > 0.0 &&
               (rotary.scaling == Scaling::kLongRope || rotary.scaling == Scaling::kYarn)),
          ErrorCode::kConfig,
          "model: a rotary amplitude is for longrope and yarn and must be positive, got ",
          rotary.amplitude);
  require(rotary.factor > 0.0, ErrorCode::kConfig, "model: a rotary factor must be positive, got ",
          rotary.factor);
  if (rotary.scaling == Scaling::kLlama3) {
    require(rotary.factor >= 1.0 && rotary.low_frequency > 0.0 &&
                rotary.high_frequency > rotary.low_frequency,
            ErrorCode::kConfig, "model: rotary scaling by ", rotary.factor, " between ",
            rotary.low_frequency, " and ", rotary.high_frequency,
            " waves; the factor must be at least 1 and the bounds rise");
  }
  require(rotary.scaling != Scaling::kDynamic || rotated > 2, ErrorCode::kConfig,
          "model: dynamic rotary scaling takes more than 2 rotated channels of a head, got ",
          rotated);
  require(rotary.scaling != Scaling::kYarn ||
              (rotary.base > 1.0 && rotary.fast_turns > 0.0 && rotary.slow_turns > 0.0),
          ErrorCode::kConfig,
          "model: yarn takes a base above 1 and positive numbers of turns, got ", rotary.base, ", ",
          rotary.fast_turns, " and ", rotary.slow_turns);
  if (rotary.scaling == Scaling::kLongRope) {
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

bool is_encoder(const GptConfig& config) { return family_of(config).encoder; }

void require_writes_text(const GptConfig& config) {
  require(!is_encoder(config), ErrorCode::kConfig, "a ", family_of(config).name,
          " is an encoder, which reads texts and writes none; classify with it, or take a model "
          "that writes text");
  require(config.labels.empty(), ErrorCode::kConfig,
          "the model classifies sequences and writes no text; evaluate it, or take a model that "
          "writes text");
}

std::string_view embedding_name(const GptConfig& config) {
  if (is_encoder(config)) return "embeddings.word_embeddings.weight";
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
  check_labels(config);
  require(config.base_format == WeightFormat::kNone || config.adapter.is_set(), ErrorCode::kConfig,
          "a base in ", to_string(config.base_format),
          " stays as it is: give adapters to train: `adapter`");
  if (is_encoder(config)) return check_encoder(config);
  require(config.token_types == 0, ErrorCode::kConfig, "model: only a bert has token_types, not a ",
          family_of(config).name);
  if (config.family == GptFamily::kGpt2) {
    GptConfig plain = without_rotary(config);
    plain.mlp_width = GptConfig{}.mlp_width;
    plain.norm_epsilon = GptConfig{}.norm_epsilon;
    require(
        plain == config, ErrorCode::kConfig,
        "model: a GPT-2 has neither kv_heads, head_width, mlp_width, a window, rotary positions "
        "nor soft caps");
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
  require(config.window_period >= 0 && config.window_period != 1, ErrorCode::kConfig,
          "model: the last of ", config.window_period,
          " layers has no window; give at least 2, or 0 for windows in all");
  for (const auto& [name, number] : kNumbers) {
    require(config.*number >= 0.0, ErrorCode::kConfig, "model: ", name,
            " must not be negative, got ", config.*number);
  }
  check_rotary(config, config.rotary);
  if (config.window_rotary) check_rotary(config, *config.window_rotary);
}

std::vector<NamedText> configuration_of(const GptConfig& config) {
  std::vector<NamedText> words{{"family", std::string(family_of(config).name)}};
  for (const auto& [name, size] : kSizes)
    words.push_back({std::string(name), concat(config.*size)});
  words.push_back({"dropout", exactly(config.dropout)});
  words.push_back({"tie_embedding", config.tie_embedding ? "true" : "false"});
  if (!config.labels.empty()) words.push_back({"labels", nlohmann::json(config.labels).dump()});
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
  if (is_encoder(config)) {
    words.push_back({std::string(kTokenTypes), concat(config.token_types)});
    return words;
  }
  if (config.window_period != 0)
    words.push_back({std::string(kPeriod), concat(config.window_period)});
  for (const auto& [name, number] : kNumbers) {
    if (config.*number != 0.0) words.push_back({std::string(name), exactly(config.*number)});
  }
  add_rotary(config.rotary, "", words);
  if (config.window_rotary) add_rotary(*config.window_rotary, kOfWindows, words);
  return words;
}

namespace {

GptConfig parse_without_adapter(const Words& words) {
  std::vector<std::string_view> families;
  for (const FamilyRow& row : gpt_families()) families.push_back(row.name);
  GptConfig config;
  config.family = gpt_families()[words.choice("family", families)].family;
  for (const auto& [name, size] : kSizes) config.*size = words.number<std::int64_t>(name);
  config.dropout = words.number<float>("dropout");
  config.tie_embedding = words.text("tie_embedding") == "true";
  if (const std::string* const labels = words.find("labels")) {
    const auto list = nlohmann::json::parse(*labels, nullptr, false);
    const auto is_text = [](const nlohmann::json& label) { return label.is_string(); };
    require(list.is_array() && std::ranges::all_of(list, is_text), ErrorCode::kConfig, "labels ",
            *labels, " of the model's configuration are no list of texts");
    config.labels = list.get<std::vector<std::string>>();
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
  if (is_encoder(config)) {
    config.token_types = words.number<std::int64_t>(kTokenTypes);
    return config;
  }
  if (words.find(kPeriod) != nullptr) config.window_period = words.number<std::int64_t>(kPeriod);
  for (const auto& [name, number] : kNumbers) {
    if (words.find(name) != nullptr) config.*number = words.number<double>(name);
  }
  config.rotary = read_rotary(words, "");
  if (words.find(concat(kOfWindows, kScaling)) != nullptr)
    config.window_rotary = read_rotary(words, kOfWindows);
  return config;
}

}  // namespace

GptConfig parse_gpt_configuration(const std::vector<NamedText>& named) {
  const Words words(named);
  GptConfig config = parse_without_adapter(words);
  if (const std::string* const adapter = words.find("adapter")) {
    config.adapter = parse_adapter_json(*adapter, "the model's configuration", config);
  }
  return config;
}

}  // namespace tessera
