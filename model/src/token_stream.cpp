#include "token_stream.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>

#include "file_identity.h"
#include "tessera/core/error.h"
#include "tokenizer/text_reader.h"

namespace tessera::data {
namespace {

constexpr std::int64_t kMaxEncodedBytes = std::int64_t{1} << 30;

/// Texts that are tokenised at the start stay in memory, 4 bytes a token, which is about the size
/// of English: without a limit that would be found out late.
void check_encodable(const DataFiles& files) {
  std::int64_t bytes = 0;
  for (const std::string& path : files.paths) {
    bytes += static_cast<std::int64_t>(MappedFile(path).bytes().size());
  }
  require(
      bytes <= kMaxEncodedBytes, ErrorCode::kConfig, "'", files.paths.front(), "' and others are ",
      bytes, " bytes of text, and at most ", kMaxEncodedBytes,
      " are tokenised at the start of a run; write them to a file of tokens once, with `tessera "
      "tokenize`, and train on that");
}

}  // namespace

TokenStream::TokenStream(const DatasetOptions& options) {
  DataFiles files = find_data_files(options);
  kind_ = files.kind;
  notes_ = std::move(files.notes);
  const bool text = kind_ == DataKind::kText;
  require(!text || options.tokenizer || options.no_text.empty(), ErrorCode::kConfig, "'",
          options.path, "' is text: ", options.no_text);
  std::optional<TokenEncoder> encoder;
  if (options.tokenizer) {
    tokenizer_identity_ = options.tokenizer->identity();
    if (text) {
      check_encodable(files);
      encoder.emplace(*options.tokenizer);
      separator_ = static_cast<std::uint32_t>(separator_of(*options.tokenizer, true));
    }
  }
  access_ = options.shuffle ? Access::kRandom : Access::kSequential;
  parts_.reserve(files.paths.size());
  for (const std::string& path : files.paths) {
    TokenFile file = encoder ? encode_text(path, *encoder)
                     : text  ? open_text(path)
                             : open_tokens(path);
    if (file.tokens == 0) continue;
    if (text && !parts_.empty()) ++tokens_;
    const std::int64_t begin = tokens_;
    tokens_ += file.tokens;
    parts_.push_back({std::move(file), begin});
  }
  require(tokens_ > 0, ErrorCode::kConfig, "'", options.path,
          "' is empty; name a file with something to learn from");
  advise(access_);
}

void TokenStream::advise(Access access) const {
  for (const Part& part : parts_) part.file.file.advise(access);
}

std::vector<std::string> TokenStream::files() const {
  std::vector<std::string> paths;
  for (const Part& part : parts_) paths.push_back(part.file.file.path());
  return paths;
}

std::vector<NamedText> TokenStream::identity() const {
  std::vector<const MappedFile*> files;
  for (const Part& part : parts_) files.push_back(&part.file.file);
  std::vector<NamedText> all = identity_of(files);
  all.insert(all.begin(), {"kind of data", std::string(to_string(kind_))});
  if (!tokenizer_identity_.empty()) all.push_back({"tokenizer", "hash " + tokenizer_identity_});
  return all;
}

std::size_t TokenStream::part_at(std::int64_t position) const {
  const auto after =
      std::upper_bound(parts_.begin(), parts_.end(), position,
                       [](std::int64_t value, const Part& part) { return value < part.begin; });
  return static_cast<std::size_t>(after - parts_.begin()) - 1;
}

void TokenStream::read(std::int64_t begin, std::span<std::uint32_t> out) const {
  require(begin >= 0 && begin <= tokens_ - static_cast<std::int64_t>(out.size()),
          ErrorCode::kInternal, "tokens [", begin, ", +", out.size(), ") of ", tokens_);
  std::size_t done = 0;
  for (std::size_t i = part_at(begin); done < out.size(); ++i) {
    const Part& part = parts_[i];
    const std::int64_t offset = begin + static_cast<std::int64_t>(done) - part.begin;
    const auto left =
        static_cast<std::size_t>(std::max<std::int64_t>(part.file.tokens - offset, 0));
    const std::size_t count = std::min(out.size() - done, left);
    if (count > 0) {
      part.file.read(offset, out.subspan(done, count));
      done += count;
    }
    if (kind_ == DataKind::kText && done < out.size()) out[done++] = separator_;
  }
}

std::string TokenStream::place(std::int64_t position) const {
  const Part& part = parts_[part_at(position)];
  return concat("token ", position - part.begin, " of '", part.file.file.path(), "'");
}

std::vector<std::string> TokenStream::assumptions() const {
  constexpr std::size_t kNamed = 4;  // of each format
  struct Format {
    std::size_t files = 0;
    std::int64_t tokens = 0, of_others = 0;  // in all files, and in those that are not named
    std::vector<std::string> lines;
  };
  std::map<std::string, Format> formats;
  for (const Part& part : parts_) {
    Format& format = formats[part.file.format];
    ++format.files;
    format.tokens += part.file.tokens;
    if (format.files > kNamed) {
      format.of_others += part.file.tokens;
    } else {
      format.lines.push_back(concat("'", part.file.file.path(), "' is read as ", part.file.format,
                                    ": ", part.file.tokens, " tokens"));
    }
  }
  std::vector<std::string> lines;
  for (auto& [name, format] : formats) {
    const bool one_line = kind_ == DataKind::kText && format.files > 1;
    if (!one_line) std::ranges::move(format.lines, std::back_inserter(lines));
    const std::size_t rest =
        one_line ? format.files : format.files - std::min(format.files, kNamed);
    if (rest == 0) continue;
    lines.push_back(concat(rest, one_line ? " files are" : " more are", " read as ", name, ": ",
                           one_line ? format.tokens : format.of_others, " tokens"));
  }
  return lines;
}

void TokenStream::fail_vocabulary(std::int64_t position, std::uint32_t token, std::uint32_t largest,
                                  std::int64_t vocab_size) const {
  // Whose tokens these formats were made for: by far most files are.
  constexpr std::int64_t kGpt2 = 50257, kLlama3 = 128256;
  const std::size_t bytes = parts_[part_at(position)].file.token_bytes;
  std::string of_whom;
  if (kind_ == DataKind::kText && tokenizer_identity_.empty()) {
    of_whom = " (256 for text)";
  } else if (bytes == 2 && largest < kGpt2) {
    of_whom = concat(" (GPT-2's is ", kGpt2, ")");
  } else if (bytes == 4 && largest < kLlama3) {
    of_whom = concat(" (Llama 3's is ", kLlama3, ")");
  }
  fail(ErrorCode::kConfig, place(position), " is ", token,
       ", outside of the model's vocabulary of ", vocab_size,
       "; set the vocabulary to the tokenizer's size, at least ",
       static_cast<std::int64_t>(largest) + 1, of_whom,
       kind_ == DataKind::kText ? "" : ", or check that the file holds token ids");
}

void TokenStream::check_vocabulary(std::int64_t vocab_size) const {
  const bool may_be_outside = std::ranges::any_of(parts_, [&](const Part& part) {
    return vocab_size < std::int64_t{1} << (8 * part.file.token_bytes);
  });
  if (!may_be_outside) return;
  // Evenly spread over the stream: all of it, or as many pieces as 4 MiB of uint32.
  constexpr std::int64_t kPiece = 4096, kMostPieces = 256;
  const std::int64_t pieces = std::min((tokens_ + kPiece - 1) / kPiece, kMostPieces);
  const std::int64_t last = std::max<std::int64_t>(tokens_ - kPiece, 0);
  const bool whole = tokens_ <= kPiece * kMostPieces;
  const std::int64_t stride = whole ? kPiece : last / (kMostPieces - 1);
  const auto allowed = static_cast<std::uint64_t>(std::max<std::int64_t>(vocab_size, 0));
  std::vector<std::uint32_t> piece;
  std::int64_t first = -1;  // that is outside
  std::uint32_t token = 0, largest = 0;
  if (!whole) advise(Access::kRandom);  // or each piece would bring megabytes along
  for (std::int64_t k = 0; k < pieces; ++k) {
    const std::int64_t begin = !whole && k + 1 == pieces ? last : k * stride;
    piece.resize(static_cast<std::size_t>(std::min(kPiece, tokens_ - begin)));
    read(begin, piece);
    for (std::size_t i = 0; i < piece.size(); ++i) {
      if (piece[i] < allowed) continue;
      if (first < 0) {
        first = begin + static_cast<std::int64_t>(i);
        token = piece[i];
      }
      largest = std::max(largest, piece[i]);
    }
  }
  advise(access_);
  if (first >= 0) fail_vocabulary(first, token, largest, vocab_size);
}

}  // namespace tessera::data
