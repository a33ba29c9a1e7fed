#include "settings/data_choice.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <span>
#include <utility>
#include <vector>

#include "output/terminal.h"
#include "tessera/checkpoint/checkpoint_folder.h"
#include "tessera/core/error.h"
#include "tessera/core/text.h"
#include "tessera/model/gpt_family.h"
#include "tessera/model/hugging_face.h"
#include "tessera/model/tokenizer_folder.h"

namespace tessera::cli {
namespace {

/// "2,363 tokens, 640 of them targets, in 48 samples of 128: 62 % padding; --packing true makes
/// 24".
std::string describe_filling(const ExampleCounts& counts, const TokenDataset& dataset) {
  const double padding =
      1.0 - static_cast<double>(counts.filled) / static_cast<double>(counts.positions);
  std::string line = concat(counts.estimated ? "about " : "", with_commas(counts.tokens),
                            " tokens, ", with_commas(counts.targets), " of them ",
                            dataset.options().masking ? "not special" : "targets", ", in ",
                            counted(counts.samples, "sample"), " of ",
                            with_commas(dataset.options().sequence_length), ": ",
                            std::lround(100.0 * padding), " % padding");
  if (counts.packed_samples < counts.samples) {
    line += concat("; --packing true makes ", counted(counts.packed_samples, "sample"));
  }
  return line;
}

std::string describe_end(const ExampleCounts& counts, const GptChoice& choice) {
  if (!counts.end_token) return "";
  std::string line = concat("each example ends with the token ", *counts.end_token);
  if (choice.text.tokenizer) {
    line += concat(", '", choice.text.tokenizer->decode(std::vector{*counts.end_token}), "'");
  }
  return line + concat(", ", choice.text.end_token_from);
}

/// "data: 1 of 4 samples are of 'a.jsonl'...; every one has been read once after 400 samples".
std::vector<std::string> describe_shares(const DataMixture& data) {
  const std::vector<TokenDataset>& sources = data.sources();
  if (sources.size() == 1) return {};
  const std::vector<std::int64_t>& weights = data.weights();
  std::int64_t all = 0;
  for (const std::int64_t weight : weights) all += weight;
  std::string shares;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const double percent = 100.0 * static_cast<double>(weights[i]) / static_cast<double>(all);
    shares += concat(i == 0 ? "" : ", ", fixed(percent, 1), " % of '", sources[i].options().path,
                     "' (", counted(sources[i].samples_per_epoch(), "sample"), ")");
  }
  return {concat("a mixture of samples: ", shares),
          concat("an epoch is ", with_commas(data.samples_per_epoch()),
                 " samples, when each of the data has been read at least once")};
}

std::vector<std::string> describe_sources(std::span<const TokenDataset> sources,
                                          const std::vector<std::string>& shares,
                                          const GptChoice& choice) {
  std::vector<std::string> lines;
  bool is_text = false;
  for (const TokenDataset& source : sources) {
    for (std::string& line : source.assumptions()) lines.push_back(std::move(line));
    is_text = is_text || source.kind() != DataKind::kTokens;
    const auto counts = source.example_counts();
    if (!counts) continue;
    lines.push_back(describe_filling(*counts, source));
    const std::string end = describe_end(*counts, choice);
    if (!end.empty() && std::ranges::find(lines, end) == lines.end()) lines.push_back(end);
  }
  lines.insert(lines.end(), shares.begin(), shares.end());
  if (is_text && choice.text.tokenizer) lines.push_back("tokenizer: " + choice.text.path);
  for (std::string& line : lines) line = "data: " + line;
  if (is_text && !choice.text.note.empty()) lines.push_back("note: " + choice.text.note);
  return lines;
}

bool is_path(const std::string& text) {
  std::error_code ignored;
  return std::filesystem::exists(text, ignored);
}

WeightedPath parse_one(const std::string& text, const std::string& all) {
  require(!text.empty(), ErrorCode::kConfig, "'", all,
          "' has a comma with no data before or behind it; write such as "
          "'a.jsonl=0.7,b.jsonl=0.3'");
  const std::size_t sign = text.rfind('=');
  if (sign == std::string::npos || is_path(text)) return {text};
  double weight = 0.0;
  const char* const end = text.data() + text.size();
  const auto result = std::from_chars(text.data() + sign + 1, end, weight);
  require(result.ec == std::errc() && result.ptr == end && weight > 0.0 && sign > 0,
          ErrorCode::kConfig, "'", text.substr(sign + 1), "' behind '", text.substr(0, sign),
          "' is no weight of data; write a number above 0, such as in 'a.jsonl=0.7'");
  return {text.substr(0, sign), weight};
}

}  // namespace

std::vector<std::string> describe_data(const DataMixture& data, const GptChoice& choice) {
  return describe_sources(data.sources(), describe_shares(data), choice);
}

std::vector<std::string> describe_data(const TokenDataset& dataset, const GptChoice& choice) {
  return describe_sources({&dataset, 1}, {}, choice);
}

std::string describe_tokens(const DataMixture& data) {
  bool estimated = false;
  for (const TokenDataset& source : data.sources()) {
    const auto counts = source.example_counts();
    estimated = estimated || (counts && counts->estimated);
  }
  return concat(estimated ? "about " : "", with_commas(data.tokens()), " tokens");
}

std::vector<WeightedPath> parse_data(const std::string& text) {
  if (is_path(text)) return {{text}};
  std::vector<WeightedPath> all;
  for (const std::string& part : split_text(text, ',')) all.push_back(parse_one(part, text));
  return all;
}

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
  options.path = config.text("chat_template");
  for (const std::string& folder : folders) {
    if (options.path.empty()) options.path = find_chat_template(folder);
    for (const char* const name : {"tokenizer_config.json", "special_tokens_map.json"}) {
      const std::filesystem::path file = std::filesystem::path(folder) / name;
      std::error_code error;
      const bool is_there = std::filesystem::is_regular_file(file, error);
      if (options.tokens_path.empty() && is_there) options.tokens_path = file.string();
    }
  }
  options.variables = config.text("chat_template_kwargs");
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
      !config.text("data").empty(), ErrorCode::kConfig,
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
