#include "pretrained/rotary_config.h"

#include <cmath>
#include <string>
#include <vector>

#include "tessera/core/error.h"

namespace tessera::pretrained {
namespace {

using nlohmann::json;
using Scaling = RotaryConfig::Scaling;

constexpr const char* kShare = "partial_rotary_factor";
constexpr const char* kTrainedContext = "original_max_position_embeddings";
constexpr const char* kContext = "max_position_embeddings";

const std::vector<std::string>& scaling_keys() {
  static const std::vector<std::string> all{
      "rope_type",    "type",          "rope_theta",       kShare,
      "factor",       kTrainedContext, "low_freq_factor",  "high_freq_factor",
      "short_factor", "long_factor",   "attention_factor", "beta_fast",
      "beta_slow",    "mscale",        "mscale_all_dim",   "truncate"};
  return all;
}

/// The context before scaling. The classes of transformers take what stands outside of the
/// scaling's object (4 did so for longrope only), unless the object is one of several; Phi-3's has
/// a default for it.
std::int64_t read_trained_context(const ConfigReader& rope, const ConfigReader& all,
                                  const FamilyRow& family, bool is_one_of_several) {
  constexpr std::int64_t kPhi3 = 4096;
  if (!is_one_of_several && all.has(kTrainedContext)) return all.size(kTrainedContext);
  if (family.family == GptFamily::kPhi3) return kPhi3;
  return rope.has(kTrainedContext) ? rope.size(kTrainedContext) : all.size(kContext);
}

void read_llama3(const ConfigReader& rope, RotaryConfig& rotary) {
  rotary.scaling = Scaling::kLlama3;
  rotary.factor = rope.number("factor");
  rotary.low_frequency = rope.number("low_freq_factor");
  rotary.high_frequency = rope.number("high_freq_factor");
}

/// `factor` counts as in version 5, where 4 took the ratio of the contexts if it knew both.
void read_longrope(const ConfigReader& rope, RotaryConfig& rotary) {
  rotary.scaling = Scaling::kLongRope;
  rotary.short_factors = rope.numbers("short_factor");
  rotary.long_factors = rope.numbers("long_factor");
  if (rope.is_set("attention_factor")) {
    rotary.amplitude = rope.number("attention_factor");
  } else if (rope.is_set("factor")) {
    rotary.amplitude = longrope_amplitude(rope.number("factor"), rotary.trained_context);
  }
}

/// A number that null and 0 leave at its default.
double number_or(const ConfigReader& rope, const char* key, double fallback) {
  const json value = rope.value(key, nullptr);
  return value.is_null() || value == 0 ? fallback : rope.number(key);
}

double yarn_amplitude(double factor, double scale) {
  return factor <= 1.0 ? 1.0 : 0.1 * scale * std::log(factor) + 1.0;
}

/// Transformers looks for `truncate` beside the objects if there are several.
void read_yarn(const ConfigReader& rope, const ConfigReader& all, bool is_one_of_several,
               RotaryConfig& rotary) {
  rotary.scaling = Scaling::kYarn;
  if (!rope.has("factor")) rope.refuse("factor", "must be a number above 0, or null");
  rotary.factor = rope.is_set("factor") ? rope.number("factor")
                                        : static_cast<double>(all.size(kContext)) /
                                              static_cast<double>(rotary.trained_context);
  rotary.fast_turns = number_or(rope, "beta_fast", rotary.fast_turns);
  rotary.slow_turns = number_or(rope, "beta_slow", rotary.slow_turns);
  if (!is_one_of_several) rotary.whole_channels = rope.flag("truncate", true);
  const double scale = number_or(rope, "mscale", 0.0);
  const double of_all = number_or(rope, "mscale_all_dim", 0.0);
  if (rope.is_set("attention_factor")) {
    rotary.amplitude = rope.number("attention_factor");
  } else if (scale != 0.0 && of_all != 0.0) {
    rotary.amplitude = yarn_amplitude(rotary.factor, scale) / yarn_amplitude(rotary.factor, of_all);
  }
}

void read_scaling(const ConfigReader& rope, const ConfigReader& all, const FamilyRow& family,
                  bool is_one_of_several, RotaryConfig& rotary) {
  const char* const type_key = rope.has("rope_type") ? "rope_type" : "type";
  const json type = rope.value(type_key, "default");
  if (type == "default") return;
  const bool phi3 = family.family == GptFamily::kPhi3;
  const bool old_longrope =
      phi3 && (type == "su" || type == "yarn");  // names of Phi-3's first files
  rotary.trained_context = read_trained_context(rope, all, family, is_one_of_several);
  if (type == "longrope" || old_longrope) {
    read_longrope(rope, rotary);
  } else if (phi3) {
    rope.refuse(type_key, "only default and longrope are Phi-3's");
  } else if (type == "llama3") {
    read_llama3(rope, rotary);
  } else if (type == "linear") {
    rotary.scaling = Scaling::kLinear;
    rotary.factor = rope.number("factor");
    rotary.trained_context = 0;
  } else if (type == "dynamic") {
    rotary.scaling = Scaling::kDynamic;
    rotary.factor = rope.number("factor");
    rotary.trained_context = all.size(kContext);
  } else if (type == "yarn") {
    read_yarn(rope, all, is_one_of_several, rotary);
  } else {
    rope.refuse(type_key,
                "only default, linear, dynamic, yarn, llama3 and longrope are computed here");
  }
}

}  // namespace

RotaryConfig read_rotary(const ConfigReader& reader, const FamilyRow& family) {
  const bool old_key = reader.is_set("rope_scaling") && !reader.value("rope_scaling", {}).empty();
  const char* const key = old_key ? "rope_scaling" : "rope_parameters";
  const bool is_set = reader.is_set(key);
  const ConfigReader rope = is_set ? ConfigReader(reader, key) : reader;
  const auto holder = [&](const char* name) { return rope.has(name) ? rope : reader; };
  RotaryConfig rotary;
  rotary.base = holder("rope_theta").number("rope_theta", rotary.base);
  if (is_set) {
    rope.require_known(scaling_keys());
    read_scaling(rope, reader, family, false, rotary);
  }
  const double share = holder(kShare).number(kShare, rotary.share);
  if (family.family == GptFamily::kPhi3) {
    rotary.share = share;
  } else if (rotary.scaling != Scaling::kNone && share != 1.0) {
    holder(kShare).refuse(kShare, "beside scaled frequencies must be 1 for this model_type");
  }  // Without scaling, version 5 rotates all channels of the other families; 4 fails.
  return rotary;
}

RotaryPair read_rotary_pair(const ConfigReader& reader, const FamilyRow& family) {
  constexpr const char *kObjects = "rope_parameters", *kScaling = "rope_scaling";
  constexpr const char *kFull = "full_attention", *kWindowed = "sliding_attention";
  reader.require_value(kShare, {nullptr, 1.0});
  RotaryPair pair{.full = {.base = 1e6}, .windowed = {.base = 1e4}};
  pair.full.base = reader.number("rope_theta", pair.full.base);
  pair.windowed.base = reader.number("rope_local_base_freq", pair.windowed.base);
  const auto read = [&](const ConfigReader& rope, RotaryConfig& rotary) {
    rope.require_known(scaling_keys());
    rope.require_value(kShare, {nullptr, 1.0});
    rotary.base = rope.number("rope_theta", rotary.base);
    read_scaling(rope, reader, family, true, rotary);
  };
  if (reader.is_set(kObjects)) {
    const ConfigReader objects(reader, kObjects);
    objects.require_known({kFull, kWindowed});
    if (objects.is_set(kFull)) read(ConfigReader(objects, kFull), pair.full);
    if (objects.is_set(kWindowed)) read(ConfigReader(objects, kWindowed), pair.windowed);
    if (reader.is_set(kScaling)) {
      reader.refuse(kScaling,
                    "must be null beside rope_parameters, which has an object for each "
                    "kind of layer");
    }
  } else if (reader.is_set(kScaling)) {
    read(ConfigReader(reader, kScaling), pair.full);
  }
  return pair;
}

nlohmann::ordered_json rope_scaling_json(const RotaryConfig& rotary) {
  nlohmann::ordered_json object;
  switch (rotary.scaling) {
    case Scaling::kNone:
      return nullptr;
    case Scaling::kLlama3:
      return {{"rope_type", "llama3"},
              {"factor", rotary.factor},
              {"low_freq_factor", rotary.low_frequency},
              {"high_freq_factor", rotary.high_frequency},
              {kTrainedContext, rotary.trained_context}};
    case Scaling::kLongRope:
      // Version 4 wants these three keys, version 5 takes them, too.
      object = {{"type", "longrope"},
                {"short_factor", rotary.short_factors},
                {"long_factor", rotary.long_factors}};
      break;
    case Scaling::kLinear:
      return {{"rope_type", "linear"}, {"factor", rotary.factor}};
    case Scaling::kDynamic:
      return {{"rope_type", "dynamic"}, {"factor", rotary.factor}};
    case Scaling::kYarn:
      object = {{"rope_type", "yarn"},
                {"factor", rotary.factor},
                {"beta_fast", rotary.fast_turns},
                {"beta_slow", rotary.slow_turns},
                {kTrainedContext, rotary.trained_context}};
      if (!rotary.whole_channels) object["truncate"] = false;
      break;
  }
  if (rotary.amplitude != 0.0) object["attention_factor"] = rotary.amplitude;
  return object;
}

nlohmann::ordered_json rope_parameters_json(const RotaryConfig& rotary) {
  nlohmann::ordered_json object = rope_scaling_json(rotary);
  if (object.is_null()) object = {{"rope_type", "default"}};
  object["rope_theta"] = rotary.base;
  if (rotary.scaling == Scaling::kLongRope) object[kTrainedContext] = rotary.trained_context;
  return object;
}

}  // namespace tessera::pretrained
