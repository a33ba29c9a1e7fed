#include "tessera/model/pretrained.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <thread>
#include <utility>

#include "file_identity.h"
#include "pretrained/part_io.h"
#include "pretrained/quantized_part.h"
#include "pretrained/stored_gpt.h"
#include "tessera/checkpoint/checkpoint_folder.h"
#include "tessera/core/cpu_device.h"
#include "tessera/core/error.h"
#include "tessera/model/hugging_face.h"
#include "tessera/model/llm_c.h"

namespace tessera {
namespace {

using pretrained::as_size;
using pretrained::Format;
using pretrained::Part;
using pretrained::Place;

/// Reads elements [first, first + values.size()) of a parameter; returns the bytes.
std::int64_t read_interval(const std::vector<InputFile>& files, const Place& place,
                           std::int64_t first, std::span<float> values) {
  const std::int64_t last = first + static_cast<std::int64_t>(values.size());
  std::int64_t bytes = 0, part_begin = 0;
  for (const Part& part : place.parts) {
    const std::int64_t part_end = part_begin + part.shape.numel();
    const std::int64_t begin = std::max(first, part_begin), end = std::min(last, part_end);
    if (begin < end) {
      const auto own = values.subspan(as_size(begin - first), as_size(end - begin));
      bytes += part.quantized.format == WeightFormat::kNone
                   ? pretrained::read_part(files[part.file], part, begin - part_begin, own)
                   : pretrained::read_decoded(files, part, begin - part_begin, own);
    }
    part_begin = part_end;
  }
  for (std::int64_t i = std::max(first, part_begin); !place.new_row.empty() && i < last; ++i) {
    values[as_size(i - first)] = place.new_row[as_size(i - part_begin) % place.new_row.size()];
  }
  return bytes;
}

/// Reads elements of a parameter of `from`, whose adapters may derive it or take something from it.
std::int64_t read_interval(const PretrainedGpt::Files& from, std::string_view name,
                           const Place& place, std::int64_t first, std::span<float> values) {
  if (from.derived == nullptr) return read_interval(from.files, place, first, values);
  if (from.derived->shapes().contains(name)) {
    from.derived->read(name, first, values);
    return 0;
  }
  const std::int64_t bytes = read_interval(from.files, place, first, values);
  from.derived->subtract(name, first, values);
  return bytes;
}

/// Reads or quantises a whole parameter, as many bytes as `to` has; `values` is for its values.
/// Returns the bytes that were read.
std::int64_t read_quantized(const PretrainedGpt::Files& from, const Place& place,
                            const ParameterSpec& spec, std::vector<float>& values,
                            std::span<std::byte> to) {
  if (pretrained::is_stored_in(place, spec.format)) {
    return pretrained::read_stored(from.files, place, to);
  }
  for (const Part& part : place.parts) {
    const WeightFormat stored = part.quantized.format;
    require(stored == WeightFormat::kNone, ErrorCode::kConfig, "parameter '", spec.name,
            "' is stored in ", to_string(stored), ", and would be quantised again, to ",
            to_string(spec.format), "; keep its format, or take the model that is not quantised");
  }
  values.resize(as_size(spec.shape.numel()));
  const std::int64_t bytes = read_interval(from, spec.name, place, 0, values);
  quantize(spec.format, spec.shape, values, to, spec.name, spec.joined);
  return bytes;
}

/// Writes elements [first, first + values.size()) of a unit's flat parameter, as far as the tensor
/// has them.
void write_part(TrainingState& state, const StateTensor& tensor, std::int64_t first,
                std::span<const float> values, Stream& stream) {
  const std::int64_t begin = std::max(first, tensor.range.begin);
  const std::int64_t end =
      std::min(first + static_cast<std::int64_t>(values.size()), tensor.range.end());
  if (begin >= end) return;
  state.write(tensor.name, begin, values.subspan(as_size(begin - first), as_size(end - begin)),
              stream);
}

/// All of a parameter.
void dequantize(const Place& place, std::span<std::byte> bytes, std::span<float> values) {
  const auto stream = make_cpu_device()->create_stream({.name = "dequantize"});
  cpu_kernels().dequantize(
      {.format = place.format,
       .src = TensorView(bytes.data(), DType::kUInt8, Shape{std::ssize(bytes)}),
       .dst = TensorView(values.data(), DType::kFloat32, place.shape),
       .joined = place.joined},
      *stream);
}

const Place& place_of(const pretrained::Places& places, std::string_view name, std::size_t given,
                      const std::string& path) {
  const auto found = places.find(name);
  require(found != places.end(), ErrorCode::kNotFound, "'", path, "' has no parameter '", name,
          "'");
  require(std::cmp_equal(found->second.shape.numel(), given), ErrorCode::kInvalidArgument,
          "parameter '", name, "' ", found->second.shape, " takes ", found->second.shape.numel(),
          " values, not ", given);
  return found->second;
}

}  // namespace

namespace pretrained {

void read_base(const PretrainedGpt& base, std::string_view name, std::int64_t first,
               std::span<float> values) {
  const PretrainedGpt::Files& files = base.files();
  const auto place = files.places.find(name);
  require(place != files.places.end(), ErrorCode::kNotFound, "'", files.path,
          "' has no parameter '", name, "'");
  read_interval(files.files, place->second, first, values);
}

std::int64_t size_of(Format format) { return format == Format::kFloat32 ? 4 : 2; }

bool is_conv1d(std::string_view name) {
  return name.starts_with("h.") && name.ends_with(".weight") && !name.ends_with("ln_1.weight") &&
         !name.ends_with("ln_2.weight");
}

std::string without_slash(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

void require_absent(const std::string& path) {
  std::error_code error;
  const bool is_there = std::filesystem::exists(std::filesystem::symlink_status(path, error));
  require(!is_there, ErrorCode::kConfig, "'", path,
          "' exists already; remove it, or give another name");
}

}  // namespace pretrained

const std::string& PretrainedGpt::path() const { return files_->path; }
const GptConfig& PretrainedGpt::config() const { return files_->config; }
const std::string& PretrainedGpt::format() const { return files_->format; }
WeightFormat PretrainedGpt::stored_format() const { return files_->stored_format; }

std::vector<std::string> PretrainedGpt::unquantized() const {
  std::vector<std::string> names;
  for (const auto& [name, place] : files_->places) {
    const bool plain = std::ranges::any_of(
        place.parts, [](const Part& part) { return part.quantized.format == WeightFormat::kNone; });
    const ParameterSpec spec{.name = name, .shape = place.shape, .initializer = {}};
    if (stored_format() != WeightFormat::kNone && plain && pretrained::is_block_matrix(spec)) {
      names.push_back(name);
    }
  }
  return names;
}

bool PretrainedGpt::is_checkpoint() const { return files_->checkpoint != nullptr; }

DType PretrainedGpt::dtype() const {
  if (is_checkpoint()) {
    return named_dtype(companion_files_of(files_->path)).value_or(DType::kFloat32);
  }
  std::map<Format, std::int64_t> elements;
  for (const auto& [name, place] : files_->places) {
    for (const Part& part : place.parts) {
      const bool plain = part.quantized.format == WeightFormat::kNone;
      if (plain) elements[part.format] += part.shape.numel();
    }
  }
  const auto most =
      std::ranges::max_element(elements, {}, [](const auto& entry) { return entry.second; });
  if (most == elements.end() || most->first == Format::kFloat32) return DType::kFloat32;
  return most->first == Format::kBFloat16 ? DType::kBFloat16 : DType::kFloat16;
}

CompanionFiles PretrainedGpt::companion_files() const {
  CompanionFiles files = companion_files_of(files_->path);
  if (!is_checkpoint()) name_dtype(files, dtype());
  return files;
}

std::vector<NamedText> PretrainedGpt::identity() const {
  if (is_checkpoint()) {
    return {{"content of initial parameters",
             concat("hash ", hash_of(to_text(files_->checkpoint->manifest())))}};
  }
  std::vector<data::MappedFile> mapped;
  std::vector<const data::MappedFile*> all;
  mapped.reserve(files_->files.size());
  for (const InputFile& file : files_->files) {
    all.push_back(&mapped.emplace_back(file.path()));
  }
  std::vector<NamedText> identity = data::identity_of(all);
  std::erase_if(identity, [](const NamedText& text) { return text.name.starts_with("names"); });
  for (NamedText& text : identity) {
    text.name = text.name.substr(0, text.name.find(' ')) + " of initial parameters";
  }
  return identity;
}

void PretrainedGpt::read(std::string_view name, std::span<float> values) const {
  const Place& place = place_of(files_->places, name, values.size(), files_->path);
  if (is_checkpoint()) {
    const std::lock_guard lock(files_->mutex);
    if (place.format == WeightFormat::kNone) {
      std::ranges::copy(files_->checkpoint->read(std::string(name)), values.begin());
      return;
    }
    std::vector<std::byte> bytes = files_->checkpoint->read_bytes(std::string(name));
    return dequantize(place, bytes, values);
  }
  read_interval(*files_, name, place, 0, values);
}

std::int64_t PretrainedGpt::load(TrainingState& state, Stream& stream) const {
  if (is_checkpoint()) {
    const Manifest& manifest = files_->checkpoint->manifest();
    require_same_parameters(manifest, state.layout(), files_->path);
    return load_state(manifest, files_->path, state, stream, LoadedState::kValues);
  }
  constexpr std::int64_t kBlock = std::int64_t{4} << 20;  // elements
  const auto bytes_of_values = [](std::int64_t numel) {
    return numel * static_cast<std::int64_t>(sizeof(float));
  };
  std::int64_t bytes = 0, numel = 0;
  std::vector<float> values;
  for (const StateTensor& tensor : state) {
    if (tensor.role != Role::kParameter) continue;
    for (const StatePiece& piece : state.pieces(tensor)) {
      if (files_->fresh.contains(piece.parameter->name)) continue;
      numel += state.flat(tensor).quantized ? piece.parameter->shape.numel() : piece.elements.numel;
    }
  }
  begin_work(state.work(), HostTask::kLoad, bytes_of_values(numel));
  for (const StateTensor& tensor : state) {
    if (tensor.role != Role::kParameter) continue;
    if (state.flat(tensor).quantized) {
      state.write_quantized(
          tensor,
          [&](const ParameterSpec& spec, std::span<std::byte> to) {
            const Place& place =
                place_of(files_->places, spec.name, as_size(spec.shape.numel()), files_->path);
            bytes += read_quantized(*files_, place, spec, values, to);
            advance_work(state.work(), HostTask::kLoad, bytes_of_values(spec.shape.numel()));
          },
          stream);
      continue;
    }
    const StateTensor* const master = state.find(Role::kMaster, {tensor.unit, tensor.flat});
    for (const StatePiece& piece : state.pieces(tensor)) {
      const ParameterSpec& spec = *piece.parameter;
      if (files_->fresh.contains(spec.name)) continue;
      const Place& place =
          place_of(files_->places, spec.name, as_size(spec.shape.numel()), files_->path);
      for (std::int64_t begin = 0; begin < piece.elements.numel; begin += kBlock) {
        values.resize(as_size(std::min(kBlock, piece.elements.numel - begin)));
        bytes += read_interval(*files_, spec.name, place, piece.elements.begin + begin, values);
        write_part(state, tensor, piece.first + begin, values, stream);
        if (master != nullptr) write_part(state, *master, piece.first + begin, values, stream);
        advance_work(state.work(), HostTask::kLoad, bytes_of_values(std::ssize(values)));
      }
    }
  }
  return bytes;
}

ReadParameter PretrainedGpt::reader() const {
  return [self = *this](const ParameterSpec& spec, std::span<float> values) {
    self.read(spec.name, values);
  };
}

std::function<std::span<const float>(const std::string&)> PretrainedGpt::values() const {
  struct Copy {
    std::string name;
    std::vector<float> values;
  };
  struct Copies {
    std::mutex mutex;
    std::map<std::thread::id, Copy> by_thread;
  };
  return [self = *this,
          copies = std::make_shared<Copies>()](const std::string& name) -> std::span<const float> {
    const auto place = self.files_->places.find(name);
    if (place == self.files_->places.end()) self.read(name, {});  // throws
    Copy* copy = nullptr;
    {
      const std::lock_guard lock(copies->mutex);
      copy = &copies->by_thread[std::this_thread::get_id()];
    }
    if (copy->name != name) {
      copy->name.clear();
      copy->values.resize(as_size(place->second.shape.numel()));
      self.read(name, copy->values);
      copy->name = name;
    }
    return copy->values;
  };
}

PretrainedGpt open_pretrained(const std::string& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  require(std::filesystem::exists(status), ErrorCode::kNotFound, "'", path,
          "' does not exist; of a model on Hugging Face's hub, download the folder first: hf "
          "download NAME --local-dir FOLDER");
  if (!find_checkpoint(path).empty()) return open_checkpoint(path);
  return std::filesystem::is_directory(status) ? open_hugging_face(path) : open_llm_c(path);
}

namespace {

void check_half_range(std::string_view name, std::span<const float> values) {
  constexpr float kOverflow = 65520.0F;  // rounds to infinity
  const auto found =
      std::ranges::find_if(values, [](float value) { return std::abs(value) >= kOverflow; });
  require(found == values.end(), ErrorCode::kConfig, "parameter '", name, "' has the value ",
          found == values.end() ? 0.0F : *found,
          ", which fp16 does not have; write bf16 or fp32: `export_dtype` bf16");
}

}  // namespace

PretrainedWriter::PretrainedWriter(std::unique_ptr<Target> target) : target_(std::move(target)) {
  for (const auto& [name, place] : target_->places) target_->missing.insert(name);
}

PretrainedWriter::PretrainedWriter(PretrainedWriter&&) noexcept = default;

PretrainedWriter::~PretrainedWriter() {
  if (target_ == nullptr || target_->finished) return;
  target_->file.reset();
  try {
    target_->storage.remove(target_->temporary);
  } catch (const Error&) {
    // The error that ended the writing is the one to tell; the next attempt replaces what is left.
  }
}

void PretrainedWriter::write(std::string_view name, std::span<const float> values) {
  if (target_->left_out.contains(name)) return;
  if (gpt::PromptFold* const fold = target_->fold.get(); fold != nullptr && fold->takes(name)) {
    fold->add(name, values);
    if (!fold->is_complete()) return;
    for (const auto& [made, own] : fold->made()) write(made, own);
    return;
  }
  const Place& place = place_of(target_->places, name, values.size(), target_->path);
  const auto missing = target_->missing.find(name);
  require(missing != target_->missing.end(), ErrorCode::kInvalidArgument, "parameter '", name,
          "' is written to '", target_->path, "' twice");
  std::int64_t begin = 0;
  for (const Part& part : place.parts) {
    const auto own = values.subspan(as_size(begin), as_size(part.shape.numel()));
    begin += part.shape.numel();
    if (part.quantized.format == WeightFormat::kNone) {
      if (part.format == Format::kFloat16) check_half_range(name, own);
      write_part(*target_->file, part, own);
      continue;
    }
    std::vector<std::byte> bytes(as_size(quantized_sizes(part.quantized.format, part.shape).bytes));
    quantize(part.quantized.format, part.shape, own, bytes, name);
    pretrained::write_stored(*target_->file, part, bytes);
  }
  target_->missing.erase(missing);
}

bool PretrainedWriter::copy(std::string_view name, const PretrainedGpt& from) {
  const auto source = from.files().places.find(name);
  const auto target = target_->places.find(name);
  const auto missing = target_->missing.find(name);
  if (source == from.files().places.end() || missing == target_->missing.end()) return false;
  const std::vector<Part>&parts = target->second.parts, &stored = source->second.parts;
  for (std::size_t p = 0; p < parts.size(); ++p) {
    const WeightFormat format = parts[p].quantized.format;
    if (format == WeightFormat::kNone || stored.size() != parts.size() ||
        stored[p].quantized.format != format || stored[p].shape != parts[p].shape) {
      return false;
    }
  }
  for (std::size_t p = 0; p < parts.size(); ++p) {
    pretrained::write_stored(*target_->file, parts[p],
                             pretrained::read_stored(from.files().files, stored[p]));
  }
  target_->missing.erase(missing);
  return true;
}

void PretrainedWriter::finish() {
  Target& target = *target_;
  require(target.missing.empty(), ErrorCode::kInvalidArgument, "parameter '",
          target.missing.empty() ? "" : *target.missing.begin(), "' was not written to '",
          target.path, "'");
  target.file->sync();
  target.file.reset();
  if (target.is_folder) target.storage.sync_folder(target.temporary);
  pretrained::require_absent(target.path);  // it was when the writing began
  target.storage.rename(target.temporary, target.path);
  target.finished = true;
  const std::filesystem::path parent = std::filesystem::path(target.path).parent_path();
  target.storage.sync_folder(parent.empty() ? "." : parent.string());
}

}  // namespace tessera
