#include "tessera/model/tokenize.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <string_view>

#include "data_files.h"
#include "foreign_format.h"
#include "mapped_file.h"
#include "tessera/core/error.h"
#include "token_file_writer.h"
#include "tokenizer/text_reader.h"
#include "tokenizer/utf8.h"

namespace tessera {
namespace {

/// The kind of one file, named as such: text if it is UTF-8, with controls and NULs, which a
/// tokenizer has tokens for; auto if the file itself must tell, as one of tokens or of another
/// program does.
DataKind kind_of(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error) || path.ends_with(".bin")) {
    return DataKind::kAuto;
  }
  const data::MappedFile file(path);
  constexpr std::size_t kProbe = 4096, kMostOfCharacter = 3;  // the last one may be cut off
  const auto begin = file.bytes().first(std::min(kProbe, file.bytes().size()));
  if (data::looks_like_text(begin) || data::find_foreign_format(begin)) return DataKind::kAuto;
  const std::string_view text(reinterpret_cast<const char*>(begin.data()), begin.size());
  const std::size_t invalid = data::find_invalid_utf8(text);
  const bool is_cut = begin.size() == kProbe && invalid + kMostOfCharacter >= kProbe;
  const bool is_utf8 = invalid == std::string_view::npos || is_cut;
  // Integers of 16 bits have NULs in every second byte.
  const bool has_words = std::ranges::count(text, '\0') * 2 < std::ssize(text);
  require(is_utf8 && has_words, ErrorCode::kConfig, "'", path,
          "' is not text; give files of UTF-8, or train on token ids as they are: name them .bin");
  return DataKind::kText;
}

/// The files of text that all paths name, in order; what is left out is noted.
std::vector<std::string> find_texts(const TokenizeOptions& options, TokenizeResult& result) {
  std::vector<std::string> paths;
  for (const std::string& path : options.paths) {
    DatasetOptions of_path;
    of_path.path = path;
    of_path.kind = kind_of(path);
    data::DataFiles found = data::find_data_files(of_path);
    require(found.kind == DataKind::kText, ErrorCode::kConfig, "'", path,
            "' holds token ids already; name files of text");
    std::ranges::move(found.paths, std::back_inserter(paths));
    std::ranges::move(found.notes, std::back_inserter(result.notes));
  }
  std::error_code none;
  for (const std::string& path : paths) {
    require(!std::filesystem::equivalent(path, options.output, none), ErrorCode::kConfig, "'",
            options.output, "' is a text to read as well; give the output another path");
    result.bytes += static_cast<std::int64_t>(data::MappedFile(path).bytes().size());
  }
  require(result.bytes > 0, ErrorCode::kConfig, "there is no text to tokenise");
  return paths;
}

}  // namespace

TokenizeResult tokenize(const Tokenizer& tokenizer, const TokenizeOptions& options) {
  TokenizeResult result;
  const std::vector<std::string> paths = find_texts(options, result);
  data::TokenFileWriter writer(options.output, tokenizer.vocab_size());
  TokenEncoder encoder(tokenizer);
  const std::int32_t separator = data::separator_of(tokenizer, options.end_of_text);
  std::int64_t done = 0;
  for (const std::string& path : paths) {
    if (data::MappedFile(path).bytes().empty()) continue;
    if (result.files++ > 0) writer.write(std::span(&separator, 1));
    const bool goes_on = data::encode_file(encoder, path, [&](auto tokens, std::int64_t bytes) {
      writer.write(tokens);
      done += bytes;
      return !options.on_progress || options.on_progress(done, result.bytes);
    });
    if (!goes_on) {
      result.stopped = true;
      return result;
    }
  }
  writer.finish();
  result.tokens = writer.tokens();
  result.token_bytes = writer.token_bytes();
  return result;
}

}  // namespace tessera
