#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/bert_text.h"
#include "tokenizer/word_pattern.h"

namespace tessera::data {

struct AddedToken {
  std::string content;
  std::int32_t id = 0;
  bool special = false;
  bool normalized = false;                         ///< sought after normalisation, not before
  bool strips_left = false, strips_right = false;  ///< white space beside it belongs to it
};

/// Stands for a space in a SentencePiece vocabulary: U+2581.
inline constexpr std::string_view kSpaceMark = "\xe2\x96\x81";

/// Where a text gets a space mark in front.
enum class SpacePrefix : std::uint8_t {
  kNone,
  kFirst,         ///< at its beginning, unless it begins with a space
  kSections,      ///< at its beginning and behind each added token, unless a space is there
  kEverySection,  ///< the same, also where a space is there
};

/// A step by which a text becomes words: matches of a pattern, and what lies between them.
struct WordSplit {
  std::string pattern{};      ///< as the file has it; "": the whole is a word
  bool removes_rest = false;  ///< what lies between matches is left out
  bool adds_space = false;    ///< before that, in front of what does not begin with one
  bool of_spellings = false;  ///< what is split is the spelling of bytes: it follows ByteLevel
};

/// Two neighbours and what they become; the earlier merge is done first.
struct Merge {
  std::int32_t left = 0, right = 0, result = 0;
};

/// Both in one number, to be looked up.
inline std::uint64_t pair_of(std::int32_t left, std::int32_t right) {
  return (static_cast<std::uint64_t>(left) << 32) | static_cast<std::uint32_t>(right);
}

/// WordPiece as BERT has it.
struct WordPieceRules {
  BertText text{};
  std::string prefix = "##";  ///< of a token that goes on with a word
  std::int64_t most = 100;    ///< characters of a word that is not unknown for its length
  bool cleans_up = true;      ///< decoding leaves out spaces that English does not have
};

/// The contents of a tokenizer.json, checked: each id is there once, below tokens.size(); ids of
/// merges and templates exist; of pieces every byte has a token of its own.
///
/// A byte-level BPE splits a text into words and spells each by its bytes. A BPE of pieces, as
/// SentencePiece trains them, writes spaces as kSpaceMark and merges characters of the whole text;
/// a character that is no token becomes the tokens "<0x00>" to "<0xFF>" of its bytes. WordPiece
/// (`word_pieces`) has no merges.
struct TokenizerFile {
  std::string path;
  std::vector<WordSplit> splits{};  ///< of bytes: one after the other
  bool nfc = false;
  bool pieces = false;
  std::optional<WordPieceRules> word_pieces{};
  SpacePrefix prefix = SpacePrefix::kNone;  ///< of pieces
  bool normalizer_marks = false;            ///< of pieces: a normalizer marks spaces
  bool splits_at_marks = false;             ///< of pieces: no merge goes over a mark
  bool strips_first_space = false;          ///< decoding pieces
  bool ignore_merges = false;               ///< a word that is a token is not merged together
  std::int32_t unknown = -1;                ///< of bytes or words without a token; -1: left out
  bool fuses_unknown = false;               ///< one for neighbours
  std::vector<std::string> tokens;          ///< by id, as the file spells them; "": no token
  std::size_t model_tokens = 0;             ///< of the model; the ids from here on are added tokens
  std::vector<Merge> merges;
  std::vector<AddedToken> added;
  std::vector<std::int32_t> before, after;  ///< what the post-processor puts around a text
};

/// The byte of "<0x0A>"; -1 of any other token.
int byte_of_piece(std::string_view token);

/// Reads the text of a tokenizer.json; `path` is for errors. Throws Error{kConfig} naming file, key
/// and remedy, also for whatever is not known here: tokens must never differ silently.
TokenizerFile parse_tokenizer_file(std::string_view json, const std::string& path);

}  // namespace tessera::data
