#include "settings/gpt_settings.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "settings/model_names.h"
#include "tessera/checkpoint/checkpoint_folder.h"
#include "tessera/core/error.h"
#include "tessera/model/adapter.h"
#include "tessera/model/hugging_face.h"
#include "tessera/trainer/bound_setting.h"

namespace tessera::cli {
namespace {

constexpr double kMaxSize = 1 << 24;
constexpr double kMaxLayers = 1 << 16;

void check_below_one(const nlohmann::json& value) {
  require(value.get<double>() < 1.0, ErrorCode::kConfig, value.dump(),
          " is out of range; it must be at least 0 and below 1");
}

using Rows = std::vector<BoundSetting<GptConfig>>;

/// Sizes of the preset, each of which can be given.
const Rows& size_rows() {
  static const Rows rows = [] {
    const Setting size{.minimum = 1, .maximum = kMaxSize};
    Rows all{
        bound<&GptConfig::layers>("layers", "transformer blocks [the model's]",
                                  {.minimum = 1, .maximum = kMaxLayers}),
        bound<&GptConfig::heads>("heads", "attention heads [the model's]", size),
        bound<&GptConfig::width>("width", "channels; a multiple of the heads [the model's]", size),
        bound<&GptConfig::vocab_size>(
            "vocab_size", "tokens that the model knows; bytes need 256 [the model's]", size),
        bound<&GptConfig::context_length>("context_length", "longest sequence [the model's]", size),
    };
    for (auto& row : all) row.setting.fallback = nullptr;
    return all;
  }();
  return rows;
}

BoundSetting<GptConfig> dropout_row() {
  return bound<&GptConfig::dropout>("dropout", "probability of dropping an activation",
                                    {.minimum = 0, .check = check_below_one});
}

std::vector<Setting> in_group(const char* group, std::vector<Setting> settings) {
  for (Setting& setting : settings) setting.group = group;
  return settings;
}

std::vector<std::string> format_names() {
  std::vector<std::string> names{std::string(to_string(WeightFormat::kNone))};
  for (const WeightFormat format : weight_formats()) names.emplace_back(to_string(format));
  return names;
}

}  // namespace

std::vector<Setting> model_settings() {
  std::vector<Setting> all = settings_of(size_rows());
  all.insert(
      all.begin(),
      {.name = "model",
       .fallback = "gpt2-tiny",
       .help = concat("a preset, or a Hugging Face folder whose config.json it is, which the sizes "
                      "below change: ",
                      model_names()),
       .check = [](const nlohmann::json& value) { check_model_name(value.get<std::string>()); }});
  all.push_back({.name = "init",
                 .help = "start from trained weights, whose model it is then: a checkpoint, of "
                         "which the parameters are taken, a Hugging Face folder, or a model .bin "
                         "of llm.c",
                 .check =
                     [](const nlohmann::json& value) {
                       require(!value.get<std::string>().empty(), ErrorCode::kConfig,
                               "is empty; give a path, or leave it out");
                     },
                 .must_agree = MustAgree::kNone});  // processes compare what is there
  all.push_back({.name = "adapter",
                 .help = "adapters that are trained instead of the model of --init: a folder as "
                         "PEFT writes it, whose weights they start from, or an "
                         "adapter_config.json; its peft_type is LORA, IA3 or PROMPT_TUNING",
                 .must_agree = MustAgree::kNone});
  for (const AdapterKind& kind : adapter_kinds()) {
    all.push_back({.name = std::string(kind.setting), .help = std::string(kind.help)});
  }
  all.push_back({.name = "base_format",
                 .fallback = "none",
                 .help = "how the frozen matrices beside adapters are stored, as bitsandbytes has "
                         "them; none: as --precision says; double: scales are quantised, too "
                         "[what the folder of --init has, else none]",
                 .choices = format_names()});
  all.push_back(dropout_row().setting);
  all.push_back({.name = "tokenizer",
                 .help =
                     "a tokenizer.json (BPE as GPT-2, Llama, Mistral, Qwen and Phi-3 have it) by "
                     "which text is read, a folder that has one, or bytes, which are tokens then; "
                     "of a preset the vocabulary is its, unless a larger one is given [that of the "
                     "folder of --init or --model; of a preset, or of 256 tokens, bytes]",
                 .must_agree = MustAgree::kNone});
  all.push_back({.name = "chat_template",
                 .help = "the template by which messages become text: a .jinja file, or a "
                         "tokenizer_config.json [chat_template.jinja or tokenizer_config.json "
                         "beside --tokenizer, or in the folder of --init]",
                 .must_agree = MustAgree::kNone});
  all.push_back({.name = "chat_template_kwargs",
                 .help = "a JSON object of the template's variables, such as "
                         "{\"enable_thinking\": false}",
                 .must_agree = MustAgree::kNone});  // as above
  all.push_back({.name = "sequence_length",
                 .type = SettingType::kInteger,
                 .help = "tokens per sample [the context length, at most 4096]",
                 .minimum = 1,
                 .maximum = kMaxSize});
  return in_group("Model", std::move(all));
}

std::vector<Setting> data_settings() {
  std::vector<Setting> all = in_group(
      "Data",
      {{.name = "data",
        .help = "training data: a text file, a folder of texts, .bin files of token "
                "ids, or a .jsonl file of examples, whose lines are {\"prompt\": ..., "
                "\"completion\": ...}, of which completions are learnt, {\"messages\": [...]}, of "
                "which what assistants write is, or {\"text\": ...}",
        .must_agree = MustAgree::kNone},
       {.name = "data_kind",
        .fallback = "auto",
        .help = "contents of the files; auto: .bin files are tokens, .jsonl files are "
                "examples, others are text",
        .choices = {"auto", "text", "tokens", "examples"}},
       {.name = "epochs",
        .type = SettingType::kNumber,
        .help = "passes over the data, instead of --steps: the last step may begin the "
                "next",
        .minimum = 0,
        .maximum = 1e6},
       bound<&DatasetOptions::packing>(
           "packing",
           "of examples of --data: put as many into a sample as fit, each with positions and "
           "attention of its own",
           {.must_agree = MustAgree::kNone})  // processes compare samples
           .setting,
       bound<&DatasetOptions::shuffle>("shuffle",
                                       "read samples in random order, another in each epoch")
           .setting});
  for (Setting& setting :
       in_group("Evaluation",
                {{.name = "eval_data",
                .help = "evaluation data, as --data; its samples are read in order",
                .must_agree = MustAgree::kNone},
                 {.name = "eval_tokens",
                 .type = SettingType::kInteger,
                 .help = "tokens of --eval-data to evaluate on, rounded up to whole samples [all]",
                 .minimum = 1}})) {
    all.push_back(std::move(setting));
  }
  return all;
}

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

/// Of --init. What is given besides must say the same.
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

}  // namespace

namespace {

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

/// Those of --adapter, or new ones.
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
  const bool plans =
      std::ranges::find(config.table(), kStrategy, &Setting::name) != config.table().end();
  if (plans && !config.given(kStrategy)) config.set_effective(kStrategy, "zero1");
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
  return concat("its ", to_string(stored), " weights are dequantised to ", precision,
                gpt.adapter.is_set() ? "" : ": only a base beside adapters keeps their codes");
}

namespace {

bool has_setting(const Config& config, std::string_view name) {
  return std::ranges::find(config.table(), name, &Setting::name) != config.table().end();
}

/// Where there is data to read, or a tokenizer is asked for.
void add_tokenizer(Config& config, GptChoice& choice) {
  const auto is_given = [&](const char* name) {
    return has_setting(config, name) && !config.is_null(name);
  };
  if (!is_given("tokenizer") && !is_given("data") && !is_given("eval_data")) return;
  const std::int64_t known = choice.config.vocab_size;
  if (choice.text.tokenizer) {  // of a preset
    require(known >= choice.text.tokenizer->vocab_size(), ErrorCode::kConfig, "--vocab-size is ",
            known, ", but the tokenizer '", choice.text.path, "' has ",
            choice.text.tokenizer->vocab_size(), " tokens; give at least as many, or leave it out");
  } else {
    choice.text =
        choose_tokenizer(config, known, choice.pretrained ? &*choice.pretrained : nullptr);
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
    for (const auto& [setting, read, write] : size_rows()) {
      if (!config.is_null(setting.name)) write(gpt, config.value(setting.name));
    }
  } else {
    choice.pretrained = open_init(config);
    gpt = choice.pretrained->config();
    preset = preset_of(gpt);
  }
  add_adapters(config, choice);
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
  choice.packing = has_setting(config, "packing") && config.get<bool>("packing");
  require(choice.sequence_length <= most, ErrorCode::kConfig, "--sequence-length is ",
          choice.sequence_length, ", but the model's context has ", most,
          most < gpt.context_length ? " tokens behind the prompt" : " tokens",
          "; give --sequence-length at most that or raise ", "--context-length");
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
  if (!choice.pretrained) return {};
  options.initial_parameters = [from = *choice.pretrained](TrainingState& state, Stream& stream) {
    from.load(state, stream);
  };
  return choice.pretrained->identity();
}

std::optional<ChatTemplateOptions> chat_template_of(const Config& config) {
  std::vector<std::string> folders;
  if (const std::string tokenizer = given_tokenizer(config); !tokenizer.empty()) {
    const std::filesystem::path file(tokenizer);
    folders.push_back(file.has_parent_path() ? file.parent_path().string() : ".");
  }
  if (!config.is_null("init")) {
    folders.push_back(config.get<std::string>("init"));
    // Of a folder of checkpoints, that which is meant.
    folders.push_back(find_checkpoint(folders.back()));
  }
  std::erase(folders, "");
  ChatTemplateOptions options;
  if (!config.is_null("chat_template")) options.path = config.get<std::string>("chat_template");
  for (const std::string& folder : folders) {
    if (options.path.empty()) options.path = find_chat_template(folder);
    for (const char* const name : {"tokenizer_config.json", "special_tokens_map.json"}) {
      const std::filesystem::path file = std::filesystem::path(folder) / name;
      std::error_code error;
      const bool is_there = std::filesystem::is_regular_file(file, error);
      if (options.tokens_path.empty() && is_there) options.tokens_path = file.string();
    }
  }
  if (!config.is_null("chat_template_kwargs")) {
    options.variables = config.get<std::string>("chat_template_kwargs");
  }
  if (options.path.empty()) return std::nullopt;
  return options;
}

namespace {

/// Checked against the vocabulary.
TokenDataset open_checked(const DatasetOptions& options) {
  try {
    TokenDataset dataset(options);
    dataset.check_vocabulary(options.vocab_size);
    return dataset;
  } catch (const Error& error) {
    // A file that is damaged, or a pipe, is as little to read as one that is not there.
    if (error.code() != ErrorCode::kIo) throw;
    fail(ErrorCode::kConfig, error.what());
  }
}

DatasetOptions dataset_options(const Config& config, const GptChoice& choice, const char* setting) {
  DatasetOptions options;
  options.path = config.get<std::string>(setting);
  options.kind = parse_data_kind(config.get<std::string>("data_kind"));
  options.sequence_length = choice.sequence_length;
  options.vocab_size = choice.config.vocab_size;
  options.tokenizer = choice.text.tokenizer;
  options.no_text = choice.text.no_text;
  options.end_token = choice.text.end_token;
  options.chat_template = chat_template_of(config);
  return options;
}

}  // namespace

TokenDataset open_dataset(const Config& config, const GptChoice& choice) {
  require(
      !config.is_null("data") && !config.get<std::string>("data").empty(), ErrorCode::kConfig,
      "nothing to train on: give --data a text file, a folder of texts or .bin files of tokens");
  DatasetOptions options = dataset_options(config, choice, "data");
  options.seed = config.get<std::uint64_t>("seed");
  options.shuffle = config.get<bool>("shuffle");
  options.packing = config.get<bool>("packing");
  return open_checked(options);
}

namespace {

std::int64_t samples_per_step(const Config& config) {
  const Mesh mesh = make_mesh(static_cast<int>(config.get<std::int64_t>("ranks")), 1);
  return divide_samples(mesh, config.get<std::int64_t>("accumulate"),
                        config.get<std::int64_t>("micro_batch"))
      .samples_per_step();
}

}  // namespace

std::string epochs_note(const Config& config, const TokenDataset& dataset) {
  if (config.is_null("epochs") || dataset.samples_per_epoch() >= samples_per_step(config)) {
    return "";
  }
  return concat("--data has ", dataset.samples_per_epoch(), " samples, and a step takes ",
                samples_per_step(config), ": each step repeats samples; lower --micro-batch, ",
                "--accumulate or --ranks");
}

void choose_steps(Config& config, const TokenDataset& dataset) {
  if (config.is_null("epochs")) return;
  for (const char* const other : {"steps", "auto_batch"}) {
    require(!config.is_typed(other), ErrorCode::kConfig, "--epochs says how many steps there are ",
            "by the samples of a step; leave out ", flag_name(other));
  }
  const double samples =
      config.get<double>("epochs") * static_cast<double>(dataset.samples_per_epoch());
  const double steps = std::ceil(samples / static_cast<double>(samples_per_step(config)));
  require(steps >= 1.0 && steps < 1e9, ErrorCode::kConfig, "--epochs ",
          config.get<double>("epochs"), " of ", dataset.samples_per_epoch(),
          " samples are no number of steps; give more than 0");
  config.set_effective("steps", static_cast<std::int64_t>(steps));
}

std::optional<TokenDataset> open_evaluation(const Config& config, const GptChoice& choice) {
  if (config.is_null("eval_data")) {
    for (const char* const setting : {"eval_tokens", "eval_every", "patience", "save_best"}) {
      require(!config.is_typed(setting), ErrorCode::kConfig, flag_name(setting),
              " needs --eval-data, the data to evaluate on");
    }
    return std::nullopt;
  }
  DatasetOptions options = dataset_options(config, choice, "eval_data");
  options.shuffle = false;
  return open_checked(options);
}

std::int64_t evaluation_samples(const Config& config, const TokenDataset& dataset) {
  const std::int64_t all = dataset.samples_per_epoch();
  if (config.is_null("eval_tokens")) return all;
  const std::int64_t length = dataset.options().sequence_length;
  return std::min(all, (config.get<std::int64_t>("eval_tokens") + length - 1) / length);
}

std::int64_t TokenShapes::fill(std::int64_t, std::int64_t, TensorView, TensorView) const {
  fail(ErrorCode::kInternal, "a plan has no data");
}

}  // namespace tessera::cli
