#include "tessera/model/tokenizer.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <utility>

#include "mapped_file.h"
#include "tessera/core/digest.h"
#include "tessera/core/error.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/nfc.h"
#include "tokenizer/tokenizer_tables.h"
#include "tokenizer/utf8.h"
#include "tokenizer/white_space.h"
#include "tokenizer/word_pattern.h"

namespace tessera {

using data::AddedToken;
using data::AddedTokens;
using data::TokenizerFile;

namespace {

constexpr std::size_t kMaxFileBytes = std::size_t{128} << 20;

std::string read_bounded(const std::string& path) {
  const data::MappedFile file(path);
  require(file.bytes().size() <= kMaxFileBytes, ErrorCode::kConfig, "'", path, "' has ",
          file.bytes().size(), " bytes, and a tokenizer.json at most ", kMaxFileBytes,
          "; name a tokenizer.json");
  std::string text(file.bytes().size(), '\0');
  file.copy(0, std::as_writable_bytes(std::span(text)));
  return text;
}

}  // namespace

struct TokenEncoder::State {
  explicit State(std::shared_ptr<const Tokenizer::Tables> of)
      : tables(std::move(of)), pairs(tables->pairs) {
    for (const data::WordPattern& pattern : tables->patterns) words.emplace_back(pattern);
  }

  /// After tokens of `part`, which begins at byte `begin` of the text, were appended. `inserted`:
  /// bytes in front of them that are not in the text.
  void place(std::string_view part, std::size_t inserted, const std::vector<std::int32_t>& tokens) {
    if (ends == nullptr) return;
    const auto begin = static_cast<std::size_t>(part.data() - whole.data());
    std::size_t length = 0;
    for (std::size_t i = ends->size(); i < tokens.size(); ++i) {
      length += length_of(tokens[i], part, length, inserted);
      const std::size_t own = length - std::min(length, inserted);
      ends->push_back(begin + std::min(own, part.size()));
    }
  }

  /// How many bytes of the part, behind its first `done`, a token is of: those that have no token
  /// are left out before its own, or are what the unknown token is of.
  std::size_t length_of(std::int32_t token, std::string_view part, std::size_t done,
                        std::size_t inserted) const {
    const std::size_t own = tables->bytes[static_cast<std::size_t>(token)].size();
    if (tables->file.pieces || done < inserted) return own;
    const std::string_view rest = part.substr(std::min(done - inserted, part.size()));
    const auto lacks = [&](std::size_t at) {
      return at < rest.size() && tables->pairs.lacks(rest[at]);
    };
    std::size_t length = 0;
    if (token == tables->file.unknown && lacks(0)) {
      do ++length;
      while (tables->file.fuses_unknown && lacks(length));
      return length;
    }
    for (std::size_t left = own; left > 0; --left, ++length) {
      while (lacks(length)) ++length;
    }
    return length;
  }

  /// Tokens of `text`: those of `added` where they are, with the white space that they take, and of
  /// what is between by `rest`.
  template <typename Rest>
  void split(const AddedTokens& added, std::string_view text, std::vector<std::int32_t>& tokens,
             const Rest& rest) {
    std::size_t done = 0;
    while (done < text.size()) {
      const AddedTokens::Found found = added.find(text, done);
      if (found.begin == std::string_view::npos) return rest(text.substr(done));
      const std::string_view before = text.substr(done, found.begin - done);
      rest(
          before.substr(0, before.size() - (found.strips_left ? data::trailing_space(before) : 0)));
      tokens.push_back(found.id);
      done = found.begin + found.length;
      if (found.strips_right) done += data::leading_space(text.substr(done));
      if (ends != nullptr) {
        ends->push_back(static_cast<std::size_t>(text.data() - whole.data()) + done);
      }
    }
  }

  /// `continued`: the text goes on where another one was cut.
  void encode_pieces(std::string_view text, bool continued, std::vector<std::int32_t>& tokens) {
    const auto by_section = [&](std::string_view section) {
      if (section.empty()) return;
      const bool first = section.data() == text.data();
      const data::SpacePrefix prefix =
          first && continued ? data::SpacePrefix::kNone : tables->file.prefix;
      const std::string marked = data::with_space_marks(section, prefix, first);
      const auto spaces = static_cast<std::size_t>(std::ranges::count(section, ' '));
      const std::size_t as_long = section.size() + spaces * (data::kSpaceMark.size() - 1);
      encode_marked(section, marked, marked.size() > as_long, tokens);
    };
    split(tables->raw, text, tokens, [&](std::string_view section) {
      if (tables->file.normalizer_marks) return by_section(section);
      split(tables->normalized, section, tokens, by_section);
    });
  }

  /// `marked` is the section's spelling, `inserted` with a mark in front that is not in the text.
  void encode_marked(std::string_view section, std::string_view marked, bool inserted,
                     std::vector<std::int32_t>& tokens) {
    std::size_t done = 0;  // of the section
    const auto encode_part = [&](std::string_view part, bool has_more) {
      for (std::size_t end = 0; !part.empty(); part.remove_prefix(end)) {
        end =
            tables->file.splits_at_marks ? part.find(data::kSpaceMark, 1) : std::string_view::npos;
        end = std::min(end, part.size());
        pairs.encode(part.substr(0, end), tokens);
      }
      place(section.substr(done), has_more ? 1 : 0, tokens);  // a mark is a space's byte there
    };
    while (tables->file.normalizer_marks) {
      const AddedTokens::Found found = tables->normalized.find(marked, 0);
      if (found.begin == std::string_view::npos) break;
      const std::string_view before = marked.substr(0, found.begin);
      if (!before.empty()) encode_part(before, inserted);
      const std::string_view through = marked.substr(0, found.begin + found.length);
      done += in_section(section.substr(done),
                         inserted ? through.substr(data::kSpaceMark.size()) : through);
      inserted = false;
      tokens.push_back(found.id);
      if (ends != nullptr) {
        ends->push_back(static_cast<std::size_t>(section.data() - whole.data()) + done);
      }
      marked.remove_prefix(through.size());
    }
    if (!marked.empty()) encode_part(marked, inserted);
  }

  /// How many bytes of the section are spelt so.
  static std::size_t in_section(std::string_view section, std::string_view spelling) {
    std::size_t bytes = 0;
    while (!spelling.empty() && bytes < section.size()) {
      spelling.remove_prefix(section[bytes] == ' ' ? data::kSpaceMark.size() : 1);
      ++bytes;
    }
    return bytes;
  }

  /// The words of `text` by the splits from `step` on. `spelt`: it is the spelling of bytes.
  void encode_words(std::string_view text, std::size_t step, bool spelt,
                    std::vector<std::int32_t>& tokens) {
    if (step == words.size()) return encode_word(text, spelt, tokens);
    const data::WordSplit& split = tables->file.splits[step];
    if (split.of_spellings && !spelt) {
      std::string spelling;
      for (const char byte : text) {
        spelling += data::byte_spelling(static_cast<unsigned char>(byte));
      }
      return apart(text, 0, tokens, [&] { encode_words(spelling, step, true, tokens); });
    }
    const auto go_on = [&](std::string_view part) {
      data::WordPattern::Words& found = words[step];
      found.begin(part);
      for (std::string_view word = found.next(); !word.empty(); word = found.next()) {
        encode_words(word, step + 1, spelt, tokens);
      }
    };
    if (!split.adds_space || text.starts_with(' ')) return go_on(text);
    const std::string spaced = concat(" ", text);
    apart(text, 1, tokens, [&] { go_on(spaced); });
  }

  void encode_word(std::string_view word, bool spelt, std::vector<std::int32_t>& tokens) {
    if (spelt) return pairs.encode(data::bytes_of_spelling(word).value(), tokens);
    pairs.encode(word, tokens);
    place(word, 0, tokens);
  }

  /// Adds tokens of another text than `part`, which stands for it in the whole.
  template <typename Encode>
  void apart(std::string_view part, std::size_t inserted, std::vector<std::int32_t>& tokens,
             const Encode& encode) {
    auto* const placed = std::exchange(ends, nullptr);
    encode();
    ends = placed;
    place(part, inserted, tokens);
  }

  void encode(std::string_view text, std::vector<std::int32_t>& tokens) {
    const auto by_words = [&](std::string_view part) {
      if (!part.empty()) encode_words(part, 0, false, tokens);
    };
    split(tables->raw, text, tokens, [&](std::string_view part) {
      std::string normal;
      if (tables->file.nfc) normal = data::to_nfc(part);
      if (tables->file.nfc && normal != part) {
        return apart(part, 0, tokens, [&] { split(tables->normalized, normal, tokens, by_words); });
      }
      split(tables->normalized, part, tokens, by_words);
    });
  }

  /// Normalisation changes words, so each token's end is that of its part.
  void encode_word_pieces(std::string_view text, std::vector<std::int32_t>& tokens) {
    split(tables->raw, text, tokens, [&](std::string_view part) {
      const std::string normal = tables->word_pieces.normal(part);
      auto* const placed = std::exchange(ends, nullptr);  // parts of `normal` have no place in it
      split(tables->normalized, normal, tokens,
            [&](std::string_view rest) { tables->word_pieces.encode(rest, tokens); });
      ends = placed;
      if (ends == nullptr) return;
      ends->resize(tokens.size(),
                   static_cast<std::size_t>(part.data() - whole.data()) + part.size());
    });
  }

  std::shared_ptr<const Tokenizer::Tables> tables;
  std::string_view whole{};                     ///< the text, where ends are asked for
  std::vector<std::size_t>* ends = nullptr;     ///< of each token in it
  std::vector<data::WordPattern::Words> words;  ///< of each split
  data::BytePairs::Encoder pairs;
};

Tokenizer::Tokenizer(const std::string& path) : Tokenizer(read_bounded(path), path) {}

Tokenizer::Tokenizer(std::string_view json, const std::string& name)
    : tables_(std::make_shared<const Tables>(data::parse_tokenizer_file(json, name))) {}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, bool special_tokens) const {
  const TokenizerFile& file = tables_->file;
  std::vector<std::int32_t> tokens;
  if (special_tokens) tokens = file.before;
  TokenEncoder(*this).encode(text, tokens);
  if (special_tokens) tokens.insert(tokens.end(), file.after.begin(), file.after.end());
  return tokens;
}

Tokenizer::Placed Tokenizer::encode_with_ends(std::string_view text) const {
  Placed placed;
  TokenEncoder encoder(*this);
  encoder.state_->whole = text;
  encoder.state_->ends = &placed.ends;
  encoder.encode(text, placed.tokens);
  return placed;
}

std::string Tokenizer::decode(std::span<const std::int32_t> tokens, bool special_tokens) const {
  TokenDecoder decoder(*this, special_tokens);
  std::string text;
  for (const std::int32_t token : tokens) text += decoder.add(token);
  return text + decoder.finish();
}

std::int64_t Tokenizer::vocab_size() const {
  return static_cast<std::int64_t>(tables_->file.tokens.size());
}

std::optional<std::int32_t> Tokenizer::id_of(std::string_view token) const {
  const auto found = tables_->ids.find(token);
  return found == tables_->ids.end() ? std::nullopt : std::optional(found->second);
}

std::vector<std::int32_t> Tokenizer::special_tokens() const {
  std::vector<std::int32_t> ids;
  for (std::size_t id = 0; id < tables_->special.size(); ++id) {
    if (tables_->special[id]) ids.push_back(static_cast<std::int32_t>(id));
  }
  return ids;
}

std::optional<std::int32_t> Tokenizer::end_of_text() const {
  for (const char* content :
       {"<|endoftext|>", "<|end_of_text|>", "</s>", "<\uff5cend\u2581of\u2581sentence\uff5c>"}) {
    const auto found = std::ranges::find(tables_->file.added, content, &AddedToken::content);
    if (found != tables_->file.added.end()) return found->id;
  }
  return std::nullopt;
}

std::string Tokenizer::identity() const {
  const TokenizerFile& file = tables_->file;
  Digest digest;
  const bool is_plain = file.splits.size() == 1 && !file.splits[0].adds_space &&
                        data::kind_of_pattern(file.splits[0].pattern).has_value();
  const int kind = is_plain ? static_cast<int>(*data::kind_of_pattern(file.splits[0].pattern)) : 0;
  digest.add(concat("pattern ", kind, " nfc ", file.nfc, " ignore_merges ", file.ignore_merges,
                    " model ", file.model_tokens, " merges ", file.merges.size(), " added ",
                    file.added.size()));
  for (const std::string& token : file.tokens) digest.add(token);
  for (const auto& merge : file.merges) digest.add(concat(merge.left, " ", merge.right));
  std::vector<AddedToken> added = file.added;
  std::ranges::sort(added, {}, &AddedToken::id);
  for (const AddedToken& token : added) {
    digest.add(concat(token.id, " ", token.special, " ", token.normalized));
    if (token.strips_left || token.strips_right) {
      digest.add(concat("strips ", token.strips_left, " ", token.strips_right));
    }
  }
  if (file.pieces) {
    digest.add(concat("pieces, prefix ", static_cast<int>(file.prefix), " strips ",
                      file.strips_first_space));
  }
  for (const data::WordSplit& split : file.splits) {
    if (is_plain) continue;
    digest.add(concat("split ", split.removes_rest, " ", split.adds_space, " ", split.of_spellings,
                      " ", split.pattern));
  }
  if (file.word_pieces) {
    const data::WordPieceRules& rules = *file.word_pieces;
    digest.add(concat("word pieces ", rules.text.cleans, rules.text.splits_chinese,
                      rules.text.strips_accents, rules.text.lowercase, rules.cleans_up, " ",
                      rules.most, " ", rules.prefix));
  }
  if (file.splits_at_marks) digest.add("splits at marks");
  if (file.unknown >= 0) digest.add(concat("unknown ", file.unknown, " ", file.fuses_unknown));
  for (const auto* ids : {&file.before, &file.after}) {
    digest.add("template");
    for (const std::int32_t id : *ids) digest.add(concat(id));
  }
  return digest.hex();
}

TokenEncoder::TokenEncoder(const Tokenizer& tokenizer)
    : state_(std::make_unique<State>(tokenizer.tables_)) {}

TokenEncoder::~TokenEncoder() = default;

void TokenEncoder::encode(std::string_view text, std::vector<std::int32_t>& tokens,
                          std::int64_t offset) {
  const std::size_t invalid = data::find_invalid_utf8(text);
  // Nobody has written U+FFFD, which a decoder would put in its place: a model should not learn it.
  require(
      invalid == std::string_view::npos, ErrorCode::kConfig, "byte ",
      offset + static_cast<std::int64_t>(invalid),
      " is not UTF-8; convert the text, with `iconv -f LATIN1 -t UTF-8` for example, or leave it "
      "out");
  if (state_->tables->file.word_pieces) {
    state_->encode_word_pieces(text, tokens);
  } else if (state_->tables->file.pieces) {
    state_->encode_pieces(text, offset > 0, tokens);
  } else {
    state_->encode(text, tokens);
  }
}

// [Note: cuts] A text is cut before a space that follows a character other than white space, or
// after a newline that stands alone between two such characters. In each of WordPatternKind a word
// ends there in the whole text, and the same words end there in the left part:
// - no alternative goes on from such a character to a space, and what looks ahead, (?!\S), does so
//   behind white space only;
// - a lone newline is a word by itself, at the end of a text as before a word, or the end of one
//   ([\r\n]*), and no alternative goes on from it to a character that is not white space;
// - nothing looks back, so the right part's words are those of the whole text.
// In the patterns of WordCuts::kSpaces something goes on from a newline to a slash, so only spaces
// are such places. What comes before them takes apart runs without white space, which end there,
// and what comes behind them works on one word. With others a text is not cut.
// Normalisation changes nothing across it: neither character composes with one before it, nor does
// a newline with one after it, and none becomes or ceases to be white space. Added tokens
// lie on one side, for none has a space or a newline in it.
// Where added tokens take white space, and of pieces, a text is cut before such a space alone, and
// not behind an added token: no piece reaches over it, so no merge does, and what begins there gets
// no mark in front.
std::size_t TokenEncoder::last_cut(std::string_view text) const {
  if (!state_->tables->can_cut) return 0;
  const auto is_solid = [](std::string_view character) {
    return !data::is_white_space(data::code_point(character));
  };
  for (std::size_t at = text.size(); at-- > 1;) {
    const bool takes_space = state_->tables->takes_space;
    if (text[at] == ' ') {
      const std::string_view left = text.substr(0, at);
      const bool behind_added =
          takes_space && (state_->tables->raw.end(left) || state_->tables->normalized.end(left));
      if (!behind_added && is_solid(data::last_character(left))) return at;
    } else if (text[at] == '\n' && at + 1 < text.size() && !takes_space) {
      const std::string_view after = text.substr(at + 1);
      const data::Utf8Step next = data::first_character(after);
      if (next.state == data::Utf8State::kValid && is_solid(after.substr(0, next.bytes)) &&
          is_solid(data::last_character(text.substr(0, at)))) {
        return at + 1;
      }
    }
  }
  return 0;
}

TokenDecoder::TokenDecoder(const Tokenizer& tokenizer, bool special_tokens)
    : tables_(tokenizer.tables_), special_tokens_(special_tokens) {}

std::string TokenDecoder::add(std::int32_t token) {
  const auto id = static_cast<std::size_t>(token);
  if (token < 0 || id >= tables_->bytes.size() || tables_->file.tokens[id].empty()) return "";
  if (!special_tokens_ && tables_->special[id]) return "";
  if (tables_->file.pieces) return add_piece(id);
  if (tables_->file.word_pieces) {
    return tables_->word_pieces.decode(tables_->bytes[id], !std::exchange(begun_, true));
  }
  waiting_ += tables_->bytes[id];
  return data::take_characters(waiting_);
}

/// Bytes wait for the first token that is none: only all together they are characters or not.
std::string TokenDecoder::add_piece(std::size_t id) {
  if (tables_->is_byte[id]) {
    waiting_ += tables_->bytes[id];
    return "";
  }
  return without_first_space(take_bytes() + tables_->bytes[id]);
}

std::string TokenDecoder::take_bytes() {
  const std::string bytes = std::exchange(waiting_, "");
  if (data::find_invalid_utf8(bytes) == std::string_view::npos) return bytes;
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); ++i) text += "\xef\xbf\xbd";
  return text;
}

std::string TokenDecoder::without_first_space(std::string text) {
  if (text.empty() || begun_) return text;
  begun_ = true;
  if (tables_->file.strips_first_space && text.front() == ' ') text.erase(0, 1);
  return text;
}

std::string TokenDecoder::finish() {
  if (tables_->file.pieces) return without_first_space(take_bytes());
  const bool incomplete = !waiting_.empty();
  waiting_.clear();
  return incomplete ? "\xef\xbf\xbd" : "";
}

}  // namespace tessera
