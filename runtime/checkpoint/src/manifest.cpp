#include "tessera/checkpoint/manifest.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "tessera/core/error.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kVersion = 1;
constexpr std::string_view kFormat = "tessera-checkpoint";
constexpr std::size_t kHashDigits = 16;
constexpr int kMostDepth = 8;

std::string in_digits(std::uint64_t hash) {
  std::string text(kHashDigits, '0');
  for (auto digit = text.rbegin(); digit != text.rend(); ++digit, hash >>= 4) {
    *digit = "0123456789abcdef"[hash & 15];
  }
  return text;
}

Json to_json(const std::vector<NamedText>& values) {
  Json all = Json::array();
  for (const NamedText& value : values) all.push_back({value.name, value.value});
  return all;
}

Json to_json(const LossScalerState& scaler) {
  return {{"scale", static_cast<double>(scaler.scale)},
          {"good_steps", scaler.good_steps},
          {"hysteresis_left", scaler.hysteresis_left},
          {"skipped", scaler.skipped}};
}

Json to_json(const BestEvaluation& best) {
  return {
      {"loss", best.loss}, {"step", best.step}, {"without_improvement", best.without_improvement}};
}

constexpr std::size_t kWordDigits = 8;

/// The name, and the words of each tensor as digits.
Json to_json(const Fp8History& history) {
  Json all = Json::array({history.name});
  for (const std::vector<std::uint32_t>& words : history.words) {
    std::string text;
    for (std::size_t w = 0; w < words.size(); ++w) {
      if (words[w] == 0 && text.size() == kWordDigits) continue;
      text += in_digits(words[w]).substr(kHashDigits - kWordDigits);
    }
    all.push_back(text);
  }
  return all;
}

Json to_json(const SavedParameter& parameter) {
  Json shape = Json::array(), states = Json::array();
  for (int i = 0; i < parameter.shape.rank(); ++i) shape.push_back(parameter.shape[i]);
  for (const SavedState& state : parameter.states) {
    states.push_back({state.name, to_string(state.dtype)});
    if (state.block != 1) states.back().push_back(state.block);
    if (state.block == kFactoredBlock) states.back().push_back(state.numbers);
  }
  return {{"name", parameter.name}, {"shape", shape}, {"states", states}};
}

Json to_json(const SavedFile& file) {
  Json hashes = Json::array(), pieces = Json::array();
  for (const std::uint64_t hash : file.chunk_hashes) hashes.push_back(in_digits(hash));
  for (const SavedPiece& piece : file.pieces) {
    pieces.push_back({piece.parameter, piece.state, piece.elements.begin, piece.elements.end()});
  }
  return {{"name", file.name}, {"bytes", file.bytes}, {"chunks", hashes}, {"pieces", pieces}};
}

/// Reads values of known types, and says where one is missing or of another.
class Reader {
 public:
  Reader(const Json& value, std::string place) : value_(value), place_(std::move(place)) {}

  Reader operator[](const char* key) const {
    require(value_.is_object() && value_.contains(key), ErrorCode::kConfig, place_, " has no '",
            key, "'");
    return {value_.at(key), concat(place_, " ", key)};
  }
  Reader at(std::size_t index) const {
    require(value_.is_array() && index < value_.size(), ErrorCode::kConfig, place_, " has no item ",
            index);
    return {value_.at(index), concat(place_, "[", index, "]")};
  }
  std::size_t size() const {
    require(value_.is_array(), ErrorCode::kConfig, place_, " is no array");
    return value_.size();
  }
  std::int64_t number() const {
    require(value_.is_number_unsigned() && value_.get<std::uint64_t>() <= std::uint64_t{1} << 58,
            ErrorCode::kConfig, place_, " is no count");
    return value_.get<std::int64_t>();
  }
  /// One of `count`.
  int index(std::size_t count) const {
    require(number() < static_cast<std::int64_t>(count), ErrorCode::kConfig, place_, " is none of ",
            count);
    return static_cast<int>(number());
  }
  bool has(const char* key) const { return value_.is_object() && value_.contains(key); }
  /// Above 0, and finite in fp32.
  float positive() const {
    const float value = value_.is_number() ? value_.get<float>() : 0.0F;
    require(value > 0.0F && std::isfinite(value), ErrorCode::kConfig, place_,
            " is no number above 0");
    return value;
  }
  double finite() const {
    require(value_.is_number() && std::isfinite(value_.get<double>()), ErrorCode::kConfig, place_,
            " is no number");
    return value_.get<double>();
  }
  std::string text() const {
    require(value_.is_string(), ErrorCode::kConfig, place_, " is no text");
    return value_.get<std::string>();
  }
  std::uint64_t hash() const {
    const std::string digits = text();
    require(digits.size() == kHashDigits &&
                digits.find_first_not_of("0123456789abcdef") == std::string::npos,
            ErrorCode::kConfig, place_, " is no hash");
    return std::stoull(digits, nullptr, 16);
  }
  std::vector<NamedText> named_texts() const {
    std::vector<NamedText> all;
    for (std::size_t i = 0; i < size(); ++i) {
      all.push_back({at(i).at(0).text(), at(i).at(1).text()});
    }
    return all;
  }
  const std::string& place() const { return place_; }

 private:
  const Json& value_;
  std::string place_;
};

std::optional<LossScalerState> read_scaler(const Reader& root) {
  if (!root.has("loss_scaler")) return std::nullopt;
  const Reader from = root["loss_scaler"];
  return LossScalerState{.scale = from["scale"].positive(),
                         .good_steps = from["good_steps"].number(),
                         .hysteresis_left = from["hysteresis_left"].number(),
                         .skipped = from["skipped"].number()};
}

/// Words of kWordDigits digits each, one or more.
std::vector<std::uint32_t> read_words(const Reader& from) {
  const std::string digits = from.text();
  require(!digits.empty() && digits.size() % kWordDigits == 0 &&
              digits.find_first_not_of("0123456789abcdef") == std::string::npos,
          ErrorCode::kConfig, from.place(), " is no history");
  std::vector<std::uint32_t> words;
  for (std::size_t i = 0; i < digits.size(); i += kWordDigits) {
    words.push_back(
        static_cast<std::uint32_t>(std::stoul(digits.substr(i, kWordDigits), nullptr, 16)));
  }
  return words;
}

std::vector<Fp8History> read_histories(const Reader& root) {
  std::vector<Fp8History> histories;
  if (!root.has("fp8_histories")) return histories;
  const Reader from = root["fp8_histories"];
  for (std::size_t i = 0; i < from.size(); ++i) {
    Fp8History& history = histories.emplace_back(Fp8History{.name = from.at(i).at(0).text()});
    for (std::size_t o = 0; o < history.words.size(); ++o) {
      history.words[o] = read_words(from.at(i).at(1 + o));
    }
  }
  return histories;
}

std::optional<BestEvaluation> read_best(const Reader& root) {
  if (!root.has("best_evaluation")) return std::nullopt;
  const Reader from = root["best_evaluation"];
  return BestEvaluation{.loss = from["loss"].finite(),
                        .step = from["step"].number(),
                        .without_improvement = from["without_improvement"].number()};
}

SavedParameter read_parameter(const Reader& from) {
  SavedParameter parameter{.name = from["name"].text(), .shape = {}, .states = {}};
  std::vector<std::int64_t> dims;
  for (std::size_t i = 0; i < from["shape"].size(); ++i) {
    dims.push_back(from["shape"].at(i).number());
  }
  require(dims.size() <= kMaxDims, ErrorCode::kConfig, from.place(), " has ", dims.size(),
          " dimensions");
  parameter.shape = Shape(dims);
  for (std::size_t i = 0; i < from["states"].size(); ++i) {
    const Reader state = from["states"].at(i);
    parameter.states.push_back({state.at(0).text(), parse_dtype(state.at(1).text())});
    SavedState& read = parameter.states.back();
    if (state.size() > 2) read.block = state.at(2).number();
    if (state.size() > 3) read.numbers = state.at(3).number();
    require(read.block >= 1 || (read.block == kFactoredBlock && read.numbers > 0),
            ErrorCode::kConfig, state.place(), " has blocks of no elements");
  }
  return parameter;
}

SavedFile read_file_entry(const Reader& from, const Manifest& manifest) {
  SavedFile file{.name = from["name"].text(),
                 .bytes = from["bytes"].number(),
                 .chunk_hashes = {},
                 .pieces = {}};
  require(!file.name.empty() && file.name.find('/') == std::string::npos && file.name[0] != '.',
          ErrorCode::kConfig, from.place(), " is named '", file.name, "'");
  for (std::size_t i = 0; i < from["chunks"].size(); ++i) {
    file.chunk_hashes.push_back(from["chunks"].at(i).hash());
  }
  for (std::size_t i = 0; i < from["pieces"].size(); ++i) {
    const Reader piece = from["pieces"].at(i);
    const int parameter = piece.at(0).index(manifest.parameters.size());
    const auto& states = manifest.parameters[static_cast<std::size_t>(parameter)].states;
    const std::int64_t begin = piece.at(2).number();
    file.pieces.push_back({.parameter = parameter,
                           .state = piece.at(1).index(states.size()),
                           .elements = {begin, piece.at(3).number() - begin}});
  }
  return file;
}

/// Pieces are of what there is, and files are as long as theirs need.
void check_pieces(const Manifest& manifest) {
  for (const SavedFile& file : manifest.files) {
    std::int64_t bytes = 0;
    for (const SavedPiece& piece : file.pieces) {
      const SavedParameter& parameter =
          manifest.parameters[static_cast<std::size_t>(piece.parameter)];
      const SavedState& state = state_of(manifest.parameters, piece);
      require(piece.elements.numel > 0 && piece.elements.end() <= numel_of(parameter, state),
              ErrorCode::kConfig, "'", file.name, "' has elements that '", parameter.name,
              "' has not");
      bytes += bytes_of(manifest.parameters, piece);
      require(bytes < file.bytes, ErrorCode::kConfig, "'", file.name, "' has ", file.bytes,
              " bytes, too few for its elements");
    }
    const std::int64_t chunks = (file.bytes + kChunkBytes - 1) / kChunkBytes;
    require(file.bytes > 0 && static_cast<std::int64_t>(file.chunk_hashes.size()) == chunks,
            ErrorCode::kConfig, "'", file.name, "' has ", file.bytes, " bytes in ",
            file.chunk_hashes.size(), " chunks");
  }
}

/// Every element is there, once.
void check_cover(const Manifest& manifest) {
  std::map<std::pair<int, int>, std::vector<Range>> pieces;
  std::set<std::string> names;
  for (const SavedFile& file : manifest.files) {
    require(names.insert(file.name).second, ErrorCode::kConfig, "two files are named '", file.name,
            "'");
    for (const SavedPiece& p : file.pieces) pieces[{p.parameter, p.state}].push_back(p.elements);
  }
  for (std::size_t p = 0; p < manifest.parameters.size(); ++p) {
    const SavedParameter& parameter = manifest.parameters[p];
    require(names.insert("parameter " + parameter.name).second, ErrorCode::kConfig,
            "two parameters are named '", parameter.name, "'");
    for (std::size_t s = 0; s < parameter.states.size(); ++s) {
      const std::string name =
          tensor_name(manifest.parameters, {static_cast<int>(p), static_cast<int>(s), {}});
      auto& ranges = pieces[{static_cast<int>(p), static_cast<int>(s)}];
      std::ranges::sort(ranges, {}, &Range::begin);
      std::int64_t end = 0;
      for (const Range& range : ranges) {
        require(range.begin == end, ErrorCode::kConfig, "elements ", std::min(end, range.begin),
                " to ", std::max(end, range.begin) - 1, " of '", name, "' are in ",
                range.begin < end ? "two files" : "no file");
        end = range.end();
      }
      const std::int64_t numel = numel_of(parameter, parameter.states[s]);
      require(end == numel, ErrorCode::kConfig, "elements ", end, " to ", numel - 1, " of '", name,
              "' are in no file");
    }
  }
}

/// The hash of a text in which the place of the hash itself has zeros.
std::uint64_t own_hash(std::string text, std::size_t place) {
  text.replace(place, kHashDigits, kHashDigits, '0');
  return hash_of(text);
}

constexpr std::string_view kHashKey = "\"xxh3\": \"";

void check_hash(std::string_view text, const Reader& root) {
  const std::uint64_t written = root["xxh3"].hash();
  const std::size_t place = text.find(kHashKey);
  require(place != text.npos && place + kHashKey.size() + kHashDigits <= text.size() &&
              own_hash(std::string(text), place + kHashKey.size()) == written,
          ErrorCode::kConfig,
          "its hash does not match its text: the file was damaged, or changed by hand");
}

Manifest read_root(std::string_view text, const Reader& root) {
  require(root["format"].text() == kFormat, ErrorCode::kConfig, "its format is '",
          root["format"].text(), "', not '", kFormat, "'");
  require(root["version"].number() == kVersion, ErrorCode::kConfig, "its version is ",
          root["version"].number(), ", and this program reads version ", kVersion,
          "; use the program that wrote it, or a newer one");
  check_hash(text, root);
  Manifest manifest{.step = root["step"].number(),
                    .samples = root["samples"].number(),
                    .loss_scaler = read_scaler(root),
                    .best = read_best(root),
                    .fp8_histories = read_histories(root),
                    .model = root["model"].named_texts(),
                    .data = root["data"].named_texts(),
                    .optimizer = root["optimizer"].named_texts(),
                    .run = root["run"].named_texts(),
                    .parameters = {},
                    .files = {}};
  require(root["chunk_bytes"].number() == kChunkBytes, ErrorCode::kConfig, "its chunks have ",
          root["chunk_bytes"].number(), " bytes, not ", kChunkBytes);
  for (std::size_t i = 0; i < root["parameters"].size(); ++i) {
    manifest.parameters.push_back(read_parameter(root["parameters"].at(i)));
  }
  for (std::size_t i = 0; i < root["files"].size(); ++i) {
    manifest.files.push_back(read_file_entry(root["files"].at(i), manifest));
  }
  check_pieces(manifest);
  check_cover(manifest);
  return manifest;
}

}  // namespace

std::uint64_t hash_of(std::string_view bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

const SavedState& state_of(const std::vector<SavedParameter>& parameters, const SavedPiece& piece) {
  return parameters[static_cast<std::size_t>(piece.parameter)]
      .states[static_cast<std::size_t>(piece.state)];
}

std::int64_t numel_of(const SavedParameter& parameter, const SavedState& state) {
  if (state.block == kFactoredBlock) return state.numbers;
  return (parameter.shape.numel() + state.block - 1) / state.block;
}

std::string tensor_name(const std::vector<SavedParameter>& parameters, const SavedPiece& piece) {
  const std::string& name = parameters[static_cast<std::size_t>(piece.parameter)].name;
  const std::string& state = state_of(parameters, piece).name;
  return state == "parameter" ? name : concat(name, ":", state);
}

std::int64_t bytes_of(const std::vector<SavedParameter>& parameters, const SavedPiece& piece) {
  return piece.elements.numel *
         static_cast<std::int64_t>(size_of(state_of(parameters, piece).dtype));
}

std::int64_t bytes_of(const std::vector<SavedParameter>& parameters,
                      const std::vector<SavedPiece>& pieces) {
  std::int64_t bytes = 0;
  for (const SavedPiece& piece : pieces) bytes += bytes_of(parameters, piece);
  return bytes;
}

std::string to_text(const std::vector<Fp8History>& histories) {
  Json all = Json::array();
  for (const Fp8History& history : histories) all.push_back(to_json(history));
  return Json{{"fp8_histories", all}}.dump();
}

std::vector<Fp8History> parse_histories(std::string_view text) {
  const Json root = Json::parse(text);
  return read_histories(Reader(root, "it"));
}

std::string to_text(const Manifest& manifest) {
  Json parameters = Json::array(), files = Json::array();
  for (const SavedParameter& parameter : manifest.parameters) {
    parameters.push_back(to_json(parameter));
  }
  for (const SavedFile& file : manifest.files) files.push_back(to_json(file));
  Json root{{"format", kFormat},
            {"version", kVersion},
            {"xxh3", std::string(kHashDigits, '0')},
            {"step", manifest.step},
            {"samples", manifest.samples},
            {"model", to_json(manifest.model)},
            {"data", to_json(manifest.data)},
            {"optimizer", to_json(manifest.optimizer)},
            {"run", to_json(manifest.run)},
            {"chunk_bytes", kChunkBytes},
            {"parameters", parameters},
            {"files", files}};
  if (manifest.loss_scaler) root["loss_scaler"] = to_json(*manifest.loss_scaler);
  if (manifest.best) root["best_evaluation"] = to_json(*manifest.best);
  for (const Fp8History& history : manifest.fp8_histories) {
    root["fp8_histories"].push_back(to_json(history));
  }
  // A line for each item of an array, so that people can read it and its size stays sensible.
  std::string text = "{";
  for (const auto& [key, value] : root.items()) {
    text += concat(text.size() > 1 ? "," : "", "\n\"", key, "\": ");
    if (!value.is_array() || value.empty()) {
      text += value.dump();
      continue;
    }
    std::string separator = "[\n  ";
    for (const Json& item : value) text += std::exchange(separator, ",\n  ") + item.dump();
    text += "]";
  }
  text += "\n}\n";
  const std::size_t place = text.find(kHashKey) + kHashKey.size();
  return text.replace(place, kHashDigits, in_digits(own_hash(text, place)));
}

Manifest parse_manifest(std::string_view text, const std::string& path) {
  try {
    // Deeper is no manifest, and would take as deep a stack.
    const auto check_depth = [&](int depth, Json::parse_event_t, Json&) {
      require(depth <= kMostDepth, ErrorCode::kConfig, "it is nested too deeply");
      return true;
    };
    const Json root = Json::parse(text, check_depth);
    return read_root(text, Reader(root, "it"));
  } catch (const Json::parse_error& error) {
    fail(ErrorCode::kConfig, "'", path, "' is no manifest of a checkpoint: ",
         text.empty()
             ? "it is empty"
             : concat("it was cut off or changed: byte ", std::min(error.byte, text.size()), " of ",
                      text.size(), " is where it ceases to be JSON"));
  } catch (const Json::exception& error) {
    fail(ErrorCode::kConfig, "'", path, "' is no manifest of a checkpoint: ", error.what());
  } catch (const Error& error) {
    fail(ErrorCode::kConfig, "'", path,
         "' is not a whole manifest of a checkpoint: ", error.what());
  }
}

Manifest read_manifest(const std::string& folder) {
  const std::string path = concat(folder, "/", kManifestName);
  std::ifstream file(path, std::ios::binary);
  require(file.is_open(), ErrorCode::kNotFound, "'", folder, "' has no checkpoint: there is no '",
          path, "'");
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  require(!file.bad(), ErrorCode::kIo, "cannot read '", path, "'");
  return parse_manifest(text, path);
}

}  // namespace tessera
