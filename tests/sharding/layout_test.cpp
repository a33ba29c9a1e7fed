#include "tessera/sharding/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "support/grid.h"
#include "support/small_layout.h"
#include "tessera/core/error.h"
#include "tessera/model/gpt.h"

namespace tessera::layout_test {
namespace {

using test::every_axis_set;
using test::grid;
using test::shape_of;

using Kind = WrapPolicy::Kind;

/// Declares parameters and computes nothing.
class Declared : public Layer {
 public:
  Declared(std::string name, std::vector<ParameterSpec> parameters,
           std::vector<std::string> tied = {})
      : Layer(std::move(name), "Declared") {
    parameters_ = std::move(parameters);
    tied_parameters_ = std::move(tied);
  }
  Value forward(Tape&, const Value& input, std::span<Parameter>) const override { return input; }
};

ParameterSpec spec(const std::string& name, Shape shape, bool trainable = true) {
  return {.name = name, .shape = shape, .initializer = {}, .trainable = trainable};
}

template <typename... Layers>
Model model_of(Layers... layers) {
  Model model{.name = "declared", .layers = {}};
  (model.layers.push_back(std::make_unique<Declared>(std::move(layers))), ...);
  return model;
}

/// Odd sizes, an empty tensor, a scalar, frozen tensors between trainable ones, a tied one.
Model odd_model() {
  return model_of(
      Declared("first", {spec("a", {3, 7}), spec("b", {1}), spec("frozen.c", {65}, false)}),
      Declared("second", {spec("d", {0}), spec("e", {64}), spec("frozen.f", {2, 2}, false)}),
      Declared("third", {spec("g", {129})}, {"frozen.c", "a"}), Declared("fourth", {}));
}

TEST(Layout, TensorsAreAlignedAndDoNotOverlap) {
  for (const Kind kind : {Kind::kLayer, Kind::kNone}) {
    for (const Unit& unit : make_layout(odd_model(), {kind}, 3).units) {
      for (const FlatParameter& flat : unit.flats) {
        std::int64_t end = 0;
        for (const FlatTensor& tensor : flat.tensors) {
          EXPECT_EQ(tensor.offset % kFlatAlignment, 0) << tensor.spec.name;
          EXPECT_GE(tensor.offset, end) << tensor.spec.name;
          EXPECT_LT(tensor.offset - end, kFlatAlignment) << tensor.spec.name;
          end = tensor.offset + tensor.spec.shape.numel();
        }
        EXPECT_EQ(flat.numel, end) << unit.name;
      }
    }
  }
}

TEST(Layout, OffsetsDoNotDependOnTheWorldAndPaddingIsTheLeast) {
  const Model gpt = make_gpt({.vocab_size = 61, .context_length = 11, .layers = 2, .width = 12});
  const Model odd = odd_model();
  for (const Model* model : {&gpt, &odd}) {
    const ModelLayout alone = make_layout(*model, {}, 1);
    for (const int world : {1, 2, 3, 4, 7, 16, 16384}) {
      const ModelLayout layout = make_layout(*model, {}, world);
      ASSERT_EQ(layout.units.size(), alone.units.size());
      for (std::size_t u = 0; u < layout.units.size(); ++u) {
        for (const char* const name : {"parameter", "frozen"}) {
          const auto flat_of = [&](const ModelLayout& l) {
            return test::flat_named(l.units[u], name);
          };
          const FlatParameter flat = flat_of(layout);
          EXPECT_EQ(flat.padded_numel % (world * kFlatAlignment), 0);
          EXPECT_GE(flat.padded_numel, flat.numel);
          EXPECT_LT(flat.padded_numel - flat.numel, world * kFlatAlignment);
          EXPECT_EQ(flat.numel, flat_of(alone).numel);
          for (std::size_t t = 0; t < flat.tensors.size(); ++t) {
            EXPECT_EQ(flat.tensors[t].offset, flat_of(alone).tensors[t].offset);
          }
        }
      }
    }
  }
}

TEST(Layout, ZerosFollowATensorWhoseRowsAreRounded) {
  ParameterSpec rounded = spec("a", {5, 24});
  rounded.row_multiple = 4;
  const Model model = model_of(Declared("first", {rounded, spec("b", {3})}));
  const FlatParameter flat = make_layout(model, {}, 2).units[0].flats.at(0);
  EXPECT_EQ(flat.tensors[0].spec.shape, (Shape{5, 24}));
  EXPECT_EQ(flat.tensors[1].offset, 8 * 24);
  EXPECT_EQ(parameter_count(model), 5 * 24 + 3);
}

// A tile of the head's products is 128 rows; a small vocabulary stays as it is.
TEST(Layout, TheVocabularyIsRoundedUpInMemory) {
  const auto rows_of = [](std::int64_t vocab_size) {
    const Model model = make_gpt({.vocab_size = vocab_size, .context_length = 8, .width = 64});
    const FlatParameter flat = make_layout(model, {}, 1).units[0].flats.at(0);
    EXPECT_EQ(flat.tensors[0].spec.shape[0], vocab_size);
    return flat.tensors[1].offset / 64;
  };
  EXPECT_EQ(rows_of(50257), 50304);
  EXPECT_EQ(rows_of(50304), 50304);
  EXPECT_EQ(rows_of(2049), 2176);
  EXPECT_EQ(rows_of(257), 257);
}

TEST(Layout, FrozenTensorsLieApart) {
  const ModelLayout layout = make_layout(odd_model(), {}, 2);
  const auto names = [](const FlatParameter& flat) {
    std::vector<std::string> out;
    for (const FlatTensor& tensor : flat.tensors) out.push_back(tensor.spec.name);
    return out;
  };
  EXPECT_EQ(names(test::flat_named(layout.units[0], "parameter")),
            (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(names(test::flat_named(layout.units[0], "frozen")),
            (std::vector<std::string>{"frozen.c"}));
  EXPECT_EQ(names(test::flat_named(layout.units[1], "parameter")),
            (std::vector<std::string>{"d", "e"}));
  EXPECT_EQ(names(test::flat_named(layout.units[1], "frozen")),
            (std::vector<std::string>{"frozen.f"}));
  EXPECT_TRUE(layout.units[3].flats.empty());
}

TEST(Layout, TiedTensorsAreStoredOnceWhereTheyAreDeclared) {
  const ModelLayout layout = make_layout(odd_model(), {}, 2);
  std::multiset<std::string> stored;
  for (const Unit& unit : layout.units) {
    for (const FlatParameter& flat : unit.flats) {
      for (const FlatTensor& tensor : flat.tensors) stored.insert(tensor.spec.name);
    }
  }
  EXPECT_EQ(stored, (std::multiset<std::string>{"a", "b", "d", "e", "frozen.c", "frozen.f", "g"}));
  const auto& third = layout.layers[2].parameters;  // its own, then the tied ones
  ASSERT_EQ(third.size(), 3U);
  const auto name_at = [&](const ParameterAddress& address) {
    return layout.tensor_of(address).spec.name;
  };
  EXPECT_EQ(name_at(third[0]), "g");
  EXPECT_EQ(name_at(third[1]), "frozen.c");
  EXPECT_EQ(name_at(third[2]), "a");
  EXPECT_EQ(third[1].unit, 0);
  EXPECT_FALSE(layout.flat_of(third[1]).trainable);
}

TEST(Layout, ATensorMayBeTiedBeforeItIsDeclared) {
  const Model model = model_of(Declared("early", {}, {"late.weight"}),
                               Declared("late", {spec("late.weight", {5})}));
  const ModelLayout layout = make_layout(model, {}, 1);
  EXPECT_EQ(layout.layers[0].parameters[0].unit, 1);
  EXPECT_TRUE(layout.units[0].flats.empty());
}

TEST(Layout, WrapPoliciesGroupLayers) {
  const auto chain = [](int layers) {
    Model model{.name = "chain", .layers = {}};
    for (int l = 0; l < layers; ++l) {
      const std::string name = "l" + std::to_string(l);
      model.layers.push_back(
          std::make_unique<Declared>(name, std::vector{spec(name + ".w", {10, 10})}));
    }
    return model;
  };
  const auto units = [&](const WrapPolicy& policy) {
    return make_layout(chain(7), policy, 2).units.size();
  };
  EXPECT_EQ(units({Kind::kLayer}), 7U);
  EXPECT_EQ(units({Kind::kNone}), 1U);
  EXPECT_EQ(units({Kind::kSize, 0}), 7U);
  EXPECT_EQ(units({Kind::kSize, 1}), 7U);
  EXPECT_EQ(units({Kind::kSize, 100}), 7U);
  EXPECT_EQ(units({Kind::kSize, 101}), 4U);
  EXPECT_EQ(units({Kind::kSize, 200}), 4U);
  EXPECT_EQ(units({Kind::kSize, 201}), 3U);
  EXPECT_EQ(units({Kind::kSize, 1 << 30}), 1U);
  const ModelLayout pairs = make_layout(chain(3), {Kind::kSize, 200}, 2);
  EXPECT_EQ(pairs.units[0].name, "l0");
  EXPECT_EQ(pairs.units[1].name, "l2");
  EXPECT_EQ(pairs.layers[1].parameters[0].unit, 0);
  EXPECT_EQ(pairs.layers[1].parameters[0].tensor, 1);
}

TEST(Layout, RefusesToBeCutIntoNoParts) {
  for (const int parts : {0, -1}) {
    try {
      make_layout(odd_model(), {}, parts);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_THAT(error.what(), ::testing::HasSubstr(std::to_string(parts)));
    }
  }
}

constexpr AxisSet kNone{};
constexpr AxisSet kShard{Axis::kShard};

/// Every valid placement on every one of some meshes.
void for_each_nesting(const std::function<void(const ShardNesting&)>& visit) {
  for (const Mesh mesh : {grid(1, 4), grid(2, 2), grid(3, 2), grid(2, 3), grid(4, 1), grid(7, 1),
                          grid(1, 7), grid(1, 1)}) {
    for (const AxisSet p : every_axis_set()) {
      for (const AxisSet g : every_axis_set()) {
        for (const AxisSet o : every_axis_set()) {
          if (!g.contains(p) || !o.contains(g)) continue;
          SCOPED_TRACE(concat(shape_of(mesh), " parameter ", to_string(p), " gradient ",
                              to_string(g), " optimizer ", to_string(o)));
          visit(ShardNesting(mesh, {p, g, o}));
        }
      }
    }
  }
}

TEST(ShardNesting, LeavesOutAxesOfSizeOne) {
  for_each_nesting([](const ShardNesting& nesting) {
    const AxisSet all = nesting.all_axes();
    EXPECT_EQ(nesting.mesh().size(all), nesting.mesh().world_size());
    for (const AxisRow& row : kAxisTable) {
      EXPECT_EQ(all.contains(row.axis), nesting.mesh().size(row.axis) > 1);
    }
    EXPECT_EQ(nesting.state_axes(), all & kStateAxes);
    EXPECT_EQ(nesting.gradient_axes(), all & kGradientAxes);
    const Placement& p = nesting.placement();
    EXPECT_TRUE(all.contains(p.optimizer) && p.optimizer.contains(p.gradient) &&
                p.gradient.contains(p.parameter));
  });
}

TEST(ShardNesting, RangesTileTheFlatParameterForEveryState) {
  for_each_nesting([](const ShardNesting& nesting) {
    const Mesh& mesh = nesting.mesh();
    const std::int64_t padded = mesh.world_size() * kFlatAlignment * 5;
    const Placement& p = nesting.placement();
    for (const AxisSet axes : {p.parameter, p.gradient, p.optimizer, nesting.all_axes()}) {
      std::vector<int> holders(static_cast<std::size_t>(padded / kFlatAlignment), 0);
      for (int rank = 0; rank < mesh.world_size(); ++rank) {
        const Range range = nesting.range(padded, axes, rank);
        EXPECT_EQ(range.numel, padded / mesh.size(axes));
        EXPECT_EQ(range.begin % kFlatAlignment, 0);
        ASSERT_LE(range.end(), padded);
        for (std::int64_t b = range.begin; b < range.end(); b += kFlatAlignment) {
          ++holders[static_cast<std::size_t>(b / kFlatAlignment)];
        }
      }
      const int copies = mesh.world_size() / mesh.size(axes);
      EXPECT_TRUE(std::ranges::all_of(holders, [&](int n) { return n == copies; }))
          << to_string(axes);
    }
  });
}

TEST(ShardNesting, ShardsNest) {
  for_each_nesting([](const ShardNesting& nesting) {
    const std::int64_t padded = nesting.mesh().world_size() * kFlatAlignment * 3;
    const Placement& p = nesting.placement();
    for (int rank = 0; rank < nesting.mesh().world_size(); ++rank) {
      const Range ranges[] = {nesting.range(padded, p.parameter, rank),
                              nesting.range(padded, p.gradient, rank),
                              nesting.range(padded, p.optimizer, rank),
                              nesting.range(padded, nesting.all_axes(), rank)};
      for (int i = 1; i < 4; ++i) {
        EXPECT_LE(ranges[i - 1].begin, ranges[i].begin) << rank << " level " << i;
        EXPECT_GE(ranges[i - 1].end(), ranges[i].end()) << rank << " level " << i;
      }
    }
  });
}

// Collectives work in place: what a group of ranks gathers are the parts of one coarser shard, in
// order of their index.
TEST(ShardNesting, AGroupsShardsAreTheConsecutivePartsOfTheCoarserOne) {
  for_each_nesting([](const ShardNesting& nesting) {
    const Mesh& mesh = nesting.mesh();
    const std::int64_t padded = mesh.world_size() * kFlatAlignment;
    const Placement& p = nesting.placement();
    const AxisSet levels[] = {kNone, p.parameter, p.gradient, p.optimizer, nesting.all_axes()};
    for (int coarse = 0; coarse < 4; ++coarse) {
      for (int fine = coarse; fine <= 4; ++fine) {
        const AxisSet between = levels[fine] - levels[coarse];
        for (int rank = 0; rank < mesh.world_size(); ++rank) {
          const Range outer = nesting.range(padded, levels[coarse], rank);
          const Range inner = nesting.range(padded, levels[fine], rank);
          EXPECT_EQ(inner.begin, outer.begin + nesting.index(between, rank) * inner.numel);
          EXPECT_EQ(inner.numel * mesh.size(between), outer.numel);
        }
      }
    }
  });
}

TEST(ShardNesting, IndicesNumberTheRanksOfEveryGroup) {
  for_each_nesting([](const ShardNesting& nesting) {
    const Mesh& mesh = nesting.mesh();
    for (const AxisSet axes : every_axis_set()) {
      for (int rank = 0; rank < mesh.world_size(); ++rank) {
        std::vector<int> indices;
        for (const int member : mesh.group(axes, rank)) {
          indices.push_back(nesting.index(axes, member));
        }
        std::ranges::sort(indices);
        std::vector<int> expected(static_cast<std::size_t>(mesh.size(axes)));
        std::iota(expected.begin(), expected.end(), 0);
        EXPECT_EQ(indices, expected) << to_string(axes) << " rank " << rank;
      }
    }
  });
}

TEST(ShardNesting, RefusesInvalidPlacements) {
  EXPECT_THROW(ShardNesting(grid(2, 2), Placement{kShard, kNone, kShard}), Error);
}

}  // namespace
}  // namespace tessera::layout_test
