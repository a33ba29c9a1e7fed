#include "json_lines.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "tessera/core/error.h"
#include "tessera/core/start_thread.h"
#include "tessera/core/usable_cores.h"

namespace tessera::data {
namespace {

using nlohmann::ordered_json;

constexpr std::int64_t kBlockBytes = std::int64_t{16} << 10;
constexpr std::int64_t kPieceBytes = std::int64_t{64} << 20;  // what a thread looks through at once
constexpr std::int64_t kReadBytes = std::int64_t{1} << 20;
constexpr int kMostThreads = 8;

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r'; }

/// The lines that begin in one piece of a file.
struct Piece {
  std::vector<JsonLines::Block> blocks{};  ///< lines and records counted from the piece's first
  std::int64_t lines = 0, records = 0;
};

/// Finds the lines that begin in [begin, end), from bytes that are shown in order.
class PieceScan {
 public:
  PieceScan(std::int64_t begin, std::int64_t end) : end_(end) {
    if (begin == 0) start_line(0);
  }

  /// Looks at bytes from `offset` on. Returns whether there is more to find in those behind.
  bool look(std::int64_t offset, std::string_view bytes) {
    std::size_t at = 0;
    while (at < bytes.size()) {
      if (state_ == State::kBlank) {
        while (at < bytes.size() && is_space(bytes[at])) ++at;
        if (at == bytes.size()) break;
        if (bytes[at] != '\n') add_record();
      }
      const void* const found = std::memchr(bytes.data() + at, '\n', bytes.size() - at);
      if (found == nullptr) break;
      at = static_cast<std::size_t>(static_cast<const char*>(found) - bytes.data()) + 1;
      const std::int64_t line = offset + static_cast<std::int64_t>(at);
      if (line >= end_) return false;
      start_line(line);
    }
    return state_ == State::kBlank || offset + static_cast<std::int64_t>(bytes.size()) < end_;
  }

  Piece take() { return std::move(piece_); }

 private:
  enum class State : std::uint8_t {
    kBefore,  ///< in a line that began before the piece
    kBlank,   ///< in a line that has had white space alone
    kRecord,  ///< in a line that holds something
  };

  void start_line(std::int64_t offset) {
    line_ = offset;
    ++piece_.lines;
    state_ = State::kBlank;
  }
  void add_record() {
    state_ = State::kRecord;
    if (piece_.blocks.empty() || line_ - piece_.blocks.back().offset >= kBlockBytes) {
      piece_.blocks.push_back({line_, piece_.lines - 1, piece_.records});
    }
    ++piece_.records;
  }

  std::int64_t end_;
  std::int64_t line_ = 0;  ///< where the line in progress begins
  State state_ = State::kBefore;
  Piece piece_;
};

Piece scan_piece(const InputFile& file, std::int64_t begin) {
  PieceScan scan(begin, std::min(begin + kPieceBytes, file.size()));
  std::vector<char> buffer(static_cast<std::size_t>(std::min(kReadBytes, file.size())));
  // The byte before tells whether a line begins with the piece.
  std::int64_t at = std::max<std::int64_t>(begin - 1, 0);
  while (at < file.size()) {
    const auto count = std::min(kReadBytes, file.size() - at);
    const auto bytes = std::span(buffer).first(static_cast<std::size_t>(count));
    file.read(at, std::as_writable_bytes(bytes));
    if (!scan.look(at, {bytes.data(), bytes.size()})) break;
    at += count;
  }
  return scan.take();
}

/// Every thread takes the next piece that is left. Each opens the file itself, for the kernel reads
/// ahead by what is asked of an opened file.
std::vector<Piece> scan_pieces(const InputFile& file) {
  const auto count = static_cast<std::size_t>((file.size() + kPieceBytes - 1) / kPieceBytes);
  std::vector<Piece> pieces(count);
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::exception_ptr failure;
  const auto work = [&] {
    try {
      const InputFile own(file.path());
      require(own.size() == file.size(), ErrorCode::kIo, "'", file.path(), "' changed from ",
              file.size(), " to ", own.size(), " bytes while it was opened; run again");
      for (std::size_t i = next++; i < count; i = next++) {
        pieces[i] = scan_piece(own, static_cast<std::int64_t>(i) * kPieceBytes);
      }
    } catch (...) {
      const std::lock_guard lock(mutex);
      failure = std::current_exception();
      next = count;
    }
  };
  {
    const auto threads = static_cast<std::size_t>(std::min(usable_cores(), kMostThreads));
    std::vector<std::jthread> others;  // joined when the scope ends
    for (std::size_t i = 1; i < std::min(threads, count); ++i) {
      others.push_back(start_thread<std::jthread>("finding the lines of data", work));
    }
    work();
  }
  if (failure) std::rethrow_exception(failure);
  return pieces;
}

}  // namespace

JsonLines::JsonLines(std::string path) : file_(std::move(path)) {
  std::vector<Piece> pieces = scan_pieces(file_);
  std::size_t blocks = 0;
  for (const Piece& piece : pieces) blocks += piece.blocks.size();
  blocks_.reserve(blocks);
  std::int64_t lines = 1;
  for (Piece& piece : pieces) {
    for (const Block& block : piece.blocks) {
      blocks_.push_back({block.offset, lines + block.line, records_ + block.record});
    }
    lines += piece.lines;
    records_ += piece.records;
    piece = {};
  }
}

void JsonLines::visit_lines(std::int64_t first, const UseLine& use) const {
  const auto after = std::ranges::upper_bound(blocks_, first, std::ranges::less(), &Block::record);
  std::vector<char> bytes;
  for (auto block = after - 1; block != blocks_.end(); ++block) {
    const std::int64_t end = block + 1 == blocks_.end() ? file_.size() : (block + 1)->offset;
    bytes.resize(static_cast<std::size_t>(end - block->offset));
    file_.read(block->offset, std::as_writable_bytes(std::span(bytes)));
    std::string_view text(bytes.data(), bytes.size());
    std::int64_t record = block->record;
    for (std::int64_t number = block->line; !text.empty(); ++number) {
      const std::string_view line = text.substr(0, text.find('\n'));
      text.remove_prefix(std::min(line.size() + 1, text.size()));
      if (std::ranges::all_of(line, is_space)) continue;
      if (record >= first && !use(record, number, line)) return;
      ++record;
    }
  }
}

void JsonLines::visit(std::int64_t first, std::int64_t count, const Use& use) const {
  if (count == 0) return;
  visit_lines(first, [&](std::int64_t record, std::int64_t number, std::string_view line) {
    ordered_json value;
    try {
      value = ordered_json::parse(line);
    } catch (const ordered_json::parse_error& error) {
      fail(ErrorCode::kConfig, "line ", number, " of '", path(), "' is no JSON: ", error.what(),
           "; mend the line, or leave it out");
    }
    use(record, value);
    return record + 1 < first + count;
  });
}

std::string JsonLines::place(std::int64_t record) const {
  std::string text;
  visit_lines(record, [&](std::int64_t, std::int64_t number, std::string_view) {
    text = concat("line ", number, " of '", path(), "'");
    return false;
  });
  return text;
}

}  // namespace tessera::data
