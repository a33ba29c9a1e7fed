#include "tessera/checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <utility>

#include "safetensors_format.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "the format's byte order");

struct NamedBits {
  std::string_view name;
  int bits;
};

constexpr std::array kDtypes{
    NamedBits{"BOOL", 8},        NamedBits{"F4", 4},          NamedBits{"F6_E2M3", 6},
    NamedBits{"F6_E3M2", 6},     NamedBits{"U8", 8},          NamedBits{"I8", 8},
    NamedBits{"F8_E5M2", 8},     NamedBits{"F8_E4M3", 8},     NamedBits{"F8_E8M0", 8},
    NamedBits{"F8_E4M3FNUZ", 8}, NamedBits{"F8_E5M2FNUZ", 8}, NamedBits{"I16", 16},
    NamedBits{"U16", 16},        NamedBits{"F16", 16},        NamedBits{"BF16", 16},
    NamedBits{"I32", 32},        NamedBits{"U32", 32},        NamedBits{"F32", 32},
    NamedBits{"C64", 64},        NamedBits{"F64", 64},        NamedBits{"I64", 64},
    NamedBits{"U64", 64},
};

constexpr std::int64_t kLengthBytes = sizeof(std::uint64_t);

/// The JSON, with what a parser might not see taken out of the way.
std::string read_header_text(const InputFile& file) {
  using safetensors::kMostHeaderBytes;
  const auto refuse = [&](ErrorCode code, const auto&... why) {
    fail(code, "'", file.path(), "' is not a safetensors file: ", why...);
  };
  if (file.size() < kLengthBytes) {
    refuse(ErrorCode::kIo, "it has ", file.size(), " bytes, fewer than the length of a header; ",
           safetensors::kFetchAgain);
  }
  std::string begin(static_cast<std::size_t>(std::min<std::int64_t>(file.size(), 64)), '\0');
  file.read(0, std::as_writable_bytes(std::span(begin)));
  if (is_git_lfs_pointer(begin)) refuse(ErrorCode::kConfig, kFetchByLfs);
  std::uint64_t length = 0;
  file.read(0, std::as_writable_bytes(std::span(&length, 1)));
  const auto rest = static_cast<std::uint64_t>(file.size() - kLengthBytes);
  if (length == 0 || length > kMostHeaderBytes) {
    refuse(ErrorCode::kConfig, "its first 8 bytes say that the header has ", length,
           " bytes, and it may have 1 to ", kMostHeaderBytes,
           "; is it of another format, such as a pickle of PyTorch?");
  }
  if (length > rest) {
    refuse(ErrorCode::kIo, "its header should have ", length, " bytes, and only ", rest,
           " follow; ", safetensors::kFetchAgain);
  }
  std::string text(length, '\0');
  file.read(kLengthBytes, std::as_writable_bytes(std::span(text)));
  if (const std::size_t at = text.find('\0'); at != std::string::npos) {
    refuse(ErrorCode::kConfig, "byte ", at,
           " of the header is NUL; if it was padded so, pad it with spaces");
  }
  if (text.starts_with("\xef\xbb\xbf")) {
    refuse(ErrorCode::kConfig, "the header begins with a byte order mark; write it without");
  }
  return text;
}

void check_no_duplicates(const InputFile& file, const std::vector<SafetensorsEntry>& tensors) {
  std::vector<std::string_view> names;
  names.reserve(tensors.size());
  for (const SafetensorsEntry& tensor : tensors) names.push_back(tensor.name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  require(twice == names.end(), ErrorCode::kConfig, "'", file.path(), "': tensor ",
          twice == names.end() ? "" : safetensors::shown(*twice),
          " is in the header twice; readers differ on which one counts, so write the file anew");
}

/// Puts them in the order of their bytes, which must cover the data once.
void check_coverage(const InputFile& file, std::vector<SafetensorsEntry>& tensors,
                    std::int64_t data) {
  std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  std::int64_t covered = data;
  for (const SafetensorsEntry& tensor : tensors) {
    require(tensor.begin == covered, ErrorCode::kConfig, "'", file.path(), "': tensor ",
            safetensors::shown(tensor.name), " begins at byte ", tensor.begin - data,
            " of the data, where ", covered - data,
            " bytes are taken: tensors must follow each other without ",
            tensor.begin < covered ? "overlap" : "holes", "; write the file anew");
    covered = tensor.end;
  }
  require(covered <= file.size(), ErrorCode::kIo, "'", file.path(), "' has ", file.size(),
          " bytes, and its tensors end at ", covered, ": it was cut short; ",
          safetensors::kFetchAgain);
  require(covered == file.size(), ErrorCode::kIo, "'", file.path(), "' has ", file.size() - covered,
          " bytes behind its last tensor, which belong to nothing; ", safetensors::kFetchAgain);
}

}  // namespace

int safetensors_dtype_bits(std::string_view dtype) {
  const auto found = std::find_if(kDtypes.begin(), kDtypes.end(),
                                  [&](const NamedBits& row) { return row.name == dtype; });
  return found == kDtypes.end() ? 0 : found->bits;
}

std::string_view safetensors_dtype(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "F32";
    case DType::kBFloat16:
      return "BF16";
    case DType::kFloat16:
      return "F16";
    case DType::kFloat64:
      return "F64";
    case DType::kInt32:
      return "I32";
    case DType::kInt64:
      return "I64";
    case DType::kUInt8:
      return "U8";
  }
  fail(ErrorCode::kInternal, "safetensors: no name for dtype ", static_cast<int>(dtype));
}

SafetensorsHeader read_safetensors_header(const InputFile& file) {
  const std::string text = read_header_text(file);
  SafetensorsHeader header = safetensors::parse_header(file.path(), text);
  check_no_duplicates(file, header.tensors);
  const std::int64_t data = kLengthBytes + static_cast<std::int64_t>(text.size());
  for (SafetensorsEntry& tensor : header.tensors) {
    tensor.begin += data;
    tensor.end += data;
  }
  check_coverage(file, header.tensors, data);
  return header;
}

std::string safetensors_header(std::vector<SafetensorsEntry>& tensors,
                               const std::map<std::string, std::string>& metadata) {
  std::string text = "{";
  const auto add = [&](std::string_view name, const std::string& value) {
    text += (text.size() > 1 ? "," : "") + json(name).dump() + ":" + value;
  };
  std::set<std::string_view> names;
  std::int64_t covered = 0;
  try {
    if (!metadata.empty()) add(safetensors::kMetadata, json(metadata).dump());
    for (SafetensorsEntry& tensor : tensors) {
      const std::string problem = safetensors::problem_of(tensor.name);
      require(problem.empty() && names.insert(tensor.name).second, ErrorCode::kInvalidArgument,
              "safetensors: tensor ", safetensors::shown(tensor.name),
              " cannot be written: ", problem.empty() ? "there are two of that name" : problem);
      tensor.begin = covered;
      covered += safetensors::bytes_of(tensor);
      tensor.end = covered;
      std::vector<std::int64_t> sizes;
      for (int i = 0; i < tensor.shape.rank(); ++i) sizes.push_back(tensor.shape[i]);
      add(tensor.name, concat(R"({"dtype":")", tensor.dtype, R"(","shape":)", json(sizes).dump(),
                              R"(,"data_offsets":[)", tensor.begin, ",", tensor.end, "]}"));
    }
  } catch (const json::type_error& error) {
    fail(ErrorCode::kInvalidArgument, "safetensors: a name or the metadata is not valid UTF-8");
  }
  text += "}";
  text.resize((text.size() + 7) / 8 * 8, ' ');
  require(
      text.size() <= safetensors::kMostHeaderBytes && tensors.size() <= safetensors::kMostTensors,
      ErrorCode::kInvalidArgument, "safetensors: a header of ", text.size(), " bytes and ",
      tensors.size(), " tensors; a file may have ", safetensors::kMostHeaderBytes, " and ",
      safetensors::kMostTensors);
  const auto length = static_cast<std::uint64_t>(text.size());
  text.insert(0, reinterpret_cast<const char*>(&length), sizeof(length));
  const auto data = static_cast<std::int64_t>(text.size());
  for (SafetensorsEntry& tensor : tensors) {
    tensor.begin += data;
    tensor.end += data;
  }
  return text;
}

}  // namespace tessera
