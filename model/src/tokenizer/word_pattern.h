#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

struct pcre2_real_code_8;
struct pcre2_real_match_data_8;

namespace tessera::data {

/// The patterns by which most texts are split into words.
enum class WordPatternKind : std::uint8_t { kGpt2, kLlama3, kQwen };

/// The text in tokenizer.json files (GPT-2's is not in its file: it is what ByteLevel's use_regex
/// means).
std::string_view pattern_text(WordPatternKind kind);
/// Whose text it is.
std::optional<WordPatternKind> kind_of_pattern(std::string_view pattern);

/// The pattern of the pre-tokenizers Digits and Punctuation: one character each, or runs of them.
std::string digits_pattern(bool runs);
std::string punctuation_pattern(bool runs);

/// Where a text can be cut so that the pattern's words on both sides are those of the whole; see
/// [Note: cuts].
enum class WordCuts : std::uint8_t {
  kNone,
  kSpaces,             ///< before a space behind a character other than white space
  kSpacesAndNewlines,  ///< and behind a newline between two such characters
  kOfOthers,           ///< where the next pattern has them: it matches runs without white space
};
WordCuts cuts_of(std::string_view pattern);

/// A compiled pattern. Immutable; safe to use from any thread.
class WordPattern {
 public:
  /// `removes_rest`: what lies between matches is left out. An empty pattern matches the whole.
  /// Throws Error{kConfig} that names what is not known here.
  explicit WordPattern(std::string_view pattern, bool removes_rest = false);

  /// Finds the words of a text, one after the other: matches, and what lies between them.
  class Words {
   public:
    explicit Words(const WordPattern& pattern);
    /// Begins with `text`, valid UTF-8 that outlives the search.
    void begin(std::string_view text);
    /// The next word; empty at the end.
    std::string_view next();

   private:
    bool find(std::size_t& begin, std::size_t& end);

    const WordPattern& pattern_;
    std::unique_ptr<pcre2_real_match_data_8, void (*)(pcre2_real_match_data_8*)> match_;
    std::string_view text_;
    std::size_t done_ = 0;
    std::size_t found_ = 0;  ///< the end of a match that is next; 0: there is none
  };

 private:
  std::unique_ptr<pcre2_real_code_8, void (*)(pcre2_real_code_8*)> code_;
  bool removes_rest_;
  bool is_known_;  ///< of WordPatternKind: every character is in a match
};

}  // namespace tessera::data
