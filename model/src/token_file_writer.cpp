#include "token_file_writer.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <limits>
#include <utility>
#include <vector>

#include "tessera/core/error.h"
#include "token_file.h"

namespace tessera::data {
namespace {

constexpr std::int64_t kMaxTokens = std::numeric_limits<std::int32_t>::max();

}  // namespace

TokenFileWriter::TokenFileWriter(std::string path, std::int64_t vocab_size)
    : path_(std::move(path)),
      temporary_(path_ + ".tmp"),
      token_bytes_(vocab_size <= std::int64_t{1} << 16 ? 2 : 4),
      bytes_(static_cast<std::int64_t>(kTokenHeaderBytes)),
      file_(disk().create(temporary_, bytes_)) {}

TokenFileWriter::~TokenFileWriter() {
  if (file_ == nullptr) return;
  file_.reset();
  try {
    disk().remove(temporary_);
  } catch (const Error&) {
    // The error that ended the writing is the one to tell; the next attempt replaces what is left.
  }
}

void TokenFileWriter::write(std::span<const std::int32_t> tokens) {
  tokens_ += static_cast<std::int64_t>(tokens.size());
  require(tokens_ <= kMaxTokens, ErrorCode::kConfig, "'", path_, "' would have more than ",
          kMaxTokens,
          " tokens, which its header cannot count; write several files, of fewer texts "
          "each, and name them with a pattern");
  std::vector<std::uint16_t> narrow;
  if (token_bytes_ == 2) narrow.assign(tokens.begin(), tokens.end());
  const auto bytes = token_bytes_ == 2 ? std::as_bytes(std::span(narrow)) : std::as_bytes(tokens);
  file_->write(bytes_, bytes);
  bytes_ += static_cast<std::int64_t>(bytes.size());
}

void TokenFileWriter::finish() {
  const auto format = std::ranges::find(kTokenHeaderFormats, static_cast<std::size_t>(token_bytes_),
                                        &TokenHeaderFormat::token_bytes);
  const std::array<std::int32_t, 3> header{format->magic, format->version,
                                           static_cast<std::int32_t>(tokens_)};
  file_->write(0, std::as_bytes(std::span(header)));
  file_->sync();
  disk().rename(temporary_, path_);
  file_.reset();
  // The name is on the disk when its folder is.
  const auto parent = std::filesystem::path(path_).parent_path();
  disk().sync_folder(parent.empty() ? "." : parent.string());
}

}  // namespace tessera::data
