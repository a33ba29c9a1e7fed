#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <type_traits>
#include <vector>

#include "tessera/core/error.h"
#include "tessera/sharding/factored_table.h"
#include "tessera/sharding/histories.h"
#include "tessera/sharding/layout.h"
#include "tessera/sharding/scales.h"
#include "tessera/sharding/schedule.h"
#include "tessera/sharding/validate.h"

namespace tessera {

class GradientSums;

/// Where the input is that a layer keeps for its backward, on its way to the host and back.
enum class InputPlace : std::uint8_t {
  kDevice,
  kBoth,      ///< the host has a copy
  kHost,      ///< the device's memory was given back
  kReserved,  ///< the device has memory for it again
};

/// The content of a buffer, as far as a schedule alone can tell.
///
/// A gradient is the sum of what each micro-step's backward contributes, layer by layer.
/// Contributions are counted in that order; a buffer holds a range of them.
struct Content {
  bool valid = false;  ///< false: nothing that anyone may read
  Role role = Role::kScalars;
  int unit = -1;
  FlatSet flats{};    ///< of the unit
  AxisSet sharded{};  ///< the rank has one part along these axes
  AxisSet partial{};  ///< a gradient: the sum over these axes is still to be taken; scales: the
                      ///< maximum, as of the maxima of a step; statistics: as gradients
  int version = 0;    ///< of training state: optimizer steps taken; of histories: rolls
  int origin = -1;    ///< of state in a slot: the buffer on disk that it is of
  int begin = 0;      ///< of a gradient: contributions [begin, end); of losses: micro-steps; of
                      ///< scales: flat parameters, see ScaleTable; of an
                      ///< input on the host: the activation that it is of; of a message of an
                      ///< activation or its gradient: the layer, and `end` is the micro-step;
                      ///< of statistics: flat parameters, see FactoredTable;
                      ///< of maxima: 0, and `end` is the number of actions that have taken some
  int end = 0;
  bool output = false;                     ///< an activation: the next layer has yet to read it
  bool kept = false;                       ///< an activation: backward has yet to read it
  InputPlace place = InputPlace::kDevice;  ///< an activation: what `kept` says of
  bool weights = false;  ///< an activation: backward-weight has yet to read what is left of it
  bool open = false;     ///< a gradient: as layers left it, so that others may add to it
};

/// Walks the actions of a schedule in order of issue and keeps what every buffer holds. The rules
/// of operations (operation.h) read and write contents through it; what they require and find
/// missing becomes a Violation of the current action. So does an operand that a rule passes over:
/// handlers go by operands, and must find no more than the rule has seen.
class ContentWalk {
 public:
  /// `sums`, if any, is told of every rounding and addition of gradients.
  ContentWalk(const Schedule& schedule, std::vector<Violation>& violations,
              GradientSums* sums = nullptr);

  /// Applies the rule of every action, and then requires that the step ends as its purpose says.
  void run();

  const Schedule& schedule() const { return schedule_; }
  const ShardNesting& nesting() const { return nesting_; }
  AxisSet gradient_axes() const { return nesting_.gradient_axes(); }
  GradientSums* sums() { return sums_; }
  const ScaleTable& scales() const { return scales_; }
  const HistoryTable& histories() const { return histories_; }
  const FactoredTable& factored() const { return factored_; }
  /// The number of actions that take largest magnitudes for the histories.
  int observations() const { return observations_; }
  /// Whether the largest magnitudes of a flat parameter's matrices have been taken for the
  /// histories: by numbers of ScaleTable.
  std::set<int>& observed() { return observed_; }

  /// Records a violation of the current action unless `holds`. Returns `holds`. Functions
  /// among `what` are called for their results, so that texts are made only if they are needed.
  template <typename... Args>
  bool require_that(bool holds, const Args&... what) {
    if (!holds) report(concat(printed(what)...));
    return holds;
  }

  /// The content that the operand names: what its buffer holds, or this rank's part of that along
  /// more axes (a slot is read as it is: parts lie at its beginning, but for those of sums).
  /// Requires that the buffer holds it.
  Content read(const Operand& operand);
  Content& at(int buffer) { return contents_[static_cast<std::size_t>(buffer)]; }
  /// Puts `content` where the operand says; added to what is there, if it says so. Requires that it
  /// is what the operand says, that it fits the buffer, and that nobody still needs what is there:
  /// slots, scalars and activations are written once before they are released.
  void write(const Operand& operand, const Content& content);
  /// An activation's content, for a change of where it is. Requires that it holds something.
  Content& change(const Operand& operand);
  /// Reads it; and if the buffer is a slot, the next may have it.
  Content take(const Operand& operand);
  /// Records for gradient_sums() that `to` gets the numbers of `from`, unchanged.
  void carry(const Operand& from, const Operand& to);

  /// Requires that `action` reads the parameters of `units`, unsharded and as they were before the
  /// step, and of no other unit. How many operands these are.
  std::size_t read_parameters(const Action& action, const std::vector<int>& units);
  /// Contributions of one micro-step to a gradient: its layers' in order of backward.
  int contributions(const FlatId& id) const { return static_cast<int>(at(id).writers.size()); }
  /// The number of the first one in `micro_step`.
  int contribution_of_micro_step(const FlatId& id, int micro_step) const {
    return contributions(id) * micro_step;
  }
  /// All that a complete gradient holds.
  int all_contributions(const FlatId& id) const {
    return contributions(id) * schedule_.micro_steps;
  }
  /// The number of the contribution that `layer` makes in `micro_step`; -1: none.
  int contribution(const FlatId& id, int layer, int micro_step) const;
  /// Requires that the gradients of mirrors have been added to that of a flat parameter.
  void require_mirrors_added(const FlatId& id);
  /// "the output of h.3 in micro-step 2".
  std::string message_text(const Content& message) const;
  /// Whether the norm of its gradient has been taken; of a mirror's: whether it was added to that
  /// of the unit, or sent to be.
  bool& is_normed(const FlatId& id) { return at(id).is_normed; }
  bool is_trained(const FlatId& id) const { return contributions(id) > 0; }
  /// The buffers that keep its training state.
  const std::vector<int>& state_of(const FlatId& id) const { return at(id).state; }
  const std::string& unit_name(int unit) const;
  /// The flat parameter of a content of one; of nothing: {-1, -1}, which nothing is of.
  FlatId id_of(const Content& content) const { return {content.unit, content.flats.front()}; }
  /// For require_that: "h.1", and "h.1 (parameter frozen)" of a unit with several.
  std::string flats_text(int unit, FlatSet flats) const;
  /// For require_that: the buffer's name.
  auto name_of(int buffer) const {
    return [this, buffer] { return schedule_.name_of(buffer); };
  }
  /// "contributions 2 to 5", "losses of micro-step 1".
  std::string contributions_text(const Content& content) const;
  /// "unsharded", "sharded over shard".
  std::string sharding_text(AxisSet axes) const;

 private:
  template <typename T>
  static decltype(auto) printed(const T& what) {
    if constexpr (std::is_invocable_v<const T&>) {
      return what();
    } else {
      return (what);
    }
  }
  void report(std::string what);
  std::size_t require_scales_of(const Action& action, const Content& codes, std::set<int>& known);
  void touch(const Operand& operand);
  void require_all_touched();
  void finish();
  std::string sum_text(const Content& content) const;

  const Schedule& schedule_;
  ShardNesting nesting_;
  ScaleTable scales_;
  HistoryTable histories_;
  FactoredTable factored_;
  int observations_ = 0;
  std::set<int> observed_;
  std::vector<Violation>& violations_;
  GradientSums* sums_;
  /// Facts of a flat parameter.
  struct Flat {
    std::vector<int> writers{};  ///< layers that contribute to its gradient, in order of backward
    std::vector<int> state{};    ///< buffers
    bool is_normed = false;
  };
  Flat& at(const FlatId& id) {
    return flats_[static_cast<std::size_t>(id.unit)][static_cast<std::size_t>(id.flat)];
  }
  const Flat& at(const FlatId& id) const {
    return flats_[static_cast<std::size_t>(id.unit)][static_cast<std::size_t>(id.flat)];
  }
  std::vector<std::vector<Flat>> flats_;  ///< by unit
  std::vector<Content> contents_;         ///< by buffer
  std::vector<const Operand*> touched_;   ///< by the current action's rule
  int action_ = -1;
};

/// True if content sharded along `outer` becomes content sharded along `all` by sharding it
/// further: the axes of `outer` are the first of `all` in the order of sharding.
bool cuts_further(const ShardNesting& nesting, AxisSet outer, AxisSet all);

}  // namespace tessera
