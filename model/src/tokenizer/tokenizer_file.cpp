#include "tokenizer/tokenizer_file.h"

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "strict_json.h"
#include "tessera/core/error.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/json_place.h"
#include "tokenizer/word_pattern.h"

namespace tessera::data {
namespace {

using nlohmann::json;

class FileReader {
 public:
  FileReader(const json& root, const std::string& path) : root_{path, "", root} {
    out_.path = path;
  }

  TokenizerFile read() {
    root_.object({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
                  "post_processor", "decoder", "model"});
    root_.must_be("version", "1.0");
    root_.must_be_null("truncation");
    root_.must_be_null("padding");
    if (is_word_pieces()) {
      read_word_pieces();
      return finish();
    }
    out_.pieces = is_metaspace() || splits_at_spaces() || !root_.has("pre_tokenizer");
    if (out_.pieces) {
      read_space_marks();
      read_pieces_decoder(root_.need("decoder"));
    } else {
      read_byte_level_parts();
    }
    read_model(root_.need("model"));
    return finish();
  }

 private:
  TokenizerFile finish() {
    if (root_.has("added_tokens")) read_added(root_.at("added_tokens").array());
    if (root_.has("post_processor")) read_post_processor(root_.at("post_processor"));
    return std::move(out_);
  }

  bool is_word_pieces() const {
    const Place model = root_.need("model");
    return model.value.is_object() && model.has("type") && model.type() == "WordPiece";
  }

  void read_word_pieces() {
    WordPieceRules& rules = out_.word_pieces.emplace();
    const Place normalizer = root_.need("normalizer"), splits = root_.need("pre_tokenizer"),
                model = root_.need("model");
    normalizer.object({"type", "clean_text", "handle_chinese_chars", "strip_accents", "lowercase"});
    if (normalizer.type() != "BertNormalizer") normalizer.refuse_type("'BertNormalizer'");
    rules.text = {.cleans = normalizer.boolean("clean_text", true),
                  .splits_chinese = normalizer.boolean("handle_chinese_chars", true),
                  .lowercase = normalizer.boolean("lowercase", true)};
    rules.text.strips_accents = normalizer.boolean("strip_accents", rules.text.lowercase);
    splits.object({"type"});
    if (splits.type() != "BertPreTokenizer") splits.refuse_type("'BertPreTokenizer'");
    model.object(
        {"type", "unk_token", "continuing_subword_prefix", "max_input_chars_per_word", "vocab"});
    if (model.has("continuing_subword_prefix")) {
      rules.prefix = model.at("continuing_subword_prefix").text();
    }
    if (model.has("max_input_chars_per_word")) {
      rules.most = model.at("max_input_chars_per_word").id();
    }
    read_vocabulary(model.need("vocab"));
    const Place unknown = model.need("unk_token");
    out_.unknown = merged_id(unknown, unknown.text());
    if (!root_.has("decoder")) return;
    const Place decoder = root_.at("decoder").object({"type", "prefix", "cleanup"});
    if (decoder.type() != "WordPiece") decoder.refuse_type("'WordPiece'");
    decoder.must_be("prefix", rules.prefix);
    rules.cleans_up = decoder.boolean("cleanup", true);
  }

  bool is_metaspace() const {
    if (!root_.has("pre_tokenizer")) return false;
    const Place place = root_.at("pre_tokenizer");
    return place.value.is_object() && place.has("type") && place.type() == "Metaspace";
  }

  /// Gemma's files have it so, behind a normaliser that leaves no space to split at.
  bool splits_at_spaces() const {
    if (!root_.has("pre_tokenizer")) return false;
    const Place place = root_.at("pre_tokenizer");
    return place.value.is_object() && place.has("type") && place.type() == "Split" &&
           place.has("pattern") && place.at("pattern").value == json{{"String", " "}};
  }

  void read_byte_level_parts() {
    if (root_.has("normalizer")) {
      for (const Place& part : parts_of(root_.at("normalizer"), "normalizers")) {
        part.object({"type"});
        if (part.type() != "NFC") part.refuse_type("'NFC'");
        out_.nfc = true;
      }
    }
    read_pre_tokenizer(root_.need("pre_tokenizer"));
    const std::vector<Place> decoders = parts_of(root_.need("decoder"), "decoders");
    if (decoders.size() != 1) root_.at("decoder").refuse("is not ByteLevel", kOtherTokenizer);
    const Place& decoder = decoders.front();
    if (decoder.type() != "ByteLevel") decoder.refuse_type("'ByteLevel'");
    decoder.object({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  }

  /// The parts of a Sequence, or the one part that there is.
  static std::vector<Place> parts_of(const Place& place, const char* list) {
    if (!place.value.is_object()) place.refuse("is ", place.shown(), kOtherTokenizer);
    if (place.type() != "Sequence") return {place};
    const Place all = place.need(list).array();
    std::vector<Place> parts;
    for (std::size_t i = 0; i < all.value.size(); ++i) parts.push_back(all.at(i));
    return parts;
  }

  /// Spaces become marks, by a normaliser or by Metaspace.
  void read_space_marks() {
    bool replaces = false;
    if (root_.has("normalizer")) {
      for (const Place& part : parts_of(root_.at("normalizer"), "normalizers")) {
        if (part.type() == "Prepend" && !replaces) {
          part.object({"type", "prepend"}).must_be("prepend", kSpaceMark);
          out_.prefix = SpacePrefix::kEverySection;
        } else if (part.type() == "Replace") {
          read_replace(part, " ", kSpaceMark);
          replaces = out_.normalizer_marks = true;
        } else {
          part.refuse_type("'Prepend', then 'Replace',");
        }
      }
    }
    if (root_.has("pre_tokenizer") && !(replaces && splits_at_spaces())) {
      const Place place = root_.at("pre_tokenizer");
      if (splits_at_spaces())
        place.refuse("is Split at spaces without a normalizer that marks them", kOtherTokenizer);
      if (replaces)
        place.refuse("is Metaspace beside a normalizer that marks spaces", kOtherTokenizer);
      read_metaspace(place);
    } else if (!replaces) {
      root_.refuse("has neither a pre_tokenizer nor a normalizer that marks spaces",
                   kOtherTokenizer);
    }
  }

  void read_metaspace(const Place& place) {
    place.object({"type", "replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"});
    place.must_be("replacement", kSpaceMark);
    place.must_be("str_rep", kSpaceMark);
    out_.splits_at_marks = place.boolean("split", true);
    const bool prefixed = place.boolean("add_prefix_space", true);
    const std::string scheme = place.has("prepend_scheme") ? place.at("prepend_scheme").text()
                               : prefixed                  ? "always"
                                                           : "never";
    if (scheme == "first") {
      out_.prefix = SpacePrefix::kFirst;
    } else if (scheme == "always") {
      out_.prefix = SpacePrefix::kSections;
    } else if (scheme != "never") {
      place.at("prepend_scheme").refuse("is '", scheme, "', not first, always or never");
    }
  }

  static void read_replace(const Place& place, std::string_view from, std::string_view to) {
    place.object({"type", "pattern", "content"});
    place.need("pattern").object({"String"}).must_be("String", from);
    place.must_be("content", to);
  }

  void read_pieces_decoder(const Place& decoder) {
    const std::vector<Place> parts = parts_of(decoder, "decoders");
    constexpr std::string_view kOrder[] = {"Replace", "ByteFallback", "Fuse", "Strip"};
    const bool sizes = parts.size() == 3 || parts.size() == 4;
    for (std::size_t i = 0; sizes && i < parts.size(); ++i) {
      if (parts[i].type() != kOrder[i]) {
        parts[i].refuse("is '", parts[i].type(), "', where '", kOrder[i], "' is expected",
                        kOtherTokenizer);
      }
    }
    if (!sizes) {
      decoder.refuse("is not a Sequence of Replace, ByteFallback, Fuse and Strip", kOtherTokenizer);
    }
    read_replace(parts[0], kSpaceMark, " ");
    parts[1].object({"type"});
    parts[2].object({"type"});
    out_.strips_first_space = parts.size() == 4;
    if (!out_.strips_first_space) return;
    parts[3].object({"type", "content", "start", "stop"});
    parts[3].must_be("content", " ");
    parts[3].must_be("start", 1);
    parts[3].must_be("stop", 0);
  }

  /// Splits in their order, of which one is ByteLevel.
  void read_pre_tokenizer(const Place& place) {
    bool is_spelt = false;
    for (const Place& part : parts_of(place, "pretokenizers")) {
      WordSplit split{.of_spellings = is_spelt};
      const std::string& type = part.type();
      if (type == "ByteLevel") {
        part.object({"type", "add_prefix_space", "trim_offsets", "use_regex"});
        if (std::exchange(is_spelt, true)) part.refuse("is the second ByteLevel", kOtherTokenizer);
        split.adds_space = part.boolean("add_prefix_space", true);
        if (part.boolean("use_regex", true)) split.pattern = pattern_text(WordPatternKind::kGpt2);
        if (split.pattern.empty() && !split.adds_space) continue;
      } else if (type == "Split") {
        read_split(part, split);
      } else if (type == "Digits") {
        part.object({"type", "individual_digits"});
        split.pattern = digits_pattern(!part.boolean("individual_digits", false));
      } else if (type == "Punctuation") {
        part.object({"type", "behavior"});
        const std::string behavior = part.has("behavior") ? part.at("behavior").text() : "Isolated";
        if (behavior != "Contiguous") part.must_be("behavior", "Isolated");
        split.pattern = punctuation_pattern(behavior == "Contiguous");
      } else {
        part.refuse_type("'ByteLevel', 'Split', 'Digits', 'Punctuation' or, alone, 'Metaspace'");
      }
      out_.splits.push_back(std::move(split));
    }
    if (!is_spelt) {
      place.refuse("has no ByteLevel, so characters have no tokens", kOtherTokenizer);
    }
  }

  static void read_split(const Place& place, WordSplit& split) {
    place.object({"type", "pattern", "behavior", "invert"});
    const Place regex = place.need("pattern").object({"Regex"}).need("Regex");
    split.pattern = regex.text();
    const std::string& behavior = place.need("behavior").text();
    if (behavior == "Removed") {
      place.must_be("invert", true);  // matches would be removed
      split.removes_rest = true;
    } else {
      place.must_be("behavior", "Isolated");
    }
    if (split.pattern.empty()) regex.refuse("is empty; download the file again");
    try {
      const WordPattern compiled(split.pattern);
    } catch (const Error& error) {
      regex.refuse("is ", regex.shown(), ", which ", error.what(), kOtherTokenizer);
    }
  }

  void read_model(const Place& model) {
    model.object({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                  "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"});
    if (model.has("type") && model.type() != "BPE") model.refuse_type("'BPE' or 'WordPiece'");
    model.must_be_null("dropout");
    model.must_be("continuing_subword_prefix", "");
    model.must_be("end_of_word_suffix", "");
    out_.ignore_merges = model.boolean("ignore_merges", false);
    if (out_.pieces && !model.boolean("byte_fallback", false)) {
      model.refuse("has no byte_fallback, so some characters would have no tokens",
                   kOtherTokenizer);
    }
    read_vocabulary(model.need("vocab"));
    read_unknown(model);
    read_merges(model.need("merges").array());
  }

  void read_vocabulary(const Place& vocab) {
    if (!vocab.value.is_object() || vocab.value.empty()) {
      vocab.refuse("is no object of tokens; download the file again");
    }
    ids_.reserve(vocab.value.size());
    std::vector<bool> seen(vocab.value.size());
    for (const auto& item : vocab.value.items()) {
      const Place place{vocab.file, vocab.key + "['" + item.key() + "']", item.value()};
      const auto id = static_cast<std::size_t>(place.id());
      // Some leave out a few ids, none makes many.
      constexpr std::size_t kMostIds = std::size_t{1} << 24;
      if (id >= kMostIds) {
        place.refuse("is ", id, ", which is too large for ", vocab.value.size(),
                     " tokens; ids must be below ", kMostIds);
      }
      if (id >= seen.size()) seen.resize(id + 1);
      if (seen[id]) {
        place.refuse("is ", id, ", which is taken by another token; ids must be there once");
      }
      seen[id] = true;
      if (id >= out_.tokens.size()) out_.tokens.resize(id + 1);
      out_.tokens[id] = item.key();
      ids_.emplace(item.key(), place.id());
    }
    out_.model_tokens = out_.tokens.size();
    if (out_.pieces) check_bytes_of_pieces(vocab);
  }

  void check_bytes_of_pieces(const Place& vocab) const {
    std::vector<bool> has_byte(256);
    for (const std::string& token : out_.tokens) {
      const int byte = byte_of_piece(token);
      if (byte >= 0) has_byte[static_cast<std::size_t>(byte)] = true;
    }
    const auto missing = std::ranges::find(has_byte, false);
    if (missing == has_byte.end()) return;
    vocab.refuse("has no token for the byte ", missing - has_byte.begin(),
                 "; a vocabulary with byte_fallback has all 256");
  }

  /// Reads the token for bytes without one of their own, as some vocabularies lack the bytes that
  /// their texts did not have. Else the token for unknown characters is never used.
  void read_unknown(const Place& model) {
    int missing = 0;
    while (missing < 256 && ids_.contains(std::string(byte_spelling(missing)))) ++missing;
    if (out_.pieces || missing == 256) return;
    if (model.boolean("byte_fallback", false)) {
      model.refuse("has byte_fallback, and no token '", byte_spelling(missing), "' for the byte ",
                   missing, kOtherTokenizer);
    }
    if (!model.has("unk_token")) return;
    const Place unknown = model.at("unk_token");
    out_.unknown = merged_id(unknown, unknown.text());
    out_.fuses_unknown = model.boolean("fuse_unk", false);
  }

  std::int32_t merged_id(const Place& merge, const std::string& token) const {
    const auto found = ids_.find(token);
    if (found == ids_.end()) {
      merge.refuse("needs the token '", token,
                   "', which the vocabulary lacks; download the file "
                   "again");
    }
    return found->second;
  }

  void read_merges(const Place& merges) {
    std::unordered_set<std::uint64_t> pairs;
    for (std::size_t i = 0; i < merges.value.size(); ++i) {
      const Place merge = merges.at(i);
      std::string left, right;
      if (merge.value.is_array() && merge.value.size() == 2) {
        left = merge.at(std::size_t{0}).text();
        right = merge.at(std::size_t{1}).text();
      } else {
        const std::string& both = merge.text();
        const std::size_t space = both.find(' ');
        if (space == std::string::npos || both.find(' ', space + 1) != std::string::npos) {
          merge.refuse("is '", both, "', not two tokens with a space between");
        }
        left = both.substr(0, space);
        right = both.substr(space + 1);
      }
      const Merge ids{merged_id(merge, left), merged_id(merge, right),
                      merged_id(merge, left + right)};
      if (!pairs.insert(pair_of(ids.left, ids.right)).second) {
        merge.refuse("is there twice ('", left, "' and '", right, "'); remove one");
      }
      out_.merges.push_back(ids);
    }
  }

  void read_added(const Place& added) {
    std::size_t next_id = ids_.size();  // as the package numbers them
    for (std::size_t i = 0; i < added.value.size(); ++i) {
      const Place place = added.at(i).object(
          {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
      place.must_be("single_word", false);
      AddedToken token{.content = place.need("content").text(),
                       .id = place.need("id").id(),
                       .special = place.boolean("special", false),
                       .normalized = place.boolean("normalized", false),
                       .strips_left = place.boolean("lstrip", false),
                       .strips_right = place.boolean("rstrip", false)};
      if (out_.word_pieces && token.normalized &&
          out_.word_pieces->text.normal(token.content).empty()) {
        place.refuse("('", token.content,
                     "') has no characters left when it is normalized; "
                     "remove it");
      }
      if (out_.normalizer_marks && token.normalized && (token.strips_left || token.strips_right)) {
        place.refuse("is normalized and takes white space, which is not known here together",
                     kOtherTokenizer);
      }
      if (token.content.empty()) place.refuse("has no content; remove it");
      const auto [known, is_new] = ids_.emplace(token.content, token.id);
      // The package would number it anew.
      if (!is_new && (known->second != token.id || !added_.insert(token.content).second)) {
        place.refuse("('", token.content, "') has the id ", token.id, ", but is also known as ",
                     known->second, "; each token must be there once");
      }
      const auto id = static_cast<std::size_t>(token.id);
      if (is_new) {
        if (id != next_id || (id < out_.tokens.size() && !out_.tokens[id].empty())) {
          place.refuse("('", token.content, "') has the id ", token.id, ", but the next is ",
                       next_id, "; ids must have no gaps and be in order");
        }
        if (id >= out_.tokens.size()) out_.tokens.resize(id + 1);
        out_.tokens[id] = token.content;
        added_.insert(token.content);
      }
      next_id = std::max(next_id, id + 1);
      out_.added.push_back(std::move(token));
    }
  }

  void read_post_processor(const Place& place) {
    if (!place.value.is_object()) place.refuse("is ", place.shown(), kOtherTokenizer);
    const std::string& type = place.type();
    if (type == "Sequence") {
      const Place parts = place.object({"type", "processors"}).need("processors").array();
      for (std::size_t i = 0; i < parts.value.size(); ++i) {
        if (parts.at(i).value.is_object() && parts.at(i).type() == "Sequence") {
          parts.at(i).refuse("is a Sequence in a Sequence; write them as one");
        }
        read_post_processor(parts.at(i));
      }
    } else if (type == "TemplateProcessing") {
      read_template(place.object({"type", "single", "pair", "special_tokens"}));
    } else if (type == "BertProcessing") {
      place.object({"type", "sep", "cls"});
      out_.before.push_back(read_pair(place.need("cls")));
      out_.after.push_back(read_pair(place.need("sep")));
    } else if (type == "ByteLevel") {
      // Offsets are all that it changes.
      place.object({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    } else {
      place.refuse_type(
          "'ByteLevel', 'TemplateProcessing', 'BertProcessing' or a 'Sequence' of them");
    }
  }

  /// A token and its id, ["[SEP]", 102].
  std::int32_t read_pair(const Place& place) const {
    if (place.array().value.size() != 2) place.refuse("is no token with its id");
    const std::int32_t id = place.at(std::size_t{1}).id();
    if (merged_id(place, place.at(std::size_t{0}).text()) != id) {
      place.refuse("is ", place.shown(), ", and the token has another id; download the file again");
    }
    return id;
  }

  void read_template(const Place& place) {
    if (has_template_) place.refuse("is the second template, where one is expected");
    has_template_ = true;
    const Place single = place.need("single").array();
    const Place special = place.need("special_tokens");
    if (!special.value.is_object()) special.refuse("is no object; download the file again");
    bool text_seen = false;
    for (std::size_t i = 0; i < single.value.size(); ++i) {
      const Place piece = single.at(i).object({"SpecialToken", "Sequence"});
      if (piece.value.size() != 1) piece.refuse("must have one key; download the file again");
      if (piece.has("Sequence")) {
        const Place sequence = piece.at("Sequence").object({"id", "type_id"});
        if (sequence.need("id").text() != "A" || std::exchange(text_seen, true)) {
          sequence.refuse("is ", sequence.shown(), ", and only one 'A' is known here",
                          kOtherTokenizer);
        }
        continue;
      }
      const Place token = piece.need("SpecialToken").object({"id", "type_id"});
      const std::string& name = token.need("id").text();
      if (!special.value.contains(name)) {
        token.refuse("names '", name, "', which special_tokens lacks; download the file again");
      }
      const Place ids = special.at(name).object({"id", "ids", "tokens"}).need("ids").array();
      for (std::size_t k = 0; k < ids.value.size(); ++k) {
        const std::int32_t id = ids.at(k).id();
        if (static_cast<std::size_t>(id) >= out_.tokens.size()) {
          ids.at(k).refuse("is ", id, ", outside of the vocabulary of ", out_.tokens.size());
        }
        (text_seen ? out_.after : out_.before).push_back(id);
      }
    }
    if (!text_seen) single.refuse("has no Sequence 'A', so no text; download the file again");
  }

  Place root_;
  TokenizerFile out_;
  std::unordered_map<std::string, std::int32_t> ids_;
  std::set<std::string> added_;
  bool has_template_ = false;
};

}  // namespace

TokenizerFile parse_tokenizer_file(std::string_view text, const std::string& path) {
  const json root = parse_strict_json(text, path, "name a tokenizer.json as Hugging Face has them");
  return FileReader(root, path).read();
}

}  // namespace tessera::data
