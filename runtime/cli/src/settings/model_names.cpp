#include "settings/gpt_choice.h"

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <filesystem>

#include "output/terminal.h"
#include "tessera/core/error.h"
#include "tessera/core/nearest_name.h"
#include "tessera/model/gpt_family.h"
#include "tessera/model/hugging_face.h"

namespace tessera::cli {
namespace {

/// Sizes as published: GPT-2, GPT-3 (Brown et al. 2020, table 2.1) and, of 30 and 66 billion
/// parameters, OPT (Zhang et al. 2022, table 1).
struct Sizes {
  std::int64_t layers, heads, width;

  double parameters() const {
    constexpr double kTokens = 50257;  // GPT-2's vocabulary
    const auto c = static_cast<double>(width);
    return 12.0 * static_cast<double>(layers) * c * c + kTokens * c;
  }
};

constexpr std::array kSizes{Sizes{12, 12, 768},  Sizes{24, 16, 1024}, Sizes{36, 20, 1280},
                            Sizes{48, 25, 1600}, Sizes{32, 32, 2560}, Sizes{32, 32, 4096},
                            Sizes{40, 40, 5120}, Sizes{48, 56, 7168}, Sizes{64, 72, 9216},
                            Sizes{96, 96, 12288}};

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }

/// The parameters that a name tells as a word such as "7b", "1.3B" or "350M"; 0 if it does not.
double parameters_in(const std::string& name) {
  for (std::size_t i = 0; i < name.size(); ++i) {
    const bool begins = i == 0 || !(is_word(name[i - 1]) || name[i - 1] == '.');
    if (!begins || std::isdigit(static_cast<unsigned char>(name[i])) == 0) continue;
    double number = 0.0;
    const char* const end = name.data() + name.size();
    const char* const unit = std::from_chars(name.data() + i, end, number).ptr;
    if (unit == end || (unit + 1 != end && is_word(unit[1]))) continue;
    const int letter = std::tolower(static_cast<unsigned char>(*unit));
    if (letter == 'b') return number * 1e9;
    if (letter == 'm') return number * 1e6;
  }
  return 0.0;
}

/// Flags of the published sizes that come nearest to `parameters`.
std::string flags_near(double parameters) {
  const Sizes* nearest = kSizes.data();
  const auto distance = [&](const Sizes& sizes) {
    return std::abs(std::log(sizes.parameters() / parameters));
  };
  for (const Sizes& sizes : kSizes) {
    if (distance(sizes) < distance(*nearest)) nearest = &sizes;
  }
  for (const std::string& name : gpt_preset_names()) {
    const GptConfig preset = gpt_preset(name);
    if (preset.layers == nearest->layers && preset.width == nearest->width) return name;
  }
  return concat("gpt2-xl with --layers ", nearest->layers, " --heads ", nearest->heads, " --width ",
                nearest->width, " (", with_prefix(nearest->parameters()), " parameters)");
}

}  // namespace

bool is_folder(const std::string& name) {
  std::error_code error;
  return std::filesystem::is_directory(name, error);
}

std::string model_names() {
  std::string text;
  for (const std::string& name : gpt_preset_names()) {
    const bool other = gpt_preset_name(name) != name;
    text += other ? " (" + name + ")" : (text.empty() ? "" : ", ") + name;
  }
  return text;
}

GptConfig named_model(const std::string& name) {
  return is_folder(name) ? hugging_face_config_of(name) : gpt_preset(name);
}

void check_model_name(const std::string& name) {
  if (!gpt_preset_name(name).empty()) return;
  if (is_folder(name)) {
    hugging_face_config_of(name);
    return;
  }
  const std::string nearest = nearest_name(name, gpt_preset_names());
  require(nearest.empty(), ErrorCode::kConfig, "there is no model '", name, "'; did you mean '",
          nearest, "'?");
  const double parameters = parameters_in(name);
  fail(ErrorCode::kConfig, "there is no model '", name, "'; give a Hugging Face folder, or one of ",
       model_names(),
       parameters > 0.0 ? concat("; nearest in size: ", flags_near(parameters))
                        : "; --layers, --heads and --width make others of them");
}

bool has_sizes_of(const GptConfig& a, const GptConfig& b) {
  GptConfig same = a;
  same.dropout = b.dropout;
  same.tie_embedding = b.tie_embedding;
  same.labels = b.labels;
  return same == b;
}

std::string model_label(const std::string& preset, const GptConfig& config) {
  const GptConfig given = gpt_preset(preset);
  if (has_sizes_of(config, given)) return preset;
  const bool gpt2 = config.family == GptFamily::kGpt2;
  const bool vocabulary = config.vocab_size != given.vocab_size;
  const bool context = config.context_length != given.context_length;
  std::string label =
      concat(gpt2 ? "GPT" : family_of(config).name, " of ", counted(config.layers, "layer"), " x ",
             config.width, ", ", counted(config.heads, "head"));
  if (context) label += concat(", context ", config.context_length);
  if (vocabulary) label += concat(", vocabulary ", config.vocab_size);
  return label;
}

}  // namespace tessera::cli
