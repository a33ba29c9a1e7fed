#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "pretrained/stored_gpt.h"

// Matrices that bitsandbytes has quantised, in a folder as transformers writes it: beside
// NAME.weight are NAME.weight.absmax, .quant_map, .quant_state.bitsandbytes__nf4 (a JSON object as
// bytes) and, if scales have codes, .nested_absmax and .nested_quant_map; in 8 bits NAME.SCB and
// NAME.weight_format.
namespace tessera::pretrained {

struct StoredTensor {
  std::size_t file = 0;
  SafetensorsEntry entry;
};
using StoredTensors = std::map<std::string, StoredTensor, std::less<>>;

/// Bytes of a description that is written: spaces follow the object, since its length must be known
/// before the mean of the scales is.
inline constexpr std::size_t kDescriptionBytes = 256;

/// Whether the table of a format with codes of 4 bits is that of nf4, not of fp4.
bool is_nf4(WeightFormat format);

/// Whether a tensor has what belongs to codes beside it.
bool has_scales(const StoredTensors& tensors, const std::string& name);

/// Where a quantised part lies, if its tensors are what `format` and the part's shape say; adds
/// their names to `used`. Reads their description and tables. Throws Error{kConfig} that names the
/// tensor, and Error{kIo}.
Part found_quantized_part(Part part, const std::string& name, WeightFormat format,
                          const StoredTensors& tensors, const std::vector<InputFile>& files,
                          std::set<std::string>& used);

/// Whether all of a parameter is stored in a format, so that it can be read as it is.
bool is_stored_in(const Place& place, WeightFormat format);
/// Such a parameter as quantized_sizes() has it. Returns the bytes that were read.
std::int64_t read_stored(const std::vector<InputFile>& files, const Place& place,
                         std::span<std::byte> to);

/// Reads elements [first, first + values.size()) of a quantised part; returns the bytes.
std::int64_t read_decoded(const std::vector<InputFile>& files, const Part& part, std::int64_t first,
                          std::span<float> values);

/// The tensors of a part that is to be written, in `format`: the first is NAME.weight.
std::vector<SafetensorsEntry> quantized_entries(const std::string& name, const Shape& shape,
                                                WeightFormat format);
/// Where they lie, once entries have their offsets.
Part placed_part(Part part, WeightFormat format, std::span<const SafetensorsEntry> entries);
/// Writes the tables, which are every part's.
void write_tables(Storage::File& file, const Part& part);
/// Writes a part of the bytes of quantized_sizes().
void write_stored(Storage::File& file, const Part& part, std::span<const std::byte> bytes);
/// Such bytes, as they are stored.
std::vector<std::byte> read_stored(const std::vector<InputFile>& files, const Part& part);

}  // namespace tessera::pretrained
