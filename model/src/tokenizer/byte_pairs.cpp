#include "tokenizer/byte_pairs.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <limits>

#include "tessera/core/error.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/utf8.h"

namespace tessera::data {
namespace {

std::size_t slot_of(std::uint64_t pair, std::size_t slots) {
  return static_cast<std::size_t>((pair * 0x9e3779b97f4a7c15U) >> 32) & (slots - 1);
}

}  // namespace

int byte_of_piece(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return -1;
  int byte = 0;
  for (const char digit : token.substr(3, 2)) {
    const bool is_digit = digit >= '0' && digit <= '9', is_letter = digit >= 'A' && digit <= 'F';
    if (!is_digit && !is_letter) return -1;
    byte = 16 * byte + (is_digit ? digit - '0' : digit - 'A' + 10);
  }
  return byte;
}

BytePairs::BytePairs(const TokenizerFile& file)
    : pieces_(file.pieces),
      unknown_(file.unknown),
      fuses_unknown_(file.fuses_unknown),
      table_(std::bit_ceil(2 * file.merges.size() + 1)) {
  for (std::size_t rank = 0; rank < file.merges.size(); ++rank) {
    const Merge& merge = file.merges[rank];
    const std::uint64_t pair = pair_of(merge.left, merge.right);
    std::size_t slot = slot_of(pair, table_.size());
    while (table_[slot].pair != Entry{}.pair) slot = (slot + 1) & (table_.size() - 1);
    table_[slot] = {pair, static_cast<std::int32_t>(rank), merge.result};
  }
  std::ranges::fill(byte_ids_, -1);
  words_text_.reserve(file.model_tokens);  // no text moves once a view of it is taken
  for (std::size_t id = 0; id < file.model_tokens; ++id) {
    const auto token = static_cast<std::int32_t>(id);
    if (pieces_) {
      const std::string_view text = words_text_.emplace_back(file.tokens[id]);
      if (const int byte = byte_of_piece(text); byte >= 0) byte_ids_[byte] = token;
      const bool one = !text.empty() && first_character(text).state == Utf8State::kValid &&
                       first_character(text).bytes == text.size();
      if (one) characters_.emplace(text, token);
      if (file.ignore_merges) words_.emplace(text, token);
      continue;
    }
    const auto bytes = bytes_of_spelling(file.tokens[id]);
    if (!bytes) continue;
    if (bytes->size() == 1) byte_ids_[static_cast<unsigned char>((*bytes)[0])] = token;
    if (file.ignore_merges) words_.emplace(words_text_.emplace_back(*bytes), token);
  }
}

const BytePairs::Entry* BytePairs::find(std::int32_t left, std::int32_t right) const {
  const std::uint64_t pair = pair_of(left, right);
  for (std::size_t slot = slot_of(pair, table_.size());; slot = (slot + 1) & (table_.size() - 1)) {
    if (table_[slot].pair == pair) return &table_[slot];
    if (table_[slot].pair == Entry{}.pair) return nullptr;
  }
}

void BytePairs::Encoder::push(std::int32_t left, std::int32_t right) {
  const std::int32_t a = symbols_[static_cast<std::size_t>(left)].id;
  const std::int32_t b = symbols_[static_cast<std::size_t>(right)].id;
  if (const Entry* entry = pairs_.find(a, b)) {
    heap_.push_back({entry->rank, left, a, b});
    std::push_heap(heap_.begin(), heap_.end());
  }
}

void BytePairs::Encoder::add_symbol(std::int32_t id) {
  const auto at = static_cast<std::int32_t>(symbols_.size());
  if (at > 0) symbols_.back().next = at;
  symbols_.push_back({id, at - 1, -1});
}

/// The word's bytes, or its characters and the bytes of those that are no tokens.
void BytePairs::Encoder::begin(std::string_view word) {
  symbols_.clear();
  heap_.clear();
  const auto add_bytes = [&](std::string_view bytes) {
    for (const char byte : bytes) add_symbol(pairs_.byte_ids_[static_cast<unsigned char>(byte)]);
  };
  if (!pairs_.pieces_) {
    bool after_unknown = false;
    for (const char byte : word) {
      const std::int32_t id = pairs_.byte_ids_[static_cast<unsigned char>(byte)];
      const bool fused = id < 0 && after_unknown && pairs_.fuses_unknown_;
      after_unknown = id < 0;
      if (id >= 0 || (pairs_.unknown_ >= 0 && !fused)) add_symbol(id >= 0 ? id : pairs_.unknown_);
    }
    return;
  }
  while (!word.empty()) {
    const std::string_view character = word.substr(0, first_character(word).bytes);
    const auto known = pairs_.characters_.find(character);
    known == pairs_.characters_.end() ? add_bytes(character) : add_symbol(known->second);
    word.remove_prefix(character.size());
  }
}

void BytePairs::Encoder::merge(std::string_view word, std::vector<std::int32_t>& tokens) {
  require(word.size() <= std::numeric_limits<std::int32_t>::max(), ErrorCode::kConfig, "a word of ",
          word.size(),
          " bytes, without a place at which the tokenizer's pattern ends it, is too long");
  begin(word);
  const auto count = static_cast<std::int32_t>(symbols_.size());
  for (std::int32_t i = 0; i + 1 < count; ++i) push(i, i + 1);
  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end());
    const Candidate best = heap_.back();
    heap_.pop_back();
    Symbol& left = symbols_[static_cast<std::size_t>(best.at)];
    if (left.id != best.left || left.next < 0) continue;
    Symbol& right = symbols_[static_cast<std::size_t>(left.next)];
    if (right.id != best.right) continue;
    left.id = pairs_.find(best.left, best.right)->result;
    right.id = -1;
    left.next = right.next;
    if (left.next >= 0) {
      symbols_[static_cast<std::size_t>(left.next)].previous = best.at;
      push(best.at, left.next);
    }
    if (left.previous >= 0) push(left.previous, best.at);
  }
  if (symbols_.empty()) return;
  for (std::int32_t i = 0; i >= 0; i = symbols_[static_cast<std::size_t>(i)].next) {
    tokens.push_back(symbols_[static_cast<std::size_t>(i)].id);
  }
}

void BytePairs::Encoder::encode(std::string_view word, std::vector<std::int32_t>& tokens) {
  if (word.size() > sizeof(Remembered::word)) {
    const auto whole = pairs_.words_.find(word);
    if (whole == pairs_.words_.end()) return merge(word, tokens);
    tokens.push_back(whole->second);
    return;
  }
  Remembered& known = remembered_[std::hash<std::string_view>()(word) % kRemembered];
  if (known.length == word.size() && std::memcmp(known.word, word.data(), word.size()) == 0) {
    tokens.insert(tokens.end(), known.tokens, known.tokens + known.count);
    return;
  }
  const std::size_t begin = tokens.size();
  if (const auto whole = pairs_.words_.find(word); whole != pairs_.words_.end()) {
    tokens.push_back(whole->second);
  } else {
    merge(word, tokens);
  }
  const std::size_t count = tokens.size() - begin;
  if (count > std::size(known.tokens)) return;
  known.length = static_cast<std::uint8_t>(word.size());
  known.count = static_cast<std::uint8_t>(count);
  std::copy(word.begin(), word.end(), known.word);
  std::copy(tokens.end() - static_cast<std::ptrdiff_t>(count), tokens.end(), known.tokens);
}

}  // namespace tessera::data
