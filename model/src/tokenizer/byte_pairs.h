#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tokenizer/tokenizer_file.h"

namespace tessera::data {

/// The merges of a BPE, of bytes or of pieces, made ready to be looked up. Immutable.
class BytePairs {
 public:
  explicit BytePairs(const TokenizerFile& file);

  /// Whether a byte has no token, so that it is left out or becomes the unknown token.
  bool lacks(char byte) const { return byte_ids_[static_cast<unsigned char>(byte)] < 0; }

  /// Works on one word at a time, in memory that it keeps, and remembers short words.
  /// Used by one thread.
  class Encoder {
   public:
    explicit Encoder(const BytePairs& pairs) : pairs_(pairs), remembered_(kRemembered) {}
    /// Appends the word's tokens: neighbours merge in the order of the merges, the leftmost first,
    /// until none can. O(n log n) for n bytes, for a word may be a whole text.
    void encode(std::string_view word, std::vector<std::int32_t>& tokens);

   private:
    struct Symbol {
      std::int32_t id;
      std::int32_t previous, next;  // -1: there is none
    };
    /// Two neighbours that can merge. Stale if either has changed since.
    struct Candidate {
      std::int32_t rank, at, left, right;
      bool operator<(const Candidate& other) const {  // the first to merge is the largest
        return rank != other.rank ? rank > other.rank : at > other.at;
      }
    };
    /// A word with few tokens, by its hash: a cache line, with no memory of its own.
    struct alignas(64) Remembered {
      std::uint8_t length, count;
      char word[30];
      std::int32_t tokens[8];
    };
    static constexpr std::size_t kRemembered = std::size_t{1} << 15;

    void begin(std::string_view word);
    void add_symbol(std::int32_t id);
    void merge(std::string_view word, std::vector<std::int32_t>& tokens);
    void push(std::int32_t left, std::int32_t right);

    const BytePairs& pairs_;
    std::vector<Remembered> remembered_;
    std::vector<Symbol> symbols_;
    std::vector<Candidate> heap_;
  };

 private:
  struct Entry {
    std::uint64_t pair = ~std::uint64_t{0};
    std::int32_t rank = 0, result = 0;
  };
  const Entry* find(std::int32_t left, std::int32_t right) const;

  std::int32_t byte_ids_[256];
  bool pieces_;
  std::int32_t unknown_;
  bool fuses_unknown_;
  /// The tokens of one character, in a BPE of pieces.
  std::unordered_map<std::string_view, std::int32_t> characters_;
  std::vector<Entry> table_;  ///< open addressing; at most half full, a power of two
  std::unordered_map<std::string_view, std::int32_t> words_;  ///< of ignore_merges
  std::vector<std::string> words_text_;
};

}  // namespace tessera::data
