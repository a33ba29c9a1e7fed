#include "token_file_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <limits>
#include <system_error>
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
      token_bytes_(vocab_size <= std::int64_t{1} << 16 ? 2 : 4) {
  descriptor_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (descriptor_ < 0) fail_to("made");
  write_bytes(std::vector<std::byte>(kTokenHeaderBytes));
}

TokenFileWriter::~TokenFileWriter() {
  if (descriptor_ < 0) return;
  close(descriptor_);
  unlink(temporary_.c_str());
}

void TokenFileWriter::fail_to(const char* what) const {
  const int number = errno;
  fail(ErrorCode::kIo, "'", temporary_, "' cannot be ", what, ": ",
       std::generic_category().message(number),
       "; give --output a path with room that is writable");
}

void TokenFileWriter::write_bytes(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(descriptor_, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_to("written");
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

void TokenFileWriter::write(std::span<const std::int32_t> tokens) {
  tokens_ += static_cast<std::int64_t>(tokens.size());
  require(tokens_ <= kMaxTokens, ErrorCode::kConfig, "'", path_, "' would have more than ",
          kMaxTokens,
          " tokens, which its header cannot count; write several files, of fewer texts "
          "each, and name them with a pattern");
  if (token_bytes_ == 4) return write_bytes(std::as_bytes(tokens));
  std::vector<std::uint16_t> narrow(tokens.size());
  std::ranges::transform(tokens, narrow.begin(),
                         [](std::int32_t token) { return static_cast<std::uint16_t>(token); });
  write_bytes(std::as_bytes(std::span(narrow)));
}

void TokenFileWriter::finish() {
  const auto format = std::ranges::find(kTokenHeaderFormats, static_cast<std::size_t>(token_bytes_),
                                        &TokenHeaderFormat::token_bytes);
  const std::array<std::int32_t, 3> header{format->magic, format->version,
                                           static_cast<std::int32_t>(tokens_)};
  if (lseek(descriptor_, 0, SEEK_SET) != 0) fail_to("written");
  write_bytes(std::as_bytes(std::span(header)));
  if (fsync(descriptor_) != 0) fail_to("synced to disk");
  if (rename(temporary_.c_str(), path_.c_str()) != 0) fail_to("renamed");
  close(std::exchange(descriptor_, -1));
  // The name is on the disk when its folder is.
  const auto parent = std::filesystem::path(path_).parent_path();
  const int folder =
      open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) fail_to("found in its folder again");
  const bool synced = fsync(folder) == 0 || errno == EINVAL;  // some file systems cannot
  if (!synced) fail_to("synced to disk with its folder");
  close(folder);
}

}  // namespace tessera::data
