#pragma once

#include <map>
#include <set>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "execution/step_buffers.h"
#include "tessera/autograd/layer.h"
#include "tessera/kernels/kernel_table.h"
#include "tessera/sharding/fp8_options.h"
#include "tessera/sharding/histories.h"
#include "tessera/sharding/layout.h"
#include "tessera/sharding/scales.h"
#include "tessera/sharding/schedule.h"

namespace tessera {

/// The whole parameters that passes read, and the gradients that they write, in the buffers of a
/// schedule. Its methods run as tasks of the compute lane, in schedule order.
class LayerParameters {
 public:
  LayerParameters(const Schedule& schedule, const ModelLayout& layout, const StepBuffers& buffers,
                  const Fp8Options& fp8);

  /// Whether the layer rounds tensors to fp8 by scales of their largest magnitudes.
  bool scales_by_magnitude(int layer) const {
    return fp8_[static_cast<std::size_t>(layer)].any() && !options_.is_delayed();
  }
  /// Points the layer's parameters, and their gradients, to where the action's operands are.
  std::span<Parameter> bind(const Action& action);
  /// Dequantises a unit's parameters, whole, for the layers that read them.
  void decode(const Action& action, const KernelTable& kernels, Stream& stream);
  /// Writes the largest magnitude of each matrix in this rank's shard to its word.
  void amax(const Action& action, const KernelTable& kernels, Stream& stream) const;
  /// Rounds this rank's shard to E4M3, each matrix by its scale.
  void encode(const Action& action, const KernelTable& kernels, Stream& stream) const;
  /// Adds the largest magnitudes of a step to the histories.
  void roll_history(const Action& action, const KernelTable& kernels, Stream& stream) const;
  /// Clears what lies between and behind the tensors of gradients that begin anew.
  void begin_gradients(const Action& action, const KernelTable& kernels, Stream& stream);
  /// Clears the gradients of the layer's parameters that no operation used.
  void end_gradients(const Action& action, const KernelTable& kernels, Stream& stream);

 private:
  void check_codes() const;
  void number_histories();
  void bind_history(Parameter& parameter, const Action& action, std::int64_t tensor) const;
  TensorView word_of(const std::vector<Operand>& operands, const FlatId& id, int matrix) const;
  void bind_value(Parameter& parameter, const Action& action,
                  const ParameterAddress& address) const;
  std::pair<const Operand*, int> find_value(const Action& action,
                                            const ParameterAddress& address) const;

  const Schedule& schedule_;
  const ModelLayout& layout_;
  const StepBuffers& buffers_;
  std::vector<Fp8Products> fp8_;  ///< by layer
  Fp8Options options_;
  ScaleTable scales_;
  HistoryTable histories_;
  /// By unit, flat parameter and tensor: its number in the HistoryTable.
  std::map<std::tuple<int, int, int>, std::int64_t> history_of_;
  /// Unit, flat parameter and tensor of what some layer has as a parameter: of a mirror not all.
  std::set<std::tuple<int, int, int>> contributed_;
  std::vector<std::vector<Parameter>> parameters_;  ///< by layer; see bind
  /// By layer and parameter: whether layers behind it contribute to its gradient, too.
  std::vector<std::vector<char>> is_added_to_;
  /// Gradients that a buffer holds since it was begun anew: by buffer, and tensor of its unit.
  std::vector<std::vector<char>> written_;
};

}  // namespace tessera
