#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "gpt_layers.h"

namespace tessera::gpt {

/// A block's keys and values before those of each sequence (prefix tuning).
///
/// [Note: a prefix is rows] Attention of L queries to P keys more is attention of P + L queries,
/// without the output of the first P. So the prefix becomes rows of attention's operand, whose
/// queries are zeros, and every kernel takes it: a prefix costs P rows more in each sequence, and
/// the copies of the operand. Rows without an output have no gradient but that of their keys and
/// values. What is in front also moves the positions of a sequence, by which rotation turns: it
/// runs over P rows of zeros that the prefix, which is not turned, then replaces.
class BlockPrefix {
 public:
  /// `name` and `index`: the block's. Adds its parameters behind those that are there; the layers
  /// that make all prefixes are the first block's, to which the others are tied.
  BlockPrefix(const GptConfig& config, const std::string& name, std::int64_t index,
              const AttentionSizes& sizes, std::vector<ParameterSpec>& parameters,
              std::vector<std::string>& tied);

  /// Whether it stands before the sequences of a pass: in their first, or in one over all of them.
  bool precedes(const CachedPass* pass) const {
    return tokens_ > 0 && (pass == nullptr || pass->first == 0);
  }
  std::int64_t tokens() const { return tokens_; }
  /// Zeros in its place in each sequence of x.
  Value with_room(Tape& tape, const Value& x) const;
  /// attend() with the prefix before qkv, in place of the room if `has_room`. `parameters`: the
  /// block's.
  Value attend_behind(Tape& tape, const Value& qkv, bool has_room, const CachedPass* pass,
                      std::span<Parameter> parameters) const;

 private:
  Value rows(Tape& tape, std::span<Parameter> parameters) const;

  AttentionSizes sizes_;
  std::int64_t tokens_ = 0;
  bool projects_ = false;
  std::size_t first_ = 0;  ///< of its own parameters
  std::size_t trunk_ = 0;  ///< of those that all blocks share
};

/// The layers that all blocks share, in order: rows, weight and bias.
std::vector<std::string> prefix_trunk_names();

}  // namespace tessera::gpt
