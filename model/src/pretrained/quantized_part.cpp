#include "pretrained/quantized_part.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "pretrained/config_reader.h"
#include "pretrained/read_array.h"
#include "strict_json.h"
#include "tessera/core/error.h"
#include "tessera/kernels/dynamic_map.h"

namespace tessera::pretrained {
namespace {

using nlohmann::json;

constexpr const char* kDownloadAgain = "; download or write all of the folder's files again";
constexpr std::int64_t kMostDescription = 4096;

std::string without_weight(const std::string& name) {
  constexpr std::string_view kWeight = "weight";
  return name.ends_with(kWeight) ? name.substr(0, name.size() - kWeight.size()) : name + ".";
}

std::string description_name(const std::string& name, WeightFormat format) {
  return name + ".quant_state.bitsandbytes__" + (is_nf4(format) ? "nf4" : "fp4");
}

std::int64_t blocks_of(const Shape& shape) {
  return (shape.numel() + kQuantizedBlock - 1) / kQuantizedBlock;
}
std::int64_t groups_of(const Shape& shape) {
  return (blocks_of(shape) + kScaleGroup - 1) / kScaleGroup;
}

/// The tensors of one quantised matrix, looked up and checked.
class Search {
 public:
  Search(const Part& part, const std::string& name, WeightFormat format,
         const StoredTensors& tensors, const std::vector<InputFile>& files,
         std::set<std::string>& used)
      : part_(part), name_(name), format_(format), tensors_(tensors), files_(files), used_(used) {}

  Part found() {
    part_.quantized.format = format_;
    part_.transposed = false;  // transposed before it was quantised
    has_short_codes(format_) ? find_short() : find_int8();
    return part_;
  }

 private:
  const StoredTensor& tensor(const std::string& name) {
    const auto found = tensors_.find(name);
    require(found != tensors_.end(), ErrorCode::kConfig, "'", path_of(name_), "': tensor '", name_,
            "' is quantised to ", to_string(format_), " by config.json, and there is no '", name,
            "' beside it", kDownloadAgain);
    used_.insert(name);
    return found->second;
  }
  const std::string& path_of(const std::string& name) const {
    return files_[tensors_.find(name)->second.file].path();
  }
  [[noreturn]] void refuse(const std::string& name, const std::string& what) const {
    fail(ErrorCode::kConfig, "'", path_of(name), "': tensor '", name, "' ", what);
  }
  /// One of exactly this dtype and shape.
  Location at(const std::string& name, std::string_view dtype, const Shape& shape) {
    const StoredTensor& found = tensor(name);
    if (found.entry.dtype != dtype || found.entry.shape != shape) {
      refuse(name, concat("is ", found.entry.dtype, " ", found.entry.shape, ", and for a matrix ",
                          part_.shape, " in ", to_string(format_), " it is ", dtype, " ", shape,
                          kDownloadAgain));
    }
    return {found.file, found.entry.begin};
  }
  void require_numbers(const std::string& name, std::span<const float> wanted) {
    const Location place = at(name, "F32", Shape{std::ssize(wanted)});
    const auto found = read_array<float>(files_[place.file], place.offset, std::ssize(wanted));
    if (!std::ranges::equal(found, wanted)) {
      refuse(name, concat("has other numbers than bitsandbytes' ", to_string(format_),
                          "; quantise the model anew with bitsandbytes 0.43 or later"));
    }
  }

  void find_short() {
    const StoredTensor& codes = tensor(name_);
    const std::int64_t bytes = (part_.shape.numel() + 1) / 2;
    // bnb_4bit_quant_storage may have the bytes as wider numbers.
    const bool is_column = codes.entry.shape.rank() == 2 && codes.entry.shape[1] == 1;
    if (!is_column || codes.entry.bytes() != bytes) {
      refuse(name_, concat("is ", codes.entry.dtype, " ", codes.entry.shape, ", and for a matrix ",
                           part_.shape, " in ", to_string(format_), " it is U8 ", Shape{bytes, 1},
                           kDownloadAgain));
    }
    part_.file = codes.file;
    part_.offset = codes.entry.begin;
    const bool coded = has_coded_scales(format_);
    part_.quantized.scales =
        at(name_ + ".absmax", coded ? "U8" : "F32", Shape{blocks_of(part_.shape)});
    require_numbers(name_ + ".quant_map", code_table(format_));
    if (coded) {
      part_.quantized.groups = at(name_ + ".nested_absmax", "F32", Shape{groups_of(part_.shape)});
      require_numbers(name_ + ".nested_quant_map", dynamic_map(true));
    }
    check_description(coded);
  }

  void check_description(bool coded) {
    const std::string name = description_name(name_, format_);
    const StoredTensor& found = tensor(name);
    if (found.entry.dtype != "U8" || found.entry.bytes() > kMostDescription) {
      refuse(name, concat("is no description of a quantised matrix", kDownloadAgain));
    }
    const auto text = read_array<char>(files_[found.file], found.entry.begin, found.entry.bytes());
    const json state =
        data::parse_strict_json({text.data(), text.size()}, concat(path_of(name), ": ", name));
    const auto expect = [&](const char* key, const json& wanted, const char* remedy) {
      const json value = state.is_object() && state.contains(key) ? state.at(key) : json();
      if (value == wanted) return;
      refuse(name, concat("has ", key, " ", shown(value), ", and ", shown(wanted),
                          " can be read here; ", remedy));
    };
    constexpr const char* kAnew = "quantise the model anew with transformers' BitsAndBytesConfig";
    expect("quant_type", is_nf4(format_) ? "nf4" : "fp4", kAnew);
    expect("blocksize", kQuantizedBlock, kAnew);
    json shape = json::array();
    for (int d = 0; d < part_.shape.rank(); ++d) shape.push_back(part_.shape[d]);
    expect("shape", shape, "config.json is of another model");
    if (!coded) return;
    expect("nested_blocksize", kScaleGroup, kAnew);
    expect("nested_dtype", "float32", kAnew);
    const json mean = state.contains("nested_offset") ? state.at("nested_offset") : json();
    if (!mean.is_number()) refuse(name, concat("has no nested_offset", kDownloadAgain));
    part_.quantized.mean = static_cast<float>(mean.get<double>());
  }

  void find_int8() {
    const Location codes = at(name_, "I8", part_.shape);
    part_.file = codes.file;
    part_.offset = codes.offset;
    part_.quantized.scales = at(without_weight(name_) + "SCB", "F32", Shape{part_.shape[0]});
    const std::string format = without_weight(name_) + "weight_format";
    if (!tensors_.contains(format)) return;  // older files
    const Location place = at(format, "U8", Shape{});
    const auto value = read_array<std::uint8_t>(files_[place.file], place.offset, 1).front();
    if (value != 0) {
      refuse(format, concat("is ", int{value},
                            ", a layout of old GPUs, and only rows (0) can be "
                            "read; load and save the folder with a newer bitsandbytes"));
    }
  }

  Part part_;
  const std::string& name_;
  WeightFormat format_;
  const StoredTensors& tensors_;
  const std::vector<InputFile>& files_;
  std::set<std::string>& used_;
};

}  // namespace

bool is_nf4(WeightFormat format) { return code_table(format) == code_table(WeightFormat::kNf4); }

bool has_scales(const StoredTensors& tensors, const std::string& name) {
  return tensors.contains(name + ".absmax") || tensors.contains(without_weight(name) + "SCB");
}

Part found_quantized_part(Part part, const std::string& name, WeightFormat format,
                          const StoredTensors& tensors, const std::vector<InputFile>& files,
                          std::set<std::string>& used) {
  return Search(part, name, format, tensors, files, used).found();
}

std::vector<SafetensorsEntry> quantized_entries(const std::string& name, const Shape& shape,
                                                WeightFormat format) {
  std::vector<SafetensorsEntry> all;
  const auto add = [&](const std::string& of, const char* dtype, const Shape& own) {
    all.push_back({.name = of, .dtype = dtype, .shape = own});
  };
  if (!has_short_codes(format)) {
    add(name, "I8", shape);
    add(without_weight(name) + "SCB", "F32", Shape{shape[0]});
    add(without_weight(name) + "weight_format", "U8", Shape{});
    return all;
  }
  const bool coded = has_coded_scales(format);
  add(name, "U8", Shape{(shape.numel() + 1) / 2, 1});
  add(name + ".absmax", coded ? "U8" : "F32", Shape{blocks_of(shape)});
  add(description_name(name, format), "U8", Shape{static_cast<std::int64_t>(kDescriptionBytes)});
  add(name + ".quant_map", "F32", Shape{16});
  if (!coded) return all;
  add(name + ".nested_absmax", "F32", Shape{groups_of(shape)});
  add(name + ".nested_quant_map", "F32", Shape{256});
  return all;
}

Part placed_part(Part part, WeightFormat format, std::span<const SafetensorsEntry> entries) {
  part.transposed = false;
  part.offset = entries[0].begin;
  part.quantized = {.format = format, .scales = {0, entries[1].begin}};
  part.quantized.description = entries[2].begin;
  if (has_short_codes(format)) part.quantized.table = entries[3].begin;
  if (has_coded_scales(format)) {
    part.quantized.groups = {0, entries[4].begin};
    part.quantized.map = entries[5].begin;
  }
  return part;
}

}  // namespace tessera::pretrained
