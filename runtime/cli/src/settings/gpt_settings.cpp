#include "settings/gpt_settings.h"

#include <algorithm>

#include "settings/gpt_choice.h"
#include "tessera/core/error.h"
#include "tessera/model/adapter_config.h"
#include "tessera/model/dataset.h"

namespace tessera::cli {
namespace {

constexpr double kMaxSize = 1 << 24;
constexpr double kMaxLayers = 1 << 16;

void check_below_one(const nlohmann::json& value) {
  require(value.get<double>() < 1.0, ErrorCode::kConfig, value.dump(),
          " is out of range; it must be at least 0 and below 1");
}

using Rows = std::vector<BoundSetting<GptConfig>>;

std::vector<std::string> format_names() {
  std::vector<std::string> names{std::string(to_string(WeightFormat::kNone))};
  for (const WeightFormat format : weight_formats()) names.emplace_back(to_string(format));
  return names;
}

}  // namespace

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

bool has_setting(const Config& config, std::string_view name) {
  return find_setting(config.table(), name) != nullptr;
}

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
                 .check = check_path,
                 .must_agree = MustAgree::kNone});  // processes compare what is there
  all.push_back({.name = "adapter",
                 .help = "adapters that are trained instead of the model of --init: a folder as "
                         "PEFT writes it, whose weights they start from, or an "
                         "adapter_config.json; its peft_type is LORA, IA3, PROMPT_TUNING, P_TUNING "
                         "or PREFIX_TUNING",
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
  all.push_back({.name = "resize_vocabulary",
                 .type = SettingType::kFlag,
                 .fallback = false,
                 .help = "give the model of --init rows for the tokens of its tokenizer that it "
                         "lacks, each the mean of those that are there; --export has them, too",
                 .must_agree = MustAgree::kNone});  // processes compare the vocabulary
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
  for (Setting& setting : label_settings()) all.push_back(std::move(setting));
  return in_group("Model", std::move(all));
}

std::vector<Setting> data_settings() {
  std::vector<Setting> all = in_group(
      "Data",
      {{.name = "data",
        .help = "training data: a text file, a folder of texts, .bin files of token "
                "ids, or .jsonl files of examples, whose lines are {\"prompt\": ..., "
                "\"completion\": ...}, of which completions are learnt, {\"messages\": [...]}, of "
                "which what assistants write is, or {\"text\": ...}, .parquet or .arrow files with "
                "such "
                "columns, or a folder of them; several, given one by one or "
                "with commas between, are mixed in the ratio of their sizes, or of weights: "
                "a.jsonl=0.7,b.jsonl=0.3",
        .must_agree = MustAgree::kNone},
       {.name = "data_kind",
        .fallback = "auto",
        .help = "contents of the files; auto: .bin files are tokens, .jsonl, .parquet "
                "and .arrow files are examples, others are text",
        .choices = {"auto", "text", "tokens", "examples"}},
       {.name = "epochs",
        .type = SettingType::kNumber,
        .help = "passes over the data, instead of --steps: the last step may begin the "
                "next; of several data, until each has been read once",
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
  const std::vector<Setting> evaluation{
      {.name = "eval_data",
       .help = "evaluation data, as --data; its samples are read in order",
       .must_agree = MustAgree::kNone},
      {.name = "eval_tokens",
       .type = SettingType::kInteger,
       .help = "tokens of --eval-data to evaluate on, rounded up to whole samples [all]",
       .minimum = 1}};
  std::ranges::move(in_group("Evaluation", evaluation), std::back_inserter(all));
  return all;
}

}  // namespace tessera::cli
