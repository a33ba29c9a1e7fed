#include "settings/data_choice.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>
#include <vector>

#include "settings/data_list.h"
#include "tessera/checkpoint/checkpoint_folder.h"
#include "tessera/core/error.h"
#include "tessera/model/gpt_family.h"
#include "tessera/model/hugging_face.h"
#include "tessera/model/tokenizer_folder.h"

namespace tessera::cli {

std::optional<ChatTemplateOptions> chat_template_of(const Config& config) {
  std::vector<std::string> folders;
  if (const std::string tokenizer = given_tokenizer(config); !tokenizer.empty()) {
    const std::filesystem::path file(tokenizer);
    folders.push_back(file.has_parent_path() ? file.parent_path().string() : ".");
  }
  if (!config.is_null("init")) {
    folders.push_back(config.get<std::string>("init"));
    // The checkpoint that is meant, if the folder has several.
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

/// Data that `open` opens, checked against the vocabulary.
template <typename Open>
auto open_checked(std::int64_t vocab_size, const Open& open) {
  try {
    auto data = open();
    if constexpr (requires { data.sources(); }) {
      for (const TokenDataset& source : data.sources()) source.check_vocabulary(vocab_size);
    } else {
      data.check_vocabulary(vocab_size);
    }
    return data;
  } catch (const Error& error) {
    // A file that is damaged, or a pipe, is as little to read as one that is not there.
    if (error.code() != ErrorCode::kIo) throw;
    fail(ErrorCode::kConfig, error.what());
  }
}

/// How tokens are hidden from an encoder: the tokenizer's mask token is that of its configuration,
/// or else BERT's.
TokenMasking masking_of(const Config& config, const GptChoice& choice) {
  const TokenizerChoice& text = choice.text;
  const std::string why = text.no_text.empty()
                              ? "bytes have no mask token; give --tokenizer FILE or FOLDER, or "
                                "--task classification with labels"
                              : text.no_text;
  require(text.tokenizer.has_value(), ErrorCode::kConfig, "the model is a ",
          family_of(choice.config).name, ", an encoder, which tells masked tokens, and ", why);
  const std::filesystem::path folder = std::filesystem::path(text.path).parent_path();
  std::string mask = special_token_of(folder.empty() ? "." : folder.string(), "mask_token");
  if (mask.empty()) mask = "[MASK]";
  try {
    return tessera::masking_of(*text.tokenizer, mask, config.get<double>("mlm_probability"));
  } catch (const Error& error) {
    fail(error.code(), "'", text.path, "': ", error.what());
  }
}

DatasetOptions dataset_options(const Config& config, const GptChoice& choice) {
  DatasetOptions options;
  options.kind = parse_data_kind(config.get<std::string>("data_kind"));
  options.sequence_length = choice.sequence_length;
  options.vocab_size = choice.config.vocab_size;
  options.labels = choice.config.labels;
  options.encoder = family_of(choice.config).encoder;
  if (options.encoder && options.labels.empty()) options.masking = masking_of(config, choice);
  options.tokenizer = choice.text.tokenizer;
  options.no_text = choice.text.no_text;
  options.end_token = choice.text.end_token;
  options.chat_template = chat_template_of(config);
  return options;
}

}  // namespace

DataMixture open_dataset(const Config& config, const GptChoice& choice) {
  require(
      !config.is_null("data") && !config.get<std::string>("data").empty(), ErrorCode::kConfig,
      "nothing to train on: give --data a text file, a folder of texts or .bin files of tokens");
  DatasetOptions options = dataset_options(config, choice);
  options.seed = config.get<std::uint64_t>("seed");
  options.shuffle = config.get<bool>("shuffle");
  options.packing = config.get<bool>("packing");
  std::vector<MixedData> sources;
  for (WeightedPath& source : parse_data(config.get<std::string>("data"))) {
    options.path = std::move(source.path);
    sources.push_back({options, source.weight});
  }
  return open_checked(options.vocab_size, [&] { return DataMixture(std::move(sources)); });
}

namespace {

std::int64_t samples_per_step(const Config& config) {
  const Mesh mesh = make_mesh(static_cast<int>(config.get<std::int64_t>("ranks")), 1);
  return divide_samples(mesh, config.get<std::int64_t>("accumulate"),
                        config.get<std::int64_t>("micro_batch"))
      .samples_per_step();
}

}  // namespace

std::string epochs_note(const Config& config, const DataMixture& dataset) {
  if (config.is_null("epochs") || dataset.samples_per_epoch() >= samples_per_step(config)) {
    return "";
  }
  return concat("--data has ", dataset.samples_per_epoch(), " samples, and a step takes ",
                samples_per_step(config), ": each step repeats samples; lower --micro-batch, ",
                "--accumulate or --ranks");
}

void choose_steps(Config& config, const DataMixture& dataset) {
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
  const auto path = config.get<std::string>("eval_data");
  require(parse_data(path).size() == 1, ErrorCode::kConfig, "'", path,
          "' names several data, and a loss is that of one; give --eval-data one of them");
  DatasetOptions options = dataset_options(config, choice);
  options.path = path;
  options.shuffle = false;
  return open_checked(options.vocab_size, [&] { return TokenDataset(options); });
}

std::int64_t evaluation_samples(const Config& config, const TokenDataset& dataset) {
  const std::int64_t all = dataset.samples_per_epoch();
  if (config.is_null("eval_tokens")) return all;
  const std::int64_t length = dataset.options().sequence_length;
  return std::min(all, (config.get<std::int64_t>("eval_tokens") + length - 1) / length);
}

}  // namespace tessera::cli
