#include "settings/gpt_choice.h"

#include <algorithm>
#include <filesystem>

#include "output/terminal.h"
#include "tessera/checkpoint/checkpoint_folder.h"
#include "tessera/core/error.h"
#include "tessera/model/hugging_face.h"
#include "tessera/model/tokenizer_folder.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kByteVocabulary = 256;
constexpr const char* kRemedy =
    "; give --tokenizer FILE or FOLDER, or --tokenizer bytes for bytes as tokens";

/// The folder that the model is of, or that of the checkpoint, which has what its model came with;
/// "" of a preset or a .bin.
std::string folder_of(const Config& config) {
  for (const char* const setting : {"init", "model"}) {
    if (config.is_null(setting)) continue;
    const auto path = config.get<std::string>(setting);
    if (is_folder(path) && fs::exists(fs::path(path) / "config.json")) return path;
    // A folder may have several checkpoints, and one of them is meant.
    if (std::string_view(setting) == "init") return find_checkpoint(path);
  }
  return "";
}

/// Why the tokenizer does not suit the model; "" if it does.
std::string too_large(const TokenizerChoice& choice, std::int64_t vocab_size) {
  const std::int64_t tokens = choice.tokenizer->vocab_size();
  if (vocab_size == 0 || tokens <= vocab_size) return "";
  return concat("the tokenizer '", choice.path, "' has ", tokens,
                " tokens, and the model's vocabulary is ", vocab_size,
                "; add rows for them to the model of --init (--resize-vocabulary)");
}

/// Takes the tokenizer's own, as TRL does; else the model's, whose list may begin with another.
void choose_end_token(TokenizerChoice& choice, const PretrainedGpt* init) {
  if (choice.tokenizer) {
    const fs::path parent = fs::path(choice.path).parent_path();
    const std::string text = special_token_of(parent.empty() ? "." : parent.string(), "eos_token");
    choice.end_token = choice.tokenizer->id_of(text);
    choice.end_token_from = "the tokenizer's eos_token";
    if (choice.end_token) return;
  }
  const std::vector<std::int32_t> ends =
      init == nullptr ? std::vector<std::int32_t>{} : end_tokens_of(init->path());
  const auto of_text = choice.tokenizer ? choice.tokenizer->end_of_text() : std::nullopt;
  const bool in_list = of_text && std::ranges::find(ends, *of_text) != ends.end();
  if (!ends.empty()) {
    choice.end_token = in_list ? *of_text : ends.front();
    choice.end_token_from = "the model's eos_token_id";
  } else {
    choice.end_token = of_text;
    choice.end_token_from = of_text ? "the tokenizer's end of text" : "";
  }
}

TokenizerChoice choose_by_default(const Config& config, std::int64_t vocab_size,
                                  const PretrainedGpt* init) {
  TokenizerChoice choice;
  const std::string folder = folder_of(config);
  const std::string file = folder.empty() ? "" : find_tokenizer(folder);
  if (!file.empty()) {
    choice.path = file;
    try {
      choice.tokenizer.emplace(file);
      choice.no_text = too_large(choice, resizes_vocabulary(config) ? 0 : vocab_size);
    } catch (const Error& error) {
      choice.no_text = error.what();
    }
  } else if (vocab_size > kByteVocabulary) {
    const std::string named = init != nullptr ? init->path() : folder;
    const std::string why = concat("the model's vocabulary of ", with_commas(vocab_size),
                                   " tokens is not that of bytes");
    if (named.empty()) {
      choice.note = concat("text is read byte by byte, since a preset has no tokenizer, and ", why,
                           "; give --tokenizer FILE or FOLDER for its own");
    } else {
      choice.no_text = concat("'", named, "' has no tokenizer.json, and ", why);
    }
  }
  if (!choice.no_text.empty()) {
    choice.tokenizer.reset();
    choice.no_text += kRemedy;
  }
  return choice;
}

}  // namespace

bool resizes_vocabulary(const Config& config) {
  constexpr std::string_view kResize = "resize_vocabulary";
  return has_setting(config, kResize) && config.get<bool>(kResize);
}

std::string given_tokenizer(const Config& config) {
  const std::string name = config.text("tokenizer");
  return name.empty() || name == kBytes ? "" : find_tokenizer(name);
}

TokenizerChoice choose_tokenizer(const Config& config, std::int64_t vocab_size,
                                 const PretrainedGpt* init) {
  TokenizerChoice choice;
  const std::string name = config.text("tokenizer");
  if (name.empty()) {
    choice = choose_by_default(config, vocab_size, init);
  } else if (name != kBytes) {
    choice.path = find_tokenizer(name);
    require(!choice.path.empty(), ErrorCode::kConfig, "--tokenizer: the folder '", name,
            "' has no tokenizer.json; give another folder, or a file");
    choice.tokenizer.emplace(choice.path);
    const std::string why = too_large(choice, resizes_vocabulary(config) ? 0 : vocab_size);
    require(why.empty(), ErrorCode::kConfig, why,
            ", or give another, or a model that knows as many tokens");
  }
  choose_end_token(choice, init);
  return choice;
}

}  // namespace tessera::cli
