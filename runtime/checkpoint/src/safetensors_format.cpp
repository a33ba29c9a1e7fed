#include "safetensors_format.h"

#include <array>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "tessera/core/error.h"

namespace tessera::safetensors {
namespace {

using nlohmann::json;

constexpr std::uint64_t kMostElements = std::uint64_t{1} << 58;  // as Shape::numel

/// Takes the parser's events one by one, so that what it would pass over is seen: a key that
/// repeats, a number that is not an unsigned integer. No value is nested deeper than the format's.
class HeaderEvents : public nlohmann::json_sax<json> {
 public:
  explicit HeaderEvents(const std::string& path) : path_(path) {}
  SafetensorsHeader take() { return std::move(header_); }

  /// Metadata of null is none, as the format's own library reads it.
  bool null() override {
    if (at_ != At::kMetadataStart) return unexpected("null");
    at_ = At::kHeader;
    return true;
  }
  bool boolean(bool) override { return unexpected("true or false"); }
  bool binary(binary_t&) override { return unexpected("binary data"); }
  bool number_integer(number_integer_t) override { return unexpected("a negative number"); }
  bool number_float(number_float_t, const string_t& text) override {
    return unexpected(concat("the number ", text.substr(0, 32)));
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (at_ != At::kShapeNumber && at_ != At::kOffset) return unexpected("a number");
    const bool shape = at_ == At::kShapeNumber;
    const std::size_t most = shape ? static_cast<std::size_t>(kMaxDims) : 2;
    std::vector<std::int64_t>& numbers = shape ? sizes_ : offsets_;
    if (numbers.size() == most) {
      refuse(shape ? "has more than 5 dimensions" : "has data_offsets that are not two numbers");
    }
    if (value > kMostElements) refuse("has the number ", value, ", which is above 2^58");
    numbers.push_back(static_cast<std::int64_t>(value));
    return true;
  }
  bool string(string_t& text) override {
    if (at_ == At::kDtype) {
      tensor_.dtype = text;
      at_ = At::kTensor;
    } else if (at_ == At::kMetadataText) {
      header_.metadata[key_] = text;
      at_ = At::kMetadata;
    } else {
      unexpected("a text");
    }
    return true;
  }
  bool key(string_t& text) override {
    if (at_ == At::kHeader) {
      begin_tensor(text);
    } else if (at_ == At::kMetadata) {
      if (header_.metadata.contains(text)) refuse("has the key ", shown(text), " twice");
      key_ = text;
      at_ = At::kMetadataText;
    } else {
      begin_field(text);
    }
    return true;
  }
  bool start_object(std::size_t) override {
    if (at_ == At::kStart) {
      at_ = At::kHeader;
    } else if (at_ == At::kTensorStart) {
      at_ = At::kTensor;
    } else if (at_ == At::kMetadataStart) {
      at_ = At::kMetadata;
    } else {
      unexpected("an object");
    }
    return true;
  }
  bool end_object() override {
    if (at_ == At::kTensor) finish_tensor();
    at_ = At::kHeader;
    return true;
  }
  bool start_array(std::size_t) override {
    if (at_ == At::kShape) {
      at_ = At::kShapeNumber;
    } else if (at_ == At::kOffsets) {
      at_ = At::kOffset;
    } else {
      unexpected("a list");
    }
    return true;
  }
  bool end_array() override {
    at_ = At::kTensor;
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const json::exception& error) override {
    // Its text begins with "[json.exception.parse_error.101] ".
    const std::string what = error.what();
    const std::size_t bracket = what.find("] ");
    const std::string why = bracket == std::string::npos ? what : what.substr(bracket + 2, 200);
    fail(ErrorCode::kConfig, "'", path_, "': the header is not valid JSON: ",
         json(why).dump(-1, ' ', true, json::error_handler_t::replace), "; ", kFetchAgain);
  }

 private:
  /// The value or key that comes next.
  enum class At {
    kStart,
    kHeader,
    kTensorStart,
    kTensor,
    kDtype,
    kShape,
    kShapeNumber,
    kOffsets,
    kOffset,
    kMetadataStart,
    kMetadata,
    kMetadataText,
  };
  struct Field {
    std::string_view name;
    At at;
  };
  static constexpr std::array kFields{Field{"dtype", At::kDtype}, Field{"shape", At::kShape},
                                      Field{"data_offsets", At::kOffsets}};

  template <typename... Why>
  [[noreturn]] void refuse(const Why&... why) const {
    fail(ErrorCode::kConfig, "'", path_, "': ",
         at_ == At::kStart      ? "the header"
         : tensor_name_.empty() ? std::string(kMetadata)
                                : concat("tensor ", tensor_name_),
         " ", why..., "; write the file anew, with a current version of safetensors");
  }
  bool unexpected(const std::string& what) const {
    refuse(at_ == At::kStart ? "is " : "has ", what, ", where ", wanted(), " must be");
  }
  const char* wanted() const {
    switch (at_) {
      case At::kDtype:
        return "the name of a dtype";
      case At::kShape:
        return "the list of a shape's sizes";
      case At::kOffsets:
        return "the list of two offsets";
      case At::kShapeNumber:
      case At::kOffset:
        return "an integer from 0 up";
      case At::kMetadataText:
        return "a text";
      default:
        return "an object";
    }
  }

  void begin_tensor(const std::string& name) {
    if (name == kMetadata) {
      tensor_name_.clear();
      if (std::exchange(has_metadata_, true)) refuse("is in the header twice");
      at_ = At::kMetadataStart;
      return;
    }
    tensor_name_ = shown(name);
    if (const std::string problem = problem_of(name); !problem.empty()) refuse(problem);
    if (header_.tensors.size() == kMostTensors) refuse("is number 1,000,001, one too many");
    tensor_ = {.name = name};
    sizes_.clear();
    offsets_.clear();
    seen_ = {};
    at_ = At::kTensorStart;
  }
  void begin_field(const std::string& name) {
    for (std::size_t i = 0; i < kFields.size(); ++i) {
      if (kFields[i].name != name) continue;
      if (std::exchange(seen_[i], true)) refuse("has '", name, "' twice");
      at_ = kFields[i].at;
      return;
    }
    refuse("has the key ", shown(name), ", which the format does not know");
  }
  void finish_tensor() {
    for (std::size_t i = 0; i < kFields.size(); ++i) {
      if (!seen_[i]) refuse("has no '", kFields[i].name, "'");
    }
    if (offsets_.size() != 2) refuse("has data_offsets that are not two numbers");
    tensor_.shape = Shape(sizes_);
    tensor_.begin = offsets_[0];
    tensor_.end = offsets_[1];
    std::int64_t bytes = 0;
    try {
      bytes = bytes_of(tensor_);
    } catch (const Error& error) {
      refuse(error.what());
    }
    if (tensor_.begin > tensor_.end || tensor_.end - tensor_.begin != bytes) {
      refuse("has data_offsets [", tensor_.begin, ", ", tensor_.end, "], and ", tensor_.dtype, " ",
             tensor_.shape, " takes ", bytes, " bytes");
    }
    header_.tensors.push_back(std::move(tensor_));
  }

  const std::string& path_;
  SafetensorsHeader header_;
  At at_ = At::kStart;
  bool has_metadata_ = false;
  std::string key_;          ///< of the metadata
  std::string tensor_name_;  ///< in quotes, for errors; empty in the metadata
  SafetensorsEntry tensor_;
  std::array<bool, kFields.size()> seen_{};
  std::vector<std::int64_t> sizes_, offsets_;
};

}  // namespace

SafetensorsHeader parse_header(const std::string& path, const std::string& text) {
  HeaderEvents events(path);
  json::sax_parse(text, &events);
  return events.take();
}

std::string problem_of(std::string_view name) {
  if (name.empty()) return "has an empty name";
  if (name.size() > kLongestName) {
    return concat("has a name of ", name.size(), " bytes; there may be ", kLongestName);
  }
  if (name == kMetadata) return "has the name that stands for the file's metadata";
  for (const char character : name) {
    const auto byte = static_cast<unsigned char>(character);
    if (byte < 0x20 || byte == 0x7f) return "has a control character in its name";
  }
  return "";
}

std::int64_t bytes_of(const SafetensorsEntry& tensor) {
  const int bits = safetensors_dtype_bits(tensor.dtype);
  require(bits > 0, ErrorCode::kInvalidArgument, "has the dtype ", shown(tensor.dtype),
          ", which the format does not know");
  std::uint64_t most = kMostElements;
  std::int64_t numel = 1;
  for (int i = 0; i < tensor.shape.rank(); ++i) {
    const auto size = static_cast<std::uint64_t>(tensor.shape[i]);
    require(size <= most, ErrorCode::kInvalidArgument, "has the shape ", tensor.shape,
            ", too large for any memory");
    // A dimension of 0 hides no overflow in the others.
    if (size > 0) most /= size;
    numel *= tensor.shape[i];
  }
  require(numel % 8 * bits % 8 == 0, ErrorCode::kInvalidArgument, "has ", numel, " elements of ",
          bits, " bits, which are no whole number of bytes");
  return numel / 8 * bits + numel % 8 * bits / 8;
}

std::string shown(std::string_view name) {
  constexpr std::size_t kMostShown = 120;
  std::string text = json(name).dump(-1, ' ', true, json::error_handler_t::replace);
  text = text.substr(1, text.size() - 2);
  if (text.size() > kMostShown) text = text.substr(0, kMostShown) + "...";
  return "'" + text + "'";
}

}  // namespace tessera::safetensors
