#include "token_file.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <vector>

#include "foreign_format.h"
#include "tessera/core/error.h"
#include "tokenizer/text_reader.h"

namespace tessera::data {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are read as they lie");

constexpr std::size_t kReadBytes = 8192;             // at a time, on the stack
constexpr std::int32_t kEvaluationMagic = 20240522;  // multiple choice questions, no stream

std::int32_t header_field(std::span<const std::byte> bytes, std::size_t index) {
  std::int32_t value = 0;
  std::memcpy(&value, bytes.data() + index * sizeof(value), sizeof(value));
  return value;
}

const TokenHeaderFormat* find_format(std::span<const std::byte> bytes) {
  if (bytes.size() < sizeof(std::int32_t)) return nullptr;
  const auto format =
      std::find_if(kTokenHeaderFormats.begin(), kTokenHeaderFormats.end(),
                   [&](const TokenHeaderFormat& f) { return f.magic == header_field(bytes, 0); });
  return format == kTokenHeaderFormats.end() ? nullptr : &*format;
}

/// `start`: of the file, at least as long as what is read of the header if all of it is there.
void read_header(const TokenHeaderFormat& format, std::span<const std::byte> start,
                 TokenFile& tokens) {
  const std::span<const std::byte> bytes = tokens.file.bytes();
  const std::string& path = tokens.file.path();
  require(bytes.size() >= kTokenHeaderBytes, ErrorCode::kIo, "'", path, "' ends after ",
          bytes.size(), " of the ", kTokenHeaderBytes,
          " bytes of its header; copy or make it again");
  const std::int32_t version = header_field(start, 1);
  require(version == format.version, ErrorCode::kConfig, "'", path, "' is of version ", version,
          " of the token format ", format.magic, "; only version ", format.version,
          " is known: make the file again with that version of llm.c's scripts");
  const std::int64_t count = header_field(start, 2);
  const std::size_t payload = bytes.size() - kTokenHeaderBytes;
  require(count >= 0 && static_cast<std::size_t>(count) * format.token_bytes == payload,
          ErrorCode::kIo, "the header of '", path, "' announces ", count, " tokens of ",
          format.token_bytes, " bytes, but ", payload,
          " bytes follow it; the file is cut short or damaged: copy or make it again");
  tokens.tokens = count;
  tokens.header_bytes = kTokenHeaderBytes;
  tokens.token_bytes = format.token_bytes;
  tokens.format = concat("uint", 8 * format.token_bytes, " with llm.c's header");
}

template <typename T>
void read_as(const MappedFile& file, std::size_t offset, std::span<std::uint32_t> out) {
  std::array<T, kReadBytes / sizeof(T)> tokens;
  while (!out.empty()) {
    const std::size_t count = std::min(out.size(), tokens.size());
    file.copy(offset, std::as_writable_bytes(std::span(tokens).first(count)));
    std::copy_n(tokens.begin(), count, out.begin());
    offset += count * sizeof(T);
    out = out.subspan(count);
  }
}

}  // namespace

void TokenFile::read(std::int64_t begin, std::span<std::uint32_t> out) const {
  if (!encoded.empty()) {
    std::copy_n(encoded.begin() + begin, out.size(), out.begin());
    return;
  }
  const std::size_t offset = header_bytes + static_cast<std::size_t>(begin) * token_bytes;
  switch (token_bytes) {
    case 1:
      return read_as<std::uint8_t>(file, offset, out);
    case 2:
      return read_as<std::uint16_t>(file, offset, out);
    default:
      return read_as<std::uint32_t>(file, offset, out);
  }
}

TokenFile open_text(const std::string& path) {
  MappedFile file(path);
  const auto bytes = static_cast<std::int64_t>(file.bytes().size());
  return {std::move(file), bytes, 0, 1, "text, a token per byte"};
}

TokenFile encode_text(const std::string& path, TokenEncoder& encoder) {
  TokenFile text{MappedFile(path), 0, 0, sizeof(std::uint32_t), "text, tokenised at the start"};
  encode_file(encoder, path, [&](std::span<const std::int32_t> tokens, std::int64_t) {
    text.encoded.insert(text.encoded.end(), tokens.begin(), tokens.end());
    return true;
  });
  text.encoded.shrink_to_fit();
  text.tokens = static_cast<std::int64_t>(text.encoded.size());
  return text;
}

TokenFile open_tokens(const std::string& path) {
  TokenFile tokens{MappedFile(path), 0, 0, sizeof(std::uint16_t), "uint16 without a header"};
  const std::span<const std::byte> bytes = tokens.file.bytes();
  std::vector<std::byte> start(std::min(bytes.size(), kTokenHeaderBytes));
  tokens.file.copy(0, start);
  if (const TokenHeaderFormat* format = find_format(start)) {
    read_header(*format, start, tokens);
    return tokens;
  }
  require(bytes.size() < sizeof(std::int32_t) || header_field(start, 0) != kEvaluationMagic,
          ErrorCode::kConfig, "'", path,
          "' holds multiple choice questions of llm.c, not a stream of tokens to train on");
  if (const auto foreign = find_foreign_tokens(tokens.file)) {
    fail(ErrorCode::kConfig, "'", path, "' is no file of tokens, but seems to be ", foreign->what,
         "; ", foreign->remedy);
  }
  require(bytes.size() % sizeof(std::uint16_t) == 0, ErrorCode::kIo, "'", path, "' has ",
          bytes.size(),
          " bytes, an odd number, so it is no list of uint16 tokens: it is cut short, or it is "
          "text (set the data kind to 'text')");
  tokens.tokens = static_cast<std::int64_t>(bytes.size() / sizeof(std::uint16_t));
  return tokens;
}

bool has_token_header(std::span<const std::byte> bytes) { return find_format(bytes) != nullptr; }

}  // namespace tessera::data
