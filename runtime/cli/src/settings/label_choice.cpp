#include "settings/gpt_choice.h"

#include <algorithm>
#include <set>
#include <utility>

#include "settings/data_choice.h"
#include "settings/gpt_settings.h"
#include "tessera/core/error.h"
#include "tessera/core/text.h"
#include "tessera/model/classification.h"
#include "tessera/model/gpt_family.h"

namespace tessera::cli {
namespace {

constexpr const char* kTask = "task";
constexpr const char* kLabels = "labels";
constexpr const char* kClassification = "classification";
constexpr const char* kMaskedTokens = "masked-lm";
constexpr const char* kProbability = "mlm_probability";

bool is_given(const Config& config, const char* name) {
  return has_setting(config, name) && !config.is_null(name);
}

/// Whether the labels are numbers in the data.
bool are_numbers(const std::vector<std::string>& labels) {
  return labels == numbered_labels(std::ssize(labels));
}

/// The labels of all of --data.
std::vector<std::string> labels_of_data(const Config& config) {
  require(is_given(config, "data"), ErrorCode::kConfig,
          "--task classification begins with a model without labels; name them: --labels "
          "negative,positive, in the order of their numbers");
  std::vector<std::string> labels;
  for (const WeightedPath& one : parse_data(config.get<std::string>("data"))) {
    std::vector<std::string> here;
    try {
      here = labels_in(one.path);
    } catch (const Error& error) {
      fail(error.code() == ErrorCode::kIo ? ErrorCode::kConfig : error.code(), error.what());
    }
    require(labels.empty() || are_numbers(here) == are_numbers(labels), ErrorCode::kConfig, "'",
            one.path, "' has ", are_numbers(here) ? "numbers" : "names",
            " as labels, and the data before it ", are_numbers(here) ? "names" : "numbers",
            "; write all of one kind");
    const bool more_numbers = are_numbers(here) && here.size() > labels.size();
    if (more_numbers) labels = here;
    if (are_numbers(here)) continue;
    std::set<std::string> all(here.begin(), here.end());
    all.insert(labels.begin(), labels.end());
    labels.assign(all.begin(), all.end());
  }
  require(labels.size() > 1, ErrorCode::kConfig, "'", config.get<std::string>("data"), "' has ",
          labels.empty() ? "no labels" : concat("no label but '", labels.front(), "'"),
          "; a classifier tells at least two apart: name all by --labels");
  return labels;
}

/// A model with labels has no head for masked tokens.
void check_no_masks(const Config& config, const std::vector<std::string>& labels) {
  require(labels.empty() || config.get<std::string>(kTask) != kMaskedTokens, ErrorCode::kConfig,
          "--task is masked-lm, and the model of --init classifies ", labels.size(),
          " labels; leave out --task, or name the model that it was before");
}

}  // namespace

std::vector<Setting> label_settings() {
  return {{.name = kTask,
           .fallback = "text",
           .help = "what is learnt; text: the next token; classification: the label of each text "
                   "of --data, lines of {\"text\": ..., \"label\": ...}, by a new head, or that of "
                   "a model of --init that has labels; masked-lm: masked tokens of texts, by an "
                   "encoder [what the model of --init does; an encoder: masked-lm]",
           .choices = {"text", kClassification, kMaskedTokens},
           .must_agree = MustAgree::kNone},  // processes compare the labels of their data
          {.name = kLabels,
           .help = "of --task classification: the names of the labels, with commas between, in the "
                   "order of their numbers [those of --init, else of --data, in order]",
           .must_agree = MustAgree::kNone},
          {.name = kProbability,
           .type = SettingType::kNumber,
           .help = "of --task masked-lm: the probability that a token is to be told; of such "
                   "tokens 80 % are masked, 10 % are random ones and 10 % stay [0.15]",
           .check =
               [](const nlohmann::json& value) {
                 const auto share = value.get<double>();
                 require(share > 0.0 && share < 1.0, ErrorCode::kConfig, value.dump(),
                         " is out of range; it must be above 0 and below 1");
               },
           .must_agree = MustAgree::kNone}};  // as above
}

void choose_labels(Config& config, GptChoice& choice) {
  if (!has_setting(config, kTask)) return;
  const bool asks = config.get<std::string>(kTask) == kClassification;
  const std::vector<std::string> own = choice.config.labels;
  require(
      own.empty() || asks || !config.is_typed(kTask) || config.get<std::string>(kTask) != "text",
      ErrorCode::kConfig, "--task is text, and the model of --init classifies ", own.size(),
      " labels; leave out --task, or name a model that writes text");
  check_no_masks(config, own);
  require(!is_given(config, kLabels) || asks || !own.empty(), ErrorCode::kConfig,
          "--labels are for --task classification; give that, or leave them out");
  if (!asks && own.empty()) return;
  const bool is_named = is_given(config, kLabels);
  // An adapter that has been trained has a head of its own.
  if (own.empty() && !is_named && !is_given(config, "data") && is_given(config, "adapter")) return;
  std::vector<std::string> labels = is_named ? split_text(config.get<std::string>(kLabels), ',')
                                    : own.empty() ? labels_of_data(config)
                                                  : own;
  if (choice.pretrained) {
    choice.pretrained = with_labels(*choice.pretrained, std::move(labels));
    choice.config.labels = choice.pretrained->config().labels;
  } else {
    choice.config.labels = std::move(labels);
    make_gpt(choice.config);  // refuses what does not fit
  }
  config.set_effective(kTask, kClassification);
  if (has_setting(config, kLabels)) {
    config.set_effective(kLabels, tessera::joined(choice.config.labels, ","));
  }
}

std::string unread_labels_note(const Config& config, const GptConfig& gpt) {
  const bool tells_masks = family_of(gpt).encoder && gpt.labels.empty();
  if (!tells_masks || config.given(kTask) || !is_given(config, "data")) return "";
  for (const WeightedPath& one : parse_data(config.get<std::string>("data"))) {
    if (!has_labels(one.path)) continue;
    return concat("masked tokens of the texts are learnt, and the labels of '", one.path,
                  "' are not read; give --task classification to learn these, or --task masked-lm");
  }
  return "";
}

void choose_task(Config& config, const GptConfig& gpt) {
  if (!has_setting(config, kTask)) return;
  const auto task = config.get<std::string>(kTask);
  const FamilyRow& family = family_of(gpt);
  const bool tells_masks = family.encoder && gpt.labels.empty();
  require(task != kMaskedTokens || family.encoder, ErrorCode::kConfig,
          "--task masked-lm is for encoders (bert), and a ", family.name,
          " tells the next token; leave it out, or name another model");
  check_no_masks(config, gpt.labels);  // an adapter may have brought some
  require(!tells_masks || task != "text" || !config.is_typed(kTask), ErrorCode::kConfig, "a ",
          family.name,
          " is an encoder, which tells no next token; give --task masked-lm or "
          "classification, or name a model that writes text");
  if (has_setting(config, kProbability)) {
    require(tells_masks || config.is_null(kProbability), ErrorCode::kConfig,
            "--mlm-probability is of --task masked-lm, for encoders; leave it out");
    if (tells_masks && config.is_null(kProbability)) config.set_effective(kProbability, 0.15);
  }
  if (tells_masks && (task == "text" || task == "loss")) {
    config.set_effective(kTask, kMaskedTokens);
  }
}

}  // namespace tessera::cli
