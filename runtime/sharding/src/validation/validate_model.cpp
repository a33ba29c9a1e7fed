#include <algorithm>
#include <set>

#include "tessera/core/error.h"
#include "tessera/sharding/layout.h"
#include "validation/validation.h"

namespace tessera {
namespace {

bool is_index(int index, std::size_t size) {
  return index >= 0 && static_cast<std::size_t>(index) < size;
}

class ModelCheck {
 public:
  ModelCheck(const Schedule& schedule, std::vector<Violation>& violations)
      : s_(schedule), violations_(violations), before_(violations.size()) {}

  // Each part relies on the ones before.
  void run() {
    check_mesh();
    if (good()) check_pipeline();
    if (good()) check_units();
    if (good()) check_layers();
  }

 private:
  bool good() const { return violations_.size() == before_; }

  template <typename... Args>
  void add(const Args&... what) {
    violations_.push_back({Rule::kForm, -1, concat(what...)});
  }

  void check_mesh() {
    const Placement& p = s_.placement;
    for (const AxisRow& row : kAxisTable) {
      if (s_.mesh.size(row.axis) < 1) return add("the mesh has an axis without ranks");
    }
    if (!p.optimizer.contains(p.gradient) || !p.gradient.contains(p.parameter)) {
      add("parameters must be sharded over no more axes than gradients, and gradients over no more "
          "axes than optimizer state");
    }
    for (const AxisRow& row : kAxisTable) {
      if (s_.mesh.size(row.axis) == 1 && p.optimizer.contains(row.axis)) {
        add("the placement names axis ", row.name, ", which has size 1");
      }
    }
    if (s_.scale_units < 1) add("scales of ", s_.scale_units, " units are joined by one message");
    if (s_.fp8_history < 0) add("histories are of ", s_.fp8_history, " steps");
    if (s_.micro_steps < 1) add("there are ", s_.micro_steps, " micro-steps");
  }

  /// Stages are layers in order, and this is the schedule of a pipeline rank that there is.
  void check_pipeline() {
    const PipelineOptions& pipeline = s_.pipeline;
    const int ranks = s_.pipeline_ranks();
    const std::vector<int>& first = pipeline.first_layers;
    if (pipeline.rank < 0 || pipeline.rank >= ranks) {
      add("the schedule is pipeline rank ", pipeline.rank, "'s, of ", ranks);
    }
    if (pipeline.stage_ranks.empty() && pipeline.stages() % ranks != 0) {
      add(pipeline.stages(), " stages cannot be spread evenly over ", ranks, " pipeline ranks");
    }
    if (!pipeline.stage_ranks.empty() && std::ssize(pipeline.stage_ranks) != pipeline.stages()) {
      add("the pipeline ranks of ", pipeline.stage_ranks.size(), " stages are given, of ",
          pipeline.stages());
    }
    for (const int rank : pipeline.stage_ranks) {
      if (rank < 0 || rank >= ranks) add("a stage is on pipeline rank ", rank, ", of ", ranks);
    }
    for (std::size_t s = 0; s < first.size(); ++s) {
      const bool in_order = s == 0 ? first[s] == 0 : first[s] > first[s - 1];
      if (!in_order || !is_index(first[s], s_.layers.size())) {
        add("stage ", s, " begins with layer ", first[s]);
      }
    }
    if (ranks > 1 && pipeline.input_numels.size() != first.size()) {
      add("the sizes of ", pipeline.input_numels.size(), " stages' inputs are given, of ",
          first.size());
    }
    for (const std::int64_t numel : pipeline.input_numels) {
      if (numel < 0) add("a stage's input has ", numel, " elements");
    }
  }

  /// A mirror has flat parameters of a unit that is none.
  void check_mirror(const ScheduleUnit& unit) {
    if (unit.rank < 0 || unit.rank >= s_.pipeline_ranks()) {
      add("unit ", unit.name, " is kept by pipeline rank ", unit.rank);
    }
    if (unit.mirrors == -1) return;
    if (!is_index(unit.mirrors, s_.units.size()) ||
        s_.units[static_cast<std::size_t>(unit.mirrors)].mirrors != -1) {
      return add("unit ", unit.name, " mirrors unit ", unit.mirrors, ", which it cannot");
    }
    const std::vector<ScheduleFlat>& flats = s_.units[static_cast<std::size_t>(unit.mirrors)].flats;
    for (const ScheduleFlat& flat : unit.flats) {
      const auto home = std::ranges::find(flats, flat.name, &ScheduleFlat::name);
      if (home == flats.end() || home->numel != flat.numel || home->format != flat.format ||
          home->trainable != flat.trainable) {
        add("unit ", unit.name, " has ", flat.name, " otherwise than the unit that it mirrors");
      }
    }
  }

  void check_units() {
    for (const ScheduleUnit& unit : s_.units) check_mirror(unit);
    std::set<std::string_view> names;
    const int parts = flat_parts(s_.mesh);
    for (const ScheduleUnit& unit : s_.units) {
      if (!names.insert(unit.name).second) add("two units are named ", unit.name);
      std::set<std::string_view> flats;
      if (std::ssize(unit.flats) > FlatSet::kMost) {
        add("unit ", unit.name, " has more than ", FlatSet::kMost, " flat parameters");
      }
      for (const ScheduleFlat& flat : unit.flats) {
        if (!flats.insert(flat.name).second) {
          add("unit ", unit.name, " has two flat parameters named ", flat.name);
        }
        if (flat.is_quantized() && flat.trainable) {
          add("unit ", unit.name, " trains ", flat.name, ", which is quantised");
        }
        if (flat.matrices < 0 || (flat.has_codes() && flat.is_quantized())) {
          add("unit ", unit.name, " has ", flat.name, " of ", flat.matrices, " matrices in fp8");
        }
        const bool is_counted = flat.factored_matrices > 0;
        if (is_counted != (flat.factored_numbers > 0) || flat.factored_matrices < 0 ||
            (is_counted && !flat.trainable)) {
          add("unit ", unit.name, " has ", flat.name, " of ", flat.factored_matrices,
              " matrices with ", flat.factored_numbers, " rows and columns");
        }
        if (flat.numel > 0 && flat.numel % parts == 0) continue;
        add("unit ", unit.name, " has ", flat.numel, " elements, which cannot be cut into ", parts,
            " equal parts");
      }
    }
  }

  void check_layers() {
    if (!is_index(s_.first_backward_layer, s_.layers.size())) {
      add("the first layer with a backward, number ", s_.first_backward_layer,
          ", is not one of the ", s_.layers.size(), " layers");
    }
    std::set<std::string_view> names;
    for (std::size_t i = 0; i < s_.layers.size(); ++i) {
      const ScheduleLayer& layer = s_.layers[i];
      if (!names.insert(layer.name).second) add("two layers are named ", layer.name);
      check_unit_list(layer, layer.forward_reads);
      check_unit_list(layer, layer.backward_reads);
      for (const FlatId& id : layer.gradients) {
        if (!is_index(id.unit, s_.units.size())) {
          add("layer ", layer.name, " names unit ", id.unit, " of ", s_.units.size());
        } else if (const ScheduleUnit& unit = s_.units[static_cast<std::size_t>(id.unit)];
                   !is_index(id.flat, unit.flats.size())) {
          add("layer ", layer.name, " names flat parameter ", id.flat, " of ", unit.flats.size(),
              " of unit ", unit.name);
        } else if (std::ranges::count(layer.gradients, id) > 1) {
          add("layer ", layer.name, " lists a gradient twice");
        }
      }
      if (!layer.gradients.empty() && static_cast<int>(i) < s_.first_backward_layer) {
        add("layer ", layer.name, " writes gradients but has no backward");
      }
    }
    if (good()) check_parts();
  }

  void check_unit_list(const ScheduleLayer& layer, const std::vector<int>& units) {
    for (std::size_t i = 0; i < units.size(); ++i) {
      if (!is_index(units[i], s_.units.size())) {
        add("layer ", layer.name, " names unit ", units[i], " of ", s_.units.size());
      } else if (std::find(units.begin(), units.begin() + static_cast<std::ptrdiff_t>(i),
                           units[i]) != units.begin() + static_cast<std::ptrdiff_t>(i)) {
        add("layer ", layer.name, " lists a unit twice");
      }
    }
  }

  /// A layer writes a gradient if it contributes to one of its parts.
  void check_parts() {
    for (int u = 0; u < static_cast<int>(s_.units.size()); ++u) {
      const ScheduleUnit& unit = s_.units[static_cast<std::size_t>(u)];
      for (int f = 0; f < static_cast<int>(unit.flats.size()); ++f) check_parts(unit, {u, f});
    }
  }

  void check_parts(const ScheduleUnit& unit, const FlatId& id) {
    const ScheduleFlat& flat = s_.flat(id);
    const auto writes = [&](const ScheduleLayer& layer) {
      return std::ranges::find(layer.gradients, id) != layer.gradients.end();
    };
    std::set<int> contributors;
    for (const GradientPart& part : flat.parts) {
      for (const int layer : part.layers) {
        contributors.insert(layer);
        if (!is_index(layer, s_.layers.size()) ||
            !writes(s_.layers[static_cast<std::size_t>(layer)])) {
          add("part ", part.name, " of unit ", unit.name, " names a layer that does not write it");
        }
      }
    }
    const auto writers = std::ranges::count_if(s_.layers, writes);
    if (static_cast<std::size_t>(writers) != contributors.size()) {
      add("a layer writes the gradient of unit ", unit.name,
          " but contributes to none of its parts");
    }
    if (writers > 0 && !flat.trainable) {
      add("unit ", unit.name, " has nothing to train in ", flat.name);
    }
  }

  const Schedule& s_;
  std::vector<Violation>& violations_;
  const std::size_t before_;
};

}  // namespace

void check_model(const Schedule& schedule, std::vector<Violation>& violations) {
  ModelCheck(schedule, violations).run();
}

}  // namespace tessera
