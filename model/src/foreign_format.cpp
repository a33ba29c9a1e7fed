#include "foreign_format.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "data_files.h"
#include "tessera/core/error.h"
#include "token_file.h"

namespace tessera::data {
namespace {

using namespace std::string_view_literals;

constexpr const char* kUnpack = "unpack it, and name what was in it";
constexpr const char* kExport =
    "write the token ids that it holds as plain uint16, such as "
    "np.array(ids, np.uint16).tofile('tokens.bin')";
constexpr const char* kTable =
    "call it .parquet or .arrow if its columns are examples; of token ids, write them as plain "
    "uint16, such as np.array(ids, np.uint16).tofile('tokens.bin')";
constexpr const char* kOther = "name a file of text or of token ids";

struct Magic {
  std::size_t offset;
  std::string_view bytes;
  const char* what;
  const char* remedy;
};

// Long enough that a list of tokens hardly begins so: four bytes are two given tokens.
constexpr std::array kMagics{
    Magic{0, "\x93NUMPY"sv, "a NumPy array (.npy)",
          "write its numbers alone: np.load(PATH).astype(np.uint16).tofile('tokens.bin')"},
    Magic{0, "PK\x03\x04"sv, "a zip archive, as .npz and PyTorch's .pt files are", kUnpack},
    Magic{0, "\x1f\x8b\x08"sv, "gzip-compressed", kUnpack},
    Magic{0, "\xfd\x37zXZ\0"sv, "xz-compressed", kUnpack},
    Magic{0, "\x28\xb5\x2f\xfd"sv, "zstd-compressed", kUnpack},
    Magic{0, "\x04\x22\x4d\x18"sv, "lz4-compressed", kUnpack},
    Magic{4, "1AY&SY"sv, "bzip2-compressed", kUnpack},
    Magic{257, "ustar"sv, "a tar archive", kUnpack},
    Magic{0, "\x80\x04\x95"sv, "a Python pickle", kExport},
    Magic{0, "\x80\x05\x95"sv, "a Python pickle", kExport},
    Magic{0, "\x80\x02\x8a\x0al\xfc\x9c\x46"sv, "a pickle of PyTorch", kExport},
    Magic{0, "PAR1"sv, "a Parquet file", kTable},
    Magic{0, "ARROW1"sv, "an Arrow file", kTable},
    Magic{0, "\xff\xff\xff\xff"sv, "an Arrow stream, as Hugging Face's datasets keep them", kTable},
    Magic{0, "\x89HDF\r\n"sv, "an HDF5 file", kExport},
    Magic{0, "SQLite format 3"sv, "an SQLite database", kExport},
    Magic{0, "BIN.TOK\n"sv, "a token file of llmq", kExport},
    Magic{0, "MMIDIDX\0"sv, "the index of a data set of Megatron's", "name the .bin beside it"},
    Magic{0, "GGUF"sv, "a GGUF model", kOther},
    Magic{0, "%PDF-"sv, "a PDF document", kOther},
    Magic{0, "\x7f\x45LF"sv, "a program", kOther},
    Magic{0, "\x89PNG"sv, "an image (PNG)", kOther},
};

template <typename T>
T number_at(std::span<const std::byte> bytes, std::size_t offset) {
  T value = 0;
  if (offset + sizeof(T) <= bytes.size()) std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

/// The length of a JSON header, and the header.
bool is_safetensors(std::span<const std::byte> start) {
  constexpr std::uint64_t kMostHeader = 100'000'000;  // by its specification
  const auto length = number_at<std::uint64_t>(start, 0);
  return start.size() >= 10 && length >= 2 && length <= kMostHeader && start[8] == std::byte{'{'} &&
         (start[9] == std::byte{'"'} || start[9] == std::byte{'}'});
}

/// llm.c numbers its formats by the day they were made; a version follows.
bool is_dated_header(std::span<const std::byte> start) {
  const auto magic = number_at<std::int32_t>(start, 0);
  const auto version = number_at<std::int32_t>(start, 4);
  const std::int32_t year = magic / 10000, month = magic / 100 % 100, day = magic % 100;
  return start.size() >= 8 && year >= 2023 && year <= 2050 && month >= 1 && month <= 12 &&
         day >= 1 && day <= 31 && version >= 0 && version < 1000;
}

/// 256 int32 of which only the first few are used, as all of llm.c's headers.
bool is_padded_header(std::span<const std::byte> start) {
  constexpr std::size_t kUsed = 8 * sizeof(std::int32_t);
  const auto zero = [](std::byte byte) { return byte == std::byte{0}; };
  return start.size() >= kTokenHeaderBytes && number_at<std::int32_t>(start, 0) != 0 &&
         std::ranges::all_of(start.subspan(kUsed, kTokenHeaderBytes - kUsed), zero);
}

/// The look of integers of 64 bits and of 32, read as groups of four uint16.
struct Widths {
  std::int64_t groups = 0;  ///< that tell something: not all of their numbers are next to zero
  std::int64_t int64 = 0, int32 = 0;

  void count(std::span<const std::uint16_t, 4> w) {
    constexpr std::uint16_t kUpper = 3;  // of the largest vocabularies, some 260,000 tokens
    if (std::ranges::all_of(w, [](std::uint16_t word) { return word <= kUpper; })) return;
    ++groups;
    if (w[1] <= kUpper && w[2] == 0 && w[3] == 0) ++int64;
    if (w[1] <= kUpper && w[3] <= kUpper) ++int32;
  }
  /// Nearly all groups: an id of -1, or a number that was meant as something else, may be among
  /// them. In a list of uint16 tokens a group looks so by chance one time in a million.
  bool nearly_all(std::int64_t matching) const {
    constexpr std::int64_t kFewest = 16;
    return groups >= kFewest && matching * 20 >= groups * 19;
  }
};

Widths sample_widths(const MappedFile& file) {
  constexpr std::size_t kPiece = 4096, kPieces = 32, kGroup = 8;
  const std::size_t size = file.bytes().size();
  Widths widths;
  file.advise(Access::kRandom);  // or each block would bring megabytes along
  std::array<std::uint16_t, kPiece / sizeof(std::uint16_t)> words;
  const std::size_t step = std::max(kPiece, size / kPieces / kGroup * kGroup);
  for (std::size_t offset = 0; offset + kGroup <= size; offset += step) {
    const std::size_t bytes = std::min(kPiece, (size - offset) / kGroup * kGroup);
    const auto read = std::span(words).first(bytes / sizeof(std::uint16_t));
    file.copy(offset, std::as_writable_bytes(read));
    for (std::size_t i = 0; i + 4 <= read.size(); i += 4) {
      widths.count(std::span<const std::uint16_t, 4>(read.data() + i, 4));
    }
  }
  return widths;
}

ForeignFormat wide_integers(const char* dtype) {
  return {concat("a dump of ", dtype, " numbers (the upper halves of all of them are next to 0)"),
          concat("convert it: np.fromfile(PATH, np.", dtype,
                 ").astype(np.uint16).tofile('tokens.bin'), or where ids are above 65535, write "
                 "llm.c's header 20240801 and uint32")};
}

}  // namespace

std::optional<ForeignFormat> find_foreign_format(std::span<const std::byte> start) {
  const std::string_view text(reinterpret_cast<const char*>(start.data()), start.size());
  for (const Magic& magic : kMagics) {
    if (text.size() < magic.offset + magic.bytes.size()) continue;
    if (text.substr(magic.offset, magic.bytes.size()) != magic.bytes) continue;
    return ForeignFormat{magic.what, magic.remedy};
  }
  if (is_safetensors(start)) return ForeignFormat{"a safetensors file", kExport};
  if (is_dated_header(start)) {
    return ForeignFormat{
        concat("a file of llm.c's family with magic ", number_at<std::int32_t>(start, 0),
               ", version ", number_at<std::int32_t>(start, 4)),
        "if it holds tokens, write them with magic 20240520, version 1 (uint16) "
        "or 20240801, version 7 (uint32)"};
  }
  return std::nullopt;
}

std::optional<ForeignFormat> find_foreign_tokens(const MappedFile& file) {
  constexpr std::size_t kStart = 4096, kShortestText = 64;
  std::vector<std::byte> start(std::min(file.bytes().size(), kStart));
  file.copy(0, start);
  if (auto format = find_foreign_format(start)) return format;
  if (start.size() >= kShortestText && looks_like_text(start)) {
    const bool json = start[0] == std::byte{'{'} || start[0] == std::byte{'['};
    return ForeignFormat{json ? "JSON" : "text",
                         "set the data kind to 'text' to train on its bytes, or tokenize it first"};
  }
  if (is_padded_header(start)) {
    return ForeignFormat{concat("a file with a header of its own (its first number is ",
                                number_at<std::int32_t>(start, 0), ")"),
                         concat("cut off the header, or write one of llm.c's")};
  }
  const Widths widths = sample_widths(file);
  if (widths.nearly_all(widths.int64)) return wide_integers("int64");
  if (widths.nearly_all(widths.int32)) return wide_integers("int32");
  return std::nullopt;
}

}  // namespace tessera::data
