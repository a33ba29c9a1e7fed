#include "token_stream.h"

#include <algorithm>
#include <array>

#include "file_identity.h"
#include "tessera/core/error.h"

namespace tessera::data {
namespace {

constexpr std::uint32_t kSeparator = '\n';

}  // namespace

TokenStream::TokenStream(const DatasetOptions& options) {
  DataFiles files = find_data_files(options);
  kind_ = files.kind;
  notes_ = std::move(files.notes);
  const bool text = kind_ == DataKind::kText;
  const Access access = options.shuffle ? Access::kRandom : Access::kSequential;
  parts_.reserve(files.paths.size());
  for (const std::string& path : files.paths) {
    TokenFile file = text ? open_text(path) : open_tokens(path);
    if (file.tokens == 0) continue;
    file.file.advise(access);
    if (text && !parts_.empty()) ++tokens_;
    const std::int64_t begin = tokens_;
    tokens_ += file.tokens;
    parts_.push_back({std::move(file), begin});
  }
  require(tokens_ > 0, ErrorCode::kConfig, "'", options.path,
          "' is empty; name a file with something to learn from");
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
    if (kind_ == DataKind::kText && done < out.size()) out[done++] = kSeparator;
  }
}

std::string TokenStream::place(std::int64_t position) const {
  const Part& part = parts_[part_at(position)];
  return concat("token ", position - part.begin, " of '", part.file.file.path(), "'");
}

void TokenStream::fail_vocabulary(std::int64_t position, std::uint32_t token, std::uint32_t largest,
                                  std::int64_t vocab_size) const {
  fail(ErrorCode::kConfig, place(position), " is ", token,
       ", outside of the model's vocabulary of ", vocab_size,
       "; set the vocabulary to the tokenizer's size, at least ",
       static_cast<std::int64_t>(largest) + 1,
       kind_ == DataKind::kText ? " (256 for text)" : ", or check that the file holds token ids");
}

void TokenStream::check_vocabulary(std::int64_t vocab_size) const {
  constexpr std::size_t kChunk = 4096;
  std::array<std::uint32_t, kChunk> chunk;
  const auto allowed = static_cast<std::uint64_t>(std::max<std::int64_t>(vocab_size, 0));
  std::int64_t first = -1;  // that is outside
  std::uint32_t token = 0, largest = 0;
  for (const Part& part : parts_) {
    const std::int64_t values = std::int64_t{1} << (8 * part.file.token_bytes);
    if (vocab_size >= values) continue;
    for (std::int64_t offset = 0; offset < part.file.tokens; offset += kChunk) {
      const std::span<std::uint32_t> tokens = std::span(chunk).first(
          std::min(kChunk, static_cast<std::size_t>(part.file.tokens - offset)));
      part.file.read(offset, tokens);
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        if (tokens[i] < allowed) continue;
        if (first < 0) {
          first = part.begin + offset + static_cast<std::int64_t>(i);
          token = tokens[i];
        }
        largest = std::max(largest, tokens[i]);
      }
    }
  }
  // The newlines between texts are tokens too, but a vocabulary that lacks them lacks text.
  if (first >= 0) fail_vocabulary(first, token, largest, vocab_size);
}

}  // namespace tessera::data
