#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/autograd/parameter.h"
#include "tessera/sharding/schedule.h"

namespace tessera {

/// The histories of a schedule that trains with delayed scaling. Each matrix in fp8 has three
/// tensors (Fp8Tensor), numbered layer by layer, of the layers that this pipeline rank runs.
///
/// The buffer of BufferKind::kHistory has a word for each of them that its scale is made of, see
/// fp8_scale_word(), and behind these a row for each of the largest magnitudes in the last
/// `fp8_history - 1` steps, the oldest first. All ranks have the same. The buffer of
/// BufferKind::kMaxima has the largest magnitudes of the step so far, and behind them room for the
/// rows of all ranks that a message brings; between steps they are zeros.
class HistoryTable {
 public:
  explicit HistoryTable(const Schedule& schedule);

  std::int64_t tensors() const { return tensors_; }
  bool empty() const { return tensors_ == 0; }
  /// The number of a layer's first tensor; -1: it has none.
  std::int64_t first_tensor(int layer) const { return first_[static_cast<std::size_t>(layer)]; }
  std::int64_t history_numel() const { return history_numel_; }
  std::int64_t maxima_numel() const { return maxima_numel_; }
  /// Axes over which ranks' maxima differ.
  AxisSet axes() const { return axes_; }

 private:
  std::vector<std::int64_t> first_;  ///< by layer
  std::int64_t tensors_ = 0, history_numel_ = 0, maxima_numel_ = 0;
  AxisSet axes_{};
};

/// The histories of one matrix in fp8.
struct Fp8History {
  std::string name;  ///< of the matrix
  /// By Fp8Tensor: the word that its scale is made of, and its largest magnitudes, the oldest
  /// first.
  std::array<std::vector<std::uint32_t>, kFp8Tensors> words{};
  bool operator==(const Fp8History&) const = default;
};

/// A sentence for the user that names a tensor in whose history a number was infinite: its codes
/// were the largest ones, so that the gradient norm does not tell. "": there is none.
std::string note_of_infinities(const std::vector<Fp8History>& histories);

/// Whether a pass takes the largest magnitudes of its layer's tensors: not one that only uses what
/// another pass has rounded.
bool takes_maxima(const Action& action);

}  // namespace tessera
