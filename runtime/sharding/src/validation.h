#pragma once

#include <span>
#include <string>
#include <vector>

#include "tessera/core/error.h"
#include "tessera/sharding/validate.h"

// The passes of validate().
//
// [Note: proof] Waits point back and a lane runs in order of issue, so the order of issue is itself
// a possible execution. Residency, reduction and update are therefore checked by walking the
// actions once in that order. The happens-before pass then shows that any two accesses to a buffer
// of which one writes are ordered, the same way as they are issued; so every other interleaving
// gives each read the same value, and what the walk has shown holds for all of them.
namespace tessera {

/// Collects violations of one schedule; messages begin with the action in words.
class Findings {
 public:
  explicit Findings(const Schedule& schedule) : schedule_(schedule) {}

  template <typename... Args>
  void add(Rule rule, const Args&... what) {
    violations_.push_back({rule, -1, concat(what...)});
  }
  template <typename... Args>
  void add_at(int action, Rule rule, const Args&... what) {
    violations_.push_back({rule, action, concat(name(action), ": ", what...)});
  }
  /// "action 12 (forward h.3, m0)".
  std::string name(int action) const;
  std::string unit(int index) const;

  bool empty() const { return violations_.empty(); }
  std::vector<Violation> take() { return std::move(violations_); }

 private:
  const Schedule& schedule_;
  std::vector<Violation> violations_;
};

/// Per unit: which layers' backward writes its gradient, in order of execution.
std::vector<std::vector<int>> gradient_writers(const Schedule& schedule);
/// The slot that every unit's gradient goes to, by unit * micro_steps + micro_step; -1 where it is
/// the buffer, or where no gradient is written.
std::vector<int> gradient_slots_by_unit(const Schedule& schedule);
/// What loss reads of parameters: forward's and backward's, once each. Of other kinds, what the
/// pass reads.
std::vector<int> parameter_reads(const Schedule& schedule, const Action& action);

/// Rule::kStructure. The other passes need a schedule without such violations.
void check_structure(const Schedule& schedule, Findings& findings);
/// Rule::kResidency, and Rule::kSlotReuse of parameter slots.
void check_parameters(const Schedule& schedule, Findings& findings);
/// Rule::kReduction, and Rule::kSlotReuse of gradient slots.
void check_gradients(const Schedule& schedule, Findings& findings);
/// Rule::kUpdate.
void check_updates(const Schedule& schedule, Findings& findings);
/// Rule::kHappensBefore.
void check_happens_before(const Schedule& schedule, Findings& findings);

}  // namespace tessera
