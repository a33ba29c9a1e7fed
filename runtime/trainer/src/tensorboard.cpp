#include "tessera/trainer/tensorboard.h"

#include <unistd.h>
#include <array>
#include <bit>
#include <chrono>
#include <cstring>
#include <filesystem>

#include "tessera/core/error.h"
#include "tessera/core/host_name.h"

namespace tessera {
namespace {

constexpr std::uint32_t kPolynomial = 0x82f63b78U;  // bits reversed

constexpr std::array<std::uint32_t, 256> make_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < table.size(); ++byte) {
    std::uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) {
      value = (value >> 1) ^ ((value & 1U) != 0 ? kPolynomial : 0U);
    }
    table[byte] = value;
  }
  return table;
}

constexpr auto kTable = make_table();

/// CRC-32C (Castagnoli), as RFC 3720 defines it: 0xe3069283 of "123456789".
std::uint32_t crc32c(std::string_view data) {
  std::uint32_t crc = 0xffffffffU;
  for (const char c : data) {
    crc = kTable[(crc ^ static_cast<unsigned char>(c)) & 0xffU] ^ (crc >> 8);
  }
  return ~crc;
}

// Just enough of the protocol buffer encoding: a message is a row of fields, each a key (field
// number and wire type) and a value.
enum class Wire : std::uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void append_varint(std::string& out, std::uint64_t value) {
  while (value >= 0x80U) {
    out += static_cast<char>((value & 0x7fU) | 0x80U);
    value >>= 7;
  }
  out += static_cast<char>(value);
}

void append_key(std::string& out, std::uint32_t field, Wire wire) {
  append_varint(out, (field << 3) | static_cast<std::uint32_t>(wire));
}

template <typename Number>
void append_fixed(std::string& out, Number value) {
  static_assert(std::endian::native == std::endian::little);
  std::array<char, sizeof(Number)> bytes{};
  std::memcpy(bytes.data(), &value, sizeof value);
  out.append(bytes.data(), bytes.size());
}

void append_bytes(std::string& out, std::uint32_t field, std::string_view value) {
  append_key(out, field, Wire::kBytes);
  append_varint(out, value.size());
  out += value;
}

void append_integer(std::string& out, std::uint32_t field, std::int64_t value) {
  append_key(out, field, Wire::kVarint);
  append_varint(out, static_cast<std::uint64_t>(value));
}

// Field numbers of event.proto, summary.proto, tensor.proto and tensor_shape.proto.
namespace event {
constexpr std::uint32_t kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5;
}
namespace summary {
constexpr std::uint32_t kValue = 1;
constexpr std::uint32_t kTag = 1, kSimpleValue = 2, kTensor = 8, kMetadata = 9;
constexpr std::uint32_t kPluginData = 1, kPluginName = 1;
}  // namespace summary
namespace tensor {
constexpr std::uint32_t kDtype = 1, kShape = 2, kStringValue = 8;
constexpr std::uint32_t kDim = 2, kSize = 1;
constexpr std::int64_t kString = 7;  // DT_STRING
}  // namespace tensor

std::string scalar_value(std::string_view tag, double number) {
  std::string value;
  append_bytes(value, summary::kTag, tag);
  append_key(value, summary::kSimpleValue, Wire::kFixed32);
  append_fixed(value, static_cast<float>(number));
  return value;
}

std::string text_value(std::string_view tag, std::string_view text) {
  std::string dim, shape, content, plugin, metadata, value;
  append_integer(dim, tensor::kSize, 1);
  append_bytes(shape, tensor::kDim, dim);
  append_integer(content, tensor::kDtype, tensor::kString);
  append_bytes(content, tensor::kShape, shape);
  append_bytes(content, tensor::kStringValue, text);
  append_bytes(plugin, summary::kPluginName, "text");
  append_bytes(metadata, summary::kPluginData, plugin);
  append_bytes(value, summary::kTag, tag);
  append_bytes(value, summary::kTensor, content);
  append_bytes(value, summary::kMetadata, metadata);
  return value;
}

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// A checksum of zeros must not look like data: TFRecord rotates it and adds a constant.
std::uint32_t masked_crc(std::string_view data) {
  return std::rotr(crc32c(data), 15) + 0xa282ead8U;
}

constexpr std::string_view kBeginning = "events.out.tfevents.";
constexpr std::string_view kOurEnd = ".tessera";

/// TensorBoard orders files by the seconds in their names; two of one second differ in the process.
std::string event_file(const std::string& folder) {
  const auto name = concat(kBeginning, static_cast<std::int64_t>(wall_seconds()), ".", host_name(),
                           ".", getpid(), ".0", kOurEnd);
  return (std::filesystem::path(folder) / name).string();
}

}  // namespace

std::vector<std::string> event_files(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(kBeginning)) files.push_back(entry.path().string());
  }
  return files;
}

bool is_our_event_file(const std::string& path) { return path.ends_with(kOurEnd); }

TensorBoardLog::TensorBoardLog(const std::string& folder)
    : file_(event_file(folder), "`tensorboard`") {
  std::string first;
  append_key(first, event::kWallTime, Wire::kFixed64);
  append_fixed(first, wall_seconds());
  append_bytes(first, event::kFileVersion, "brain.Event:2");
  write_record(first);
}

void TensorBoardLog::scalars(std::int64_t step,
                             const std::vector<std::pair<std::string_view, double>>& values) {
  std::string message;
  for (const auto& [tag, number] : values) {
    append_bytes(message, summary::kValue, scalar_value(tag, number));
  }
  write_event(step, message);
}

void TensorBoardLog::evaluation(const EvaluationRecord& record) {
  std::vector<std::pair<std::string_view, double>> values{{"eval/loss", record.loss},
                                                          {"eval/perplexity", record.perplexity}};
  if (const auto accuracy = record.token_accuracy()) {
    values.emplace_back("eval/mean_token_accuracy", *accuracy);
  }
  if (const auto f1 = record.macro_f1()) values.emplace_back("eval/macro_f1", *f1);
  if (const auto f1 = record.f1()) values.emplace_back("eval/f1", *f1);
  scalars(record.step, values);
}

void TensorBoardLog::text(std::string_view tag, std::string_view markdown) {
  std::string message;
  append_bytes(message, summary::kValue, text_value(tag, markdown));
  write_event(0, message);
}

void TensorBoardLog::write_event(std::int64_t step, std::string_view message) {
  std::string record;
  append_key(record, event::kWallTime, Wire::kFixed64);
  append_fixed(record, wall_seconds());
  append_integer(record, event::kStep, step);
  append_bytes(record, event::kSummary, message);
  write_record(record);
}

void TensorBoardLog::write_record(std::string_view data) {
  std::string length;
  append_fixed(length, static_cast<std::uint64_t>(data.size()));
  std::string record = length;
  append_fixed(record, masked_crc(length));
  record += data;
  append_fixed(record, masked_crc(data));
  file_.write(record);
}

}  // namespace tessera
