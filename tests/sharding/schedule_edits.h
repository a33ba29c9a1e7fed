#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "support/action_uses.h"
#include "support/grid.h"
#include "support/small_layout.h"
#include "tessera/core/error.h"
#include "tessera/sharding/operation.h"
#include "tessera/sharding/planner.h"
#include "tessera/sharding/validate.h"

// Plans of every sort, and the means to break them.
namespace tessera::test {

inline std::string text_of(const std::vector<Violation>& violations) {
  std::string text;
  for (const Violation& v : violations) {
    text += concat(to_string(v.rule), " at ", v.action, ": ", v.message, '\n');
  }
  return text;
}

inline bool breaks(const std::vector<Violation>& violations, Rule rule) {
  return std::ranges::any_of(violations, [&](const Violation& v) { return v.rule == rule; });
}

inline Schedule planned(const std::string& strategy, Mesh mesh, int micro_steps = 1,
                        bool accumulate_unsharded = false,
                        ReductionOrder order = ReductionOrder::kRank,
                        DType reduce_dtype = DType::kFloat32) {
  const Strategy& found = find_strategy(strategy);
  return plan(small_layout(mesh.world_size()),
              {.mesh = mesh,
               .placement = found.placement,
               .reshard_after_forward = found.reshard_after_forward,
               .reduction_order = order,
               .reduce_dtype = reduce_dtype,
               .micro_steps = micro_steps,
               .accumulate_unsharded = accumulate_unsharded});
}

// Every kind of schedule that the planner can make, by what the user chooses; with a `stride` prime
// to all the counts below, a sample in which every pair of choices meets.
inline void for_each_plan(const std::function<void(const Schedule&, const std::string&)>& visit,
                          int stride = 1) {
  int number = 0;
  for (const Strategy& strategy : strategies()) {
    for (const Mesh mesh : {grid(1, 1), grid(1, 2), grid(1, 3), grid(1, 4), grid(2, 2), grid(3, 1),
                            grid(1, 7), grid(2, 3)}) {
      for (const ReductionOrder order : {ReductionOrder::kRank, ReductionOrder::kHierarchical}) {
        for (const DType reduce_dtype : {DType::kFloat32, DType::kBFloat16}) {
          for (const int micro_steps : {1, 2, 3}) {
            for (const bool unsharded : {false, true}) {
              for (const auto& [forward, backward] : {std::pair{0, 0}, {1, 1}, {2, 1}, {1, 3}}) {
                const bool overlap = (number / 4 + number) % 2 == 0;  // any, beside all the others
                if (number++ % stride != 0) continue;
                const PlanOptions options{.mesh = mesh,
                                          .placement = strategy.placement,
                                          .reshard_after_forward = strategy.reshard_after_forward,
                                          .reduction_order = order,
                                          .reduce_dtype = reduce_dtype,
                                          .micro_steps = micro_steps,
                                          .accumulate_unsharded = unsharded,
                                          .policy = {forward, backward},
                                          .overlap_optimizer = overlap};
                visit(plan(small_layout(mesh.world_size()), options),
                      concat(strategy.name, " on ", shape_of(mesh), ", order ", to_string(order),
                             ", reduced in ", to_string(reduce_dtype), ", ", micro_steps,
                             " micro-steps, unsharded ", unsharded, ", prefetch ", forward, ' ',
                             backward, overlap ? ", overlapping" : ""));
              }
            }
          }
        }
      }
    }
  }
}

inline int find(const Schedule& s, const Operation& operation, int occurrence = 0) {
  for (std::size_t i = 0; i < s.actions.size(); ++i) {
    if (s.actions[i].operation == &operation && occurrence-- == 0) return static_cast<int>(i);
  }
  ADD_FAILURE() << "no such " << operation.name;
  return 0;
}

inline int find(const Schedule& s, const std::function<bool(const Action&)>& wanted) {
  const auto found = std::ranges::find_if(s.actions, wanted);
  EXPECT_NE(found, s.actions.end());
  return static_cast<int>(found - s.actions.begin());
}

/// `is`: unshards, gathers_gradient, ...; see support/action_uses.h.
inline int find(const Schedule& s, bool (*is)(const Schedule&, const Action&), int occurrence = 0) {
  return find(s, [&](const Action& action) { return is(s, action) && occurrence-- == 0; });
}

/// The operation's action on a unit.
inline int find_of(const Schedule& s, const Operation& operation, int unit) {
  return find(s, [&](const Action& a) { return a.operation == &operation && unit_of(a) == unit; });
}

/// A layer's pass in a micro-step.
inline int find_pass(const Schedule& s, const Operation& operation, int layer, int micro_step = 0) {
  return find(s, [&](const Action& a) {
    return a.operation == &operation && a.layer == layer && a.micro_step == micro_step;
  });
}

inline Action& at(Schedule& s, int index) { return s.actions[static_cast<std::size_t>(index)]; }
inline const Action& at(const Schedule& s, int index) {
  return s.actions[static_cast<std::size_t>(index)];
}

/// The buffer of this name.
inline ScheduleBuffer& buffer(Schedule& s, const std::string& name) {
  const int index = s.find(name);
  EXPECT_GE(index, 0) << name;
  return s.buffers[static_cast<std::size_t>(std::max(index, 0))];
}

/// The index of a unit's gradient buffer.
inline int gradient_buffer(const Schedule& s, int unit) { return s.find(Role::kGradient, unit); }

// Renumbers waits after actions moved: `new_index[i]` is where action i is now, -1 if gone.
inline void renumber(Schedule& s, const std::vector<int>& new_index) {
  for (Action& action : s.actions) {
    std::vector<int> waits;
    for (int wait : action.waits) {
      const int now = new_index[static_cast<std::size_t>(wait)];
      if (now >= 0) waits.push_back(now);
    }
    action.waits = waits;
    waits.clear();
    for (int wait : action.previous_waits) {
      const int now = new_index[static_cast<std::size_t>(wait)];
      if (now >= 0) waits.push_back(now);
    }
    action.previous_waits = waits;
  }
}

// Takes an action out. Those that waited for it wait for what it waited for, and for the action
// before it on its lane: only the action itself is missing, no order.
inline Schedule without(Schedule s, int index) {
  const Action gone = at(s, index);
  std::vector<int> instead = gone.waits;
  for (int i = index - 1; i >= 0; --i) {
    if (at(s, i).lane == gone.lane) {
      instead.push_back(i);
      break;
    }
  }
  bool first = true;
  for (std::size_t i = static_cast<std::size_t>(index) + 1; i < s.actions.size(); ++i) {
    Action& action = s.actions[i];
    const bool waited = std::erase(action.waits, index) > 0;
    const bool next = first && action.lane == gone.lane;
    if (next) first = false;
    if (!waited && !next) continue;
    for (int wait : instead) {
      if (at(s, wait).lane != action.lane) action.waits.push_back(wait);
    }
    std::ranges::sort(action.waits);
    action.waits.erase(std::unique(action.waits.begin(), action.waits.end()), action.waits.end());
  }
  std::vector<int> new_index(s.actions.size());
  for (int i = 0; i < static_cast<int>(new_index.size()); ++i) {
    new_index[static_cast<std::size_t>(i)] = i == index ? -1 : i - (i > index ? 1 : 0);
  }
  s.actions.erase(s.actions.begin() + index);
  renumber(s, new_index);
  return s;
}

// Takes the action out of its place and puts it where `to` is now, with its waits on what still
// comes before.
inline Schedule moved(Schedule s, int from, int to) {
  std::vector<int> order(s.actions.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
  order.erase(order.begin() + from);
  order.insert(order.begin() + to, from);
  std::vector<Action> actions;
  std::vector<int> new_index(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    actions.push_back(at(s, order[i]));
    new_index[static_cast<std::size_t>(order[i])] = static_cast<int>(i);
  }
  s.actions = std::move(actions);
  renumber(s, new_index);
  for (std::size_t i = 0; i < s.actions.size(); ++i) {
    std::erase_if(s.actions[i].waits, [&](int wait) { return wait >= static_cast<int>(i); });
  }
  return s;
}

inline void expect_breaks(const Schedule& s, Rule rule, const std::string& says) {
  const std::vector<Violation> violations = validate(s);
  const bool found = std::ranges::any_of(violations, [&](const Violation& v) {
    return v.rule == rule && v.message.find(says) != std::string::npos;
  });
  EXPECT_TRUE(found) << "wanted " << to_string(rule) << ": " << says << "; got\n"
                     << text_of(violations) << to_string(s);
}

}  // namespace tessera::test
