#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tessera/sharding/gradient_sums.h"
#include "tessera/sharding/layout.h"

namespace tessera {

/// A sum of samples' contributions as a rank holds it, in the order of addition. Samples are
/// counted from the rank's own in the first micro-step, so that the ranks' sums read alike.
class SampleSum {
 public:
  /// `count` addends of the same form, each `stride` samples after the one before.
  struct Run {
    std::int64_t first = 0;
    std::int64_t count = 1;
    std::int64_t stride = 0;
    std::string body;  ///< of the first, relative to it
    bool operator==(const Run&) const = default;
  };

  SampleSum() = default;
  SampleSum(std::int64_t sample, std::string body) : runs_{{sample, 1, 0, std::move(body)}} {}

  bool empty() const { return runs_.empty(); }
  /// Adds another sum as one addend.
  void add(const SampleSum& other);
  /// Adds what `count` ranks hold, each `stride` samples further on than the one before.
  void add_ranks(const SampleSum& other, std::int64_t count, std::int64_t stride);
  /// The sum that a rank holds whose samples begin `samples` later.
  SampleSum later(std::int64_t samples) const;
  /// Rounded to a format; twice is once.
  SampleSum rounded(DType format) const;
  /// A contribution of the same sample, from another layer, added to the only addend.
  void extend(const std::string& layer, DType format);
  std::string text() const;
  /// The number of the first sample.
  std::int64_t first() const { return runs_.empty() ? 0 : runs_.front().first; }

 private:
  void push(Run run);
  Run as_addend() const;
  std::string relative_text(std::int64_t origin) const;

  std::vector<Run> runs_;
};

/// Follows the gradients through a schedule's buffers; ContentWalk's rules tell it of every step.
class GradientSums {
 public:
  using Parts = std::vector<SampleSum>;  ///< of a flat parameter
  /// Gradients on their way from one pipeline rank to another.
  using Messages = std::map<FlatId, Parts>;

  /// `messages`, if any, is what earlier ranks have sent, and what this one sends.
  explicit GradientSums(const Schedule& schedule, Messages* messages = nullptr);

  /// A pass of the action's layer contributes to the operand's flat parameter.
  void contribute(const Operand& to, const Action& action);
  /// A gradient in another buffer, rounded to its format.
  void move(const Operand& from, const Operand& to);
  /// A reduction over the action's axes.
  void reduce(const Action& action);
  /// The gradient of a mirror leaves for another pipeline rank, or has come from one.
  void send(const Operand& gradient);
  void receive(const Operand& gradient);
  /// It is added to that of the unit: theirs first.
  void add_tied(const Operand& from, const Operand& to);
  /// The optimizer reads a unit's gradient.
  void use(const Operand& gradient);

  /// Sums that the optimizer has read, one flat parameter after the other.
  std::vector<GradientSum> result() const;

 private:
  Parts& at(int buffer) { return held_[static_cast<std::size_t>(buffer)]; }

  const Schedule& schedule_;
  ShardNesting nesting_;
  std::vector<Parts> held_;  ///< by buffer
  std::map<FlatId, Parts> used_;
  Messages* messages_;
};

}  // namespace tessera
