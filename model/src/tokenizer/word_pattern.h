#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

struct pcre2_real_code_8;
struct pcre2_real_match_data_8;

namespace tessera::data {

/// The pattern by which a text is split into words.
enum class WordPatternKind : std::uint8_t { kGpt2, kLlama3, kQwen };

/// As tokenizer.json files have it (GPT-2's is not in its file: it is what ByteLevel's use_regex
/// means).
std::string_view pattern_text(WordPatternKind kind);

/// A compiled pattern. Immutable; safe to use from any thread.
class WordPattern {
 public:
  explicit WordPattern(WordPatternKind kind);

  /// Finds the words of a text, one after the other. Every character is in one: each of the
  /// patterns matches wherever it is tried.
  class Words {
   public:
    explicit Words(const WordPattern& pattern);
    /// Begins with `text`, valid UTF-8 that outlives the search.
    void begin(std::string_view text);
    /// The next word; empty at the end.
    std::string_view next();

   private:
    const WordPattern& pattern_;
    std::unique_ptr<pcre2_real_match_data_8, void (*)(pcre2_real_match_data_8*)> match_;
    std::string_view text_;
    std::size_t done_ = 0;
  };

 private:
  std::unique_ptr<pcre2_real_code_8, void (*)(pcre2_real_code_8*)> code_;
};

}  // namespace tessera::data
