#include <algorithm>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "tessera/core/error.h"
#include "tessera/core/round_up.h"
#include "tessera/sharding/fp8_options.h"

namespace tessera {
namespace {

/// Unit, flat parameter and tensor, by index.
using TensorId = std::tuple<int, int, int>;

/// A flat parameter, of a mirror that of its unit.
std::pair<int, int> home_of(const ModelLayout& layout, int unit, int flat) {
  const Unit& own = layout.units[static_cast<std::size_t>(unit)];
  if (own.mirrors < 0) return {unit, flat};
  const std::string& name = own.flats[static_cast<std::size_t>(flat)].name;
  const std::vector<FlatParameter>& flats =
      layout.units[static_cast<std::size_t>(own.mirrors)].flats;
  const auto found = std::ranges::find(flats, name, &FlatParameter::name);
  return {own.mirrors, static_cast<int>(found - flats.begin())};
}

/// The tensors that all layers which read them can read in E4M3; none that another unit mirrors.
std::set<TensorId> tensors_in_fp8(const ModelLayout& layout, const Fp8Options& options) {
  const std::vector<Fp8Products> products = fp8_products(layout, options);
  std::set<TensorId> in_fp8, not_in_fp8;
  for (std::size_t l = 0; l < layout.layers.size(); ++l) {
    for (const ParameterAddress& a : layout.layers[l].parameters) {
      const FlatTensor& tensor = layout.tensor_of(a);
      const auto [unit, flat] = home_of(layout, a.unit, a.flat);
      const bool fits = unit == a.unit && tensor.spec.fp8 && products[l].any() &&
                        !tensor.is_quantized() && !tensor.spec.dtype &&
                        tensor.spec.row_multiple == 1;
      (fits ? in_fp8 : not_in_fp8).insert({unit, flat, a.tensor});
    }
  }
  for (const TensorId& tensor : not_in_fp8) in_fp8.erase(tensor);
  return in_fp8;
}

/// Lays tensors out from the beginning.
FlatParameter laid_out(FlatParameter like, std::vector<FlatTensor> tensors, int parts,
                       std::int64_t alignment) {
  const std::int64_t multiple = like.trainable ? alignment : kFlatAlignment;
  like.tensors = std::move(tensors);
  like.numel = 0;
  for (FlatTensor& tensor : like.tensors) {
    const std::int64_t rows = padded_rows(tensor.spec);
    const std::int64_t numel = tensor.spec.row_multiple > 1
                                   ? tensor.spec.shape.numel() / tensor.spec.shape[0] * rows
                                   : tensor.spec.shape.numel();
    tensor.offset = round_up(like.numel, multiple);
    like.numel = tensor.offset + numel;
  }
  like.padded_numel = round_up(like.numel, parts * multiple);
  return like;
}

/// By flat parameter and tensor of a unit: the flat parameter and the tensor that it becomes.
using UnitMoves = std::vector<std::vector<std::pair<int, int>>>;

/// Splits the flat parameters of one unit. Of a mirror, matrices in fp8 go: nobody reads them
/// there.
void split(Unit& unit, const std::vector<std::vector<bool>>& in_fp8, int parts,
           std::int64_t alignment, UnitMoves& moves) {
  std::vector<FlatParameter> flats;
  for (std::size_t f = 0; f < unit.flats.size(); ++f) {
    FlatParameter& flat = unit.flats[f];
    auto& moved = moves.emplace_back(flat.tensors.size());
    std::vector<FlatTensor> rest, matrices;
    for (std::size_t t = 0; t < flat.tensors.size(); ++t) {
      std::vector<FlatTensor>& to = in_fp8[f][t] ? matrices : rest;
      moved[t] = {static_cast<int>(flats.size()), static_cast<int>(to.size())};
      to.push_back(flat.tensors[t]);
    }
    if (matrices.empty()) {
      flats.push_back(std::move(flat));
      continue;
    }
    FlatParameter apart = flat;
    apart.name += "-e4m3";
    apart.fp8 = true;
    if (!rest.empty()) flats.push_back(laid_out(flat, std::move(rest), parts, alignment));
    if (unit.mirrors >= 0) continue;
    for (std::size_t t = 0; t < moved.size(); ++t) {
      if (in_fp8[f][t]) moved[t].first = static_cast<int>(flats.size());
    }
    flats.push_back(laid_out(std::move(apart), std::move(matrices), parts, alignment));
  }
  unit.flats = std::move(flats);
}

/// Counts the matrices of layers whose tensors have histories.
void count_histories(ModelLayout& layout, const Fp8Options& options) {
  const std::vector<Fp8Products> products = fp8_products(layout, options);
  for (std::size_t l = 0; l < layout.layers.size(); ++l) {
    if (!products[l].any()) continue;
    LayerLayout& layer = layout.layers[l];
    layer.fp8_histories = static_cast<int>(std::ranges::count_if(
        layer.parameters, [&](const ParameterAddress& a) { return layout.tensor_of(a).spec.fp8; }));
  }
}

}  // namespace

ModelLayout with_fp8_apart(ModelLayout layout, const Fp8Options& options, int parts,
                           std::int64_t alignment) {
  if (options.is_delayed()) count_histories(layout, options);
  if (!reads_codes_only(options)) return layout;
  const std::set<TensorId> tensors = tensors_in_fp8(layout, options);
  const ModelLayout before = layout;
  std::vector<UnitMoves> moves;
  for (int u = 0; u < static_cast<int>(layout.units.size()); ++u) {
    Unit& unit = layout.units[static_cast<std::size_t>(u)];
    std::vector<std::vector<bool>> in_fp8;
    for (int f = 0; f < static_cast<int>(unit.flats.size()); ++f) {
      const FlatParameter& flat = unit.flats[static_cast<std::size_t>(f)];
      const auto [home, there] = home_of(before, u, f);
      std::vector<bool>& of_flat = in_fp8.emplace_back();
      for (int t = 0; t < static_cast<int>(flat.tensors.size()); ++t) {
        of_flat.push_back(tensors.contains({home, there, t}));
      }
    }
    split(unit, in_fp8, parts, alignment, moves.emplace_back());
  }
  for (LayerLayout& layer : layout.layers) {
    for (ParameterAddress& a : layer.parameters) {
      std::tie(a.flat, a.tensor) =
          moves[static_cast<std::size_t>(a.unit)][static_cast<std::size_t>(a.flat)]
               [static_cast<std::size_t>(a.tensor)];
    }
  }
  return layout;
}

}  // namespace tessera
