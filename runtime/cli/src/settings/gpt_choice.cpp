#include "settings/gpt_choice.h"

#include <algorithm>

#include "settings/gpt_settings.h"
#include "tessera/core/error.h"
#include "tessera/model/adapter.h"
#include "tessera/model/gpt_family.h"
#include "tessera/model/resized_vocabulary.h"

namespace tessera::cli {

PretrainedGpt open_model(const Config& config) {
  try {
    return open_pretrained(config.get<std::string>("init"));
  } catch (const Error& error) {
    // A file that is damaged is as little to read as one that is not there.
    fail(error.code() == ErrorCode::kIo ? ErrorCode::kConfig : error.code(),
         "--init: ", error.what());
  }
}

namespace {

/// The preset of these sizes; "" if there is none.
std::string preset_of(const GptConfig& gpt) {
  for (const std::string& name : gpt_preset_names()) {
    if (has_sizes_of(gpt, gpt_preset(name))) return name;
  }
  return "";
}

/// Opens the model of --init. Sizes that are given besides must be the same.
PretrainedGpt open_init(const Config& config) {
  const auto path = config.get<std::string>("init");
  PretrainedGpt pretrained = open_model(config);
  const GptConfig& own = pretrained.config();
  const GptConfig named = named_model(config.get<std::string>("model"));
  for (const auto& row : size_rows()) {
    const std::string& name = row.setting.name;
    const bool is_given = !config.is_null(name);
    if (!is_given && !config.given("model")) continue;
    const nlohmann::json value = is_given ? nlohmann::json(config.value(name)) : row.read(named);
    const std::string flag = is_given ? flag_name(name) : "--model";
    require(value == row.read(own), ErrorCode::kConfig, flag, " is ",
            is_given ? value.dump()
                     : concat(config.get<std::string>("model"), ", whose ", flag_name(name), " is ",
                              value.dump()),
            ", and the model of --init '", path, "' has ", row.read(own).dump(), "; leave out ",
            flag);
  }
  return pretrained;
}

/// The settings that name adapters, of which one may be given.
std::vector<std::string> given_adapters(const Config& config) {
  std::vector<std::string> given;
  if (!config.is_null("adapter")) given.emplace_back("adapter");
  for (const AdapterKind& kind : adapter_kinds()) {
    if (!config.is_null(kind.setting)) given.emplace_back(kind.setting);
  }
  if (given.size() > 1) {
    fail(ErrorCode::kConfig, flag_name(given[0]), " and ", flag_name(given[1]),
         " are two adapters; give one of them");
  }
  return given;
}

/// Opens the adapters of --adapter, or makes new ones.
void add_adapters(Config& config, GptChoice& choice) {
  for (const std::string& setting : given_adapters(config)) {
    if (setting == "adapter") {
      choice.pretrained = open_adapter_of(config, choice.pretrained);
      continue;
    }
    const AdapterConfig adapter =
        parse_adapter(setting, config.get<std::string>(setting), choice.config);
    if (choice.pretrained) {
      choice.pretrained = with_adapter(*choice.pretrained, adapter);
    } else {
      choice.config.adapter = adapter;
    }
  }
  if (choice.pretrained) {
    const GptConfig& own = choice.pretrained->config();  // a checkpoint or folder says itself
    choice.config.adapter = own.adapter;
    choice.config.base_format = own.base_format;
    choice.config.unquantized = own.unquantized;
    choice.config.labels = own.labels;
  }
  choose_base_format(config, choice.config,
                     choice.pretrained ? choice.pretrained->stored_format() : WeightFormat::kNone);
  const std::string format(to_string(choice.config.base_format));
  require(choice.config.adapter.is_set() || choice.config.base_format == WeightFormat::kNone,
          ErrorCode::kConfig, "--base-format ", format,
          " is for matrices that are not trained; give adapters besides, by --adapter, --lora or "
          "--ia3");
  if (!choice.config.adapter.is_set()) return;
  make_gpt(choice.config);  // refuses what names no module
  constexpr std::string_view kStrategy = "trainable_strategy";
  if (has_setting(config, kStrategy) && !config.given(kStrategy))
    config.set_effective(kStrategy, "zero1");
}

}  // namespace

PretrainedGpt open_adapter_of(const Config& config, const std::optional<PretrainedGpt>& base) {
  const auto path = config.get<std::string>("adapter");
  require(base.has_value(), ErrorCode::kConfig, "--adapter '", path,
          "' needs the model that it is for: give --init a Hugging Face folder");
  try {
    return open_adapter(*base, path);
  } catch (const Error& error) {
    fail(error.code() == ErrorCode::kIo ? ErrorCode::kConfig : error.code(),
         "--adapter: ", error.what());
  }
}

void choose_base_format(Config& config, GptConfig& gpt, WeightFormat stored) {
  constexpr std::string_view kFormat = "base_format";
  if (config.given(kFormat)) {
    const WeightFormat given = parse_weight_format(config.get<std::string>(kFormat));
    require(stored == WeightFormat::kNone || given == stored || given == WeightFormat::kNone,
            ErrorCode::kConfig, "--base-format is ", to_string(given),
            ", and the model of --init is stored in ", to_string(stored),
            ", which would be quantised a second time; leave it out, give none, or name the model "
            "that is not quantised");
    gpt.base_format = given;
    if (given == WeightFormat::kNone) gpt.unquantized.clear();
  }
  config.set_effective(kFormat, std::string(to_string(gpt.base_format)));
}

std::string describe_decoding(const GptConfig& gpt, const PretrainedGpt& from,
                              std::string_view precision) {
  const WeightFormat stored = from.stored_format();
  if (stored == WeightFormat::kNone || stored == gpt.base_format) return "";
  return concat("its ", to_string(stored), " weights are dequantised to ",
                precision == "fp8" ? "bf16" : precision,
                gpt.adapter.is_set() ? "" : ": only a base beside adapters keeps their codes");
}

namespace {

/// Where there is data to read, or a tokenizer is asked for. With --resize-vocabulary the model
/// gets the tokens that it lacks.
void add_tokenizer(Config& config, GptChoice& choice) {
  const auto is_given = [&](const char* name) {
    return has_setting(config, name) && !config.is_null(name);
  };
  const bool reads = is_given("tokenizer") || is_given("data") || is_given("eval_data");
  if (!reads && !resizes_vocabulary(config)) return;
  const std::int64_t known = choice.config.vocab_size;
  if (choice.text.tokenizer) {  // of a preset
    require(known >= choice.text.tokenizer->vocab_size(), ErrorCode::kConfig, "--vocab-size is ",
            known, ", but the tokenizer '", choice.text.path, "' has ",
            choice.text.tokenizer->vocab_size(), " tokens; give at least as many, or leave it out");
  } else {
    choice.text =
        choose_tokenizer(config, known, choice.pretrained ? &*choice.pretrained : nullptr);
  }
  const bool resizes = resizes_vocabulary(config) && choice.pretrained;
  require(!resizes || choice.text.tokenizer.has_value(), ErrorCode::kConfig,
          "--resize-vocabulary adds the tokens of a tokenizer, and there is none; give --tokenizer "
          "FILE or FOLDER");
  if (resizes && choice.text.tokenizer->vocab_size() > known) {
    choice.pretrained = with_vocabulary(*choice.pretrained, choice.text.tokenizer->vocab_size());
    choice.config.vocab_size = choice.pretrained->config().vocab_size;
  }
  if (choice.text.tokenizer) config.set_effective("tokenizer", choice.text.path);
}

}  // namespace

GptChoice choose_gpt(Config& config) {
  GptChoice choice;
  GptConfig& gpt = choice.config;
  std::string preset = gpt_preset_name(config.get<std::string>("model"));
  if (config.is_null("init")) {
    gpt = named_model(config.get<std::string>("model"));
    if (preset.empty()) choice.model_folder = config.get<std::string>("model");
    if (preset.empty()) preset = preset_of(gpt);
    if (!given_tokenizer(config).empty()) {
      choice.text = choose_tokenizer(config, 0, nullptr);
      const std::int64_t tokens = choice.text.tokenizer->vocab_size();
      const bool is_preset = !gpt_preset_name(config.get<std::string>("model")).empty();
      gpt.vocab_size = is_preset ? tokens : std::max(tokens, gpt.vocab_size);
    }
    for (const auto& row : size_rows()) {
      if (!config.is_null(row.setting.name)) row.write(gpt, config.value(row.setting.name));
    }
  } else {
    choice.pretrained = open_init(config);
    gpt = choice.pretrained->config();
    preset = preset_of(gpt);
  }
  require(!resizes_vocabulary(config) || !config.is_null("init"), ErrorCode::kConfig,
          "--resize-vocabulary adds rows to the model of --init, which is not given; a new model "
          "has its tokenizer's vocabulary");
  choose_labels(config, choice);
  add_adapters(config, choice);
  choose_task(config, choice.config);
  add_tokenizer(config, choice);
  if (!preset.empty()) {
    config.set_effective("model", preset);
  } else if (!config.is_null("init")) {
    config.set_effective("model", nullptr);  // otherwise it is the folder that was given
  }
  for (const auto& row : size_rows()) config.set_effective(row.setting.name, row.read(gpt));
  dropout_row().write(gpt, config.value("dropout"));
  const std::int64_t most = gpt.context_length - gpt.adapter.prompt_tokens();
  if (config.is_null("sequence_length")) {
    constexpr std::int64_t kMostByDefault = 4096;  // contexts of 131,072 are for inference
    config.set_effective("sequence_length", std::min(most, kMostByDefault));
  }
  choice.sequence_length = config.get<std::int64_t>("sequence_length");
  choice.has_starts =
      (has_setting(config, "packing") && config.get<bool>("packing")) || family_of(gpt).encoder;
  require(choice.sequence_length <= most, ErrorCode::kConfig, "--sequence-length is ",
          choice.sequence_length, ", but the model's context has ", most,
          most == 1 ? " token" : " tokens", most < gpt.context_length ? " behind the prompt" : "",
          "; give --sequence-length at most that",
          most < gpt.context_length ? ", or fewer tokens to the prompt" : "",
          config.is_null("init") ? ", or raise --context-length" : "");
  choice.name = model_label(preset.empty() ? gpt_preset_names().front() : preset, gpt);
  return choice;
}

Model make_model(const GptChoice& choice) {
  Model model = make_gpt(choice.config);
  model.name = choice.name;
  GptConfig as_used = choice.config;
  as_used.context_length = choice.sequence_length;
  model.flops_per_item = gpt_flops_per_token(as_used);
  return model;
}

std::vector<NamedText> adopt_parameters(const GptChoice& choice, TrainerOptions& options) {
  const LoraOptions* const lora = choice.config.adapter.lora();
  const bool takes_from_base =
      lora != nullptr &&
      (lora->dora || lora->initialization == LoraOptions::Initialization::kPissa);
  require(choice.pretrained.has_value() || !takes_from_base, ErrorCode::kConfig,
          "DoRA and PiSSA begin with what they take from a model's weights; give --init the model, "
          "or leave them out of --lora");
  if (!choice.pretrained) return {};
  options.initial_parameters = [from = *choice.pretrained](TrainingState& state, Stream& stream) {
    from.load(state, stream);
  };
  return choice.pretrained->identity();
}

std::int64_t TokenShapes::fill(std::int64_t, std::int64_t, TensorView, TensorView) const {
  fail(ErrorCode::kInternal, "a plan has no data");
}

}  // namespace tessera::cli
