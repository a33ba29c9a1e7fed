#include "tokenizer/text_reader.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "tessera/core/error.h"

namespace tessera::data {
namespace {

constexpr std::size_t kBlockBytes = std::size_t{1} << 20;

}  // namespace

bool encode_file(
    TokenEncoder& encoder, const std::string& path,
    const std::function<bool(std::span<const std::int32_t>, std::int64_t)>& on_tokens) {
  // Read, not mapped: pages of a mapped file would count as this process's memory.
  std::error_code failed;
  const auto size = static_cast<std::size_t>(std::filesystem::file_size(path, failed));
  std::ifstream file(path, std::ios::binary);
  require(!failed && file.is_open(), ErrorCode::kIo, "cannot open '", path,
          "'; make it readable or leave it out");
  std::string text;
  std::vector<std::int32_t> tokens;
  // Where there is no cut, twice as much is read before the next look, so that looks cost O(size).
  for (std::size_t done = 0, wanted = kBlockBytes; done < size;) {
    const std::size_t held = text.size();
    text.resize(std::min(wanted, size - done));
    const auto missing = static_cast<std::streamsize>(text.size() - held);
    file.read(text.data() + held, missing);
    require(file.gcount() == missing, ErrorCode::kIo, "'", path,
            "' cannot be read to its end; it may have been cut short meanwhile: try again");
    const bool last = done + text.size() == size;
    const std::size_t cut = last ? text.size() : encoder.last_cut(text);
    if (cut == 0) {
      wanted *= 2;
      continue;
    }
    tokens.clear();
    try {
      encoder.encode(std::string_view(text).substr(0, cut), tokens,
                     static_cast<std::int64_t>(done));
    } catch (const Error& error) {
      fail(error.code(), "'", path, "': ", error.what());
    }
    if (!on_tokens(tokens, static_cast<std::int64_t>(cut))) return false;
    text.erase(0, cut);
    done += cut;
    wanted = kBlockBytes;
  }
  return true;
}

std::int32_t separator_of(const Tokenizer& tokenizer, bool end_of_text) {
  const auto end = tokenizer.end_of_text();
  if (end_of_text && end) return *end;
  const std::vector<std::int32_t> newline = tokenizer.encode("\n");
  const auto between = tokenizer.id_of("[SEP]");  // WordPiece has no newline
  if (newline.empty() && between) return *between;
  require(!newline.empty(), ErrorCode::kConfig,
          "the tokenizer has neither an end of text nor a newline to put between files");
  return newline.front();
}

}  // namespace tessera::data
