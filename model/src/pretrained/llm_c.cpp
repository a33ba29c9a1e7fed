#include "tessera/model/llm_c.h"

#include <array>
#include <cstring>
#include <utility>

#include "gpt_config.h"
#include "pretrained/stored_gpt.h"
#include "tessera/core/error.h"
#include "tessera/model/gpt_family.h"

namespace tessera {
namespace {

using pretrained::Format;
using pretrained::Places;

constexpr std::int32_t kMagic = 20240326;
constexpr std::int32_t kFloat32Version = 3, kBFloat16Version = 5;
using Header = std::array<std::int32_t, 256>;

/// The tensors of one layer, in the order in which those of all layers follow each other.
constexpr std::array<std::string_view, 12> kOfLayer{
    "ln_1.weight",        "ln_1.bias",        "attn.c_attn.weight", "attn.c_attn.bias",
    "attn.c_proj.weight", "attn.c_proj.bias", "ln_2.weight",        "ln_2.bias",
    "mlp.c_fc.weight",    "mlp.c_fc.bias",    "mlp.c_proj.weight",  "mlp.c_proj.bias"};

struct Contents {
  Places places;
  std::int64_t end = 0;  ///< of the file
};

/// Where everything lies. Throws Error{kConfig} on sizes that no model has.
Contents lay_out(const GptConfig& config, std::int64_t padded_vocab, Format format) {
  std::map<std::string, Shape> shapes;
  for (const auto& layer : make_gpt(config).layers) {
    for (const ParameterSpec& spec : layer->parameters()) shapes.emplace(spec.name, spec.shape);
  }
  Contents contents;
  contents.end = sizeof(Header);
  const auto add = [&](const std::string& name, std::int64_t rows_behind = 0) {
    const Shape shape = shapes.at(name);
    contents.places[name] = {.shape = shape,
                             .parts = {{.shape = shape, .offset = contents.end, .format = format}}};
    const std::int64_t row = shape.rank() > 1 ? shape[1] : 1;
    contents.end += (shape.numel() + rows_behind * row) * size_of(format);
  };
  add("wte.weight", padded_vocab - config.vocab_size);
  add("wpe.weight");
  for (const std::string_view tensor : kOfLayer) {
    for (std::int64_t i = 0; i < config.layers; ++i) add(concat("h.", i, ".", tensor));
  }
  add("ln_f.weight");
  add("ln_f.bias");
  return contents;
}

/// The layout's size before anything of it is made.
std::int64_t bytes_of(const GptConfig& config, std::int64_t padded_vocab, Format format) {
  const auto c = static_cast<double>(config.width);
  const double elements = static_cast<double>(padded_vocab + config.context_length) * c +
                          static_cast<double>(config.layers) * (12.0 * c * c + 13.0 * c) + 2.0 * c;
  const double bytes = elements * static_cast<double>(size_of(format)) + sizeof(Header);
  return bytes < 0x1p52 ? static_cast<std::int64_t>(bytes) : -1;
}

}  // namespace

PretrainedGpt open_llm_c(const std::string& path) {
  auto files = std::make_shared<PretrainedGpt::Files>();
  const InputFile& file = files->files.emplace_back(path);
  Header header{};
  std::string begin(static_cast<std::size_t>(std::min<std::int64_t>(file.size(), 64)), '\0');
  file.read(0, std::as_writable_bytes(std::span(begin)));
  require(!is_git_lfs_pointer(begin), ErrorCode::kConfig, "'", path, "': ", kFetchByLfs);
  const bool is_long = file.size() >= static_cast<std::int64_t>(sizeof(header));
  if (is_long) file.read(0, std::as_writable_bytes(std::span(header)));
  require(is_long && header[0] == kMagic, ErrorCode::kConfig, "'", path,
          "' is not a model file of llm.c, which begins with the number ", kMagic,
          "; a model of Hugging Face's is a folder, with config.json and model.safetensors: name "
          "the folder");
  require(header[1] == kFloat32Version || header[1] == kBFloat16Version, ErrorCode::kConfig, "'",
          path, "' is a model file of llm.c of version ", header[1], "; versions ", kFloat32Version,
          " (fp32) and ", kBFloat16Version,
          " (bf16) are read: write it anew with a current train_gpt2.py");
  const Format format = header[1] == kFloat32Version ? Format::kFloat32 : Format::kBFloat16;
  files->config = {.vocab_size = header[3],
                   .context_length = header[2],
                   .layers = header[4],
                   .heads = header[5],
                   .width = header[6]};
  const GptConfig& config = files->config;
  const std::int64_t padded_vocab = header[7];
  try {
    check(config);
  } catch (const Error& error) {
    fail(ErrorCode::kConfig, "'", path, "': ", error.what());
  }
  require(padded_vocab >= config.vocab_size, ErrorCode::kConfig, "'", path, "' says that ",
          config.vocab_size, " tokens are padded to ", padded_vocab);
  const std::int64_t wanted = bytes_of(config, padded_vocab, format);
  require(wanted == file.size(), ErrorCode::kIo, "'", path, "' has ", file.size(),
          " bytes, and a model of ", config.layers, " layers, width ", config.width, " and ",
          padded_vocab, " rows of vocabulary has ", wanted, "; copy or download it again");
  Contents contents = lay_out(config, padded_vocab, format);
  require(contents.end == wanted, ErrorCode::kInternal, "llm.c: a layout of ", contents.end,
          " bytes, not ", wanted);
  files->path = path;
  files->format = concat("a model file of llm.c, ", format == Format::kFloat32 ? "fp32" : "bf16");
  files->places = std::move(contents.places);
  return PretrainedGpt(std::move(files));
}

PretrainedWriter write_llm_c(const std::string& path, const GptConfig& config, DType dtype,
                             Storage& storage) {
  require(config.family == GptFamily::kGpt2, ErrorCode::kConfig,
          "llm.c's model files hold GPT-2s alone, and this model is a ", family_of(config).name,
          "; write a Hugging Face folder");
  require(!config.adapter.is_set(), ErrorCode::kConfig,
          "llm.c's model files have no adapters; write a Hugging Face folder of them");
  require(
      config.labels.empty(), ErrorCode::kConfig,
      "llm.c's models write text, and this one classifies sequences; write a Hugging Face folder");
  require(config.tie_embedding, ErrorCode::kConfig,
          "llm.c's models have no head of their own: its matrix is the token embedding");
  require(dtype == DType::kFloat32 || dtype == DType::kBFloat16, ErrorCode::kInvalidArgument,
          "llm.c's models are fp32 or bf16, not ", to_string(dtype));
  pretrained::require_absent(path);
  constexpr std::int64_t kRows = 128;
  const std::int64_t padded_vocab = (config.vocab_size + kRows - 1) / kRows * kRows;
  const Format format = dtype == DType::kFloat32 ? Format::kFloat32 : Format::kBFloat16;
  Contents contents = lay_out(config, padded_vocab, format);
  auto made = std::make_unique<PretrainedWriter::Target>(PretrainedWriter::Target{
      .storage = storage, .path = path, .temporary = path + ".tmp", .file = {}, .places = {}});
  PretrainedWriter::Target& target = *made;
  target.places = std::move(contents.places);
  PretrainedWriter writer(std::move(made));  // removes the file if what follows fails
  target.file = storage.create(target.temporary, contents.end);
  Header header{kMagic,
                format == Format::kFloat32 ? kFloat32Version : kBFloat16Version,
                static_cast<std::int32_t>(config.context_length),
                static_cast<std::int32_t>(config.vocab_size),
                static_cast<std::int32_t>(config.layers),
                static_cast<std::int32_t>(config.heads),
                static_cast<std::int32_t>(config.width),
                static_cast<std::int32_t>(padded_vocab)};
  target.file->write(0, std::as_bytes(std::span(header)));
  const std::int64_t rows = padded_vocab - config.vocab_size;
  const std::vector<std::byte> zeros(
      static_cast<std::size_t>(rows * config.width * size_of(format)));
  target.file->write(
      target.places.at("wpe.weight").parts.front().offset - static_cast<std::int64_t>(zeros.size()),
      zeros);
  return writer;
}

}  // namespace tessera
