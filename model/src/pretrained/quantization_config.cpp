#include "pretrained/quantization_config.h"

#include "published_parts.h"
#include "tessera/core/error.h"

namespace tessera::pretrained {
namespace {

using nlohmann::json;

constexpr const char* kKey = "quantization_config";
constexpr const char* kMethod = "quant_method";
constexpr const char* kType = "bnb_4bit_quant_type";

/// Version 5 writes flags under two names.
bool loads_in(const ConfigReader& reader, const std::string& key) {
  return reader.flag(reader.has(key) ? key : "_" + key, false);
}

WeightFormat short_format(const ConfigReader& reader) {
  const json type = reader.value(kType, "fp4");  // the class's default
  const bool twice = reader.flag("bnb_4bit_use_double_quant", false);
  if (type == "nf4") return twice ? WeightFormat::kNf4Double : WeightFormat::kNf4;
  if (type != "fp4") reader.refuse(kType, "nf4 and fp4 can be read");
  return twice ? WeightFormat::kFp4Double : WeightFormat::kFp4;
}

}  // namespace

WeightFormat read_quantization(const ConfigReader& config) {
  if (config.value(kKey, nullptr).is_null()) return WeightFormat::kNone;
  const ConfigReader reader(config, kKey);
  const bool eight = loads_in(reader, "load_in_8bit"), four = loads_in(reader, "load_in_4bit");
  if (reader.value(kMethod, four || eight ? "bitsandbytes" : "") != "bitsandbytes") {
    reader.refuse(kMethod,
                  "only bitsandbytes' weights can be read: download the model that is not "
                  "quantised, and give `base_format`");
  }
  if (four == eight) {
    reader.refuse("load_in_4bit", "either it or load_in_8bit must be true");
  }
  if (reader.flag("llm_int8_has_fp16_weight", false)) {
    reader.refuse("llm_int8_has_fp16_weight",
                  "only weights that are quantised can be read: set it to false and write the "
                  "folder anew");
  }
  return eight ? WeightFormat::kInt8 : short_format(reader);
}

WeightFormat quantization_in(const std::string& config_file) {
  return read_quantization(ConfigReader(config_file));
}

namespace {

/// Null: those that transformers leaves out by itself, which are the head's.
nlohmann::ordered_json skipped_modules(const GptConfig& config) {
  if (config.unquantized.empty()) return nullptr;
  nlohmann::ordered_json modules = nlohmann::ordered_json::array();
  modules.push_back(config.labels.empty() ? "lm_head" : "score");
  for (const std::string& parameter : config.unquantized) {
    for (const PublishedPart& part : published_parts(config, parameter, 0)) {
      const std::string name = published_name(config, part.name);
      modules.push_back(name.substr(0, name.rfind('.')));
    }
  }
  return modules;
}

}  // namespace

nlohmann::ordered_json quantization_json(WeightFormat format, const GptConfig& config) {
  const bool four = has_short_codes(format);
  const bool nf4 = four && code_table(format) == code_table(WeightFormat::kNf4);
  return {{"_load_in_4bit", four},
          {"_load_in_8bit", !four},
          {"bnb_4bit_compute_dtype", "float32"},
          {"bnb_4bit_quant_storage", "uint8"},
          {"bnb_4bit_quant_type", nf4 ? "nf4" : "fp4"},
          {"bnb_4bit_use_double_quant", has_coded_scales(format)},
          {"llm_int8_enable_fp32_cpu_offload", false},
          {"llm_int8_has_fp16_weight", false},
          {"llm_int8_skip_modules", skipped_modules(config)},
          {"llm_int8_threshold", 6.0},
          {"load_in_4bit", four},
          {"load_in_8bit", !four},
          {"quant_method", "bitsandbytes"}};
}

}  // namespace tessera::pretrained
