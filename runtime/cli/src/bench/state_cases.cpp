#include <algorithm>
#include <bit>
#include <memory>
#include <span>

#include "bench/kernel_operands.h"
#include "tessera/kernels/exact_sum.h"
#include "tessera/kernels/factored_moments.h"
#include "tessera/kernels/optimizer.h"

namespace tessera::bench {
namespace {

constexpr DType kWide = DType::kFloat32;

/// A step on a flat shard: master and states are read and written, the gradient is read, the
/// parameter written.
PreparedKernel optimizer_step(KernelLab& lab, const Optimizer& optimizer, DType parameter_dtype) {
  Operands o{lab};
  const auto all = std::make_shared<OptimizerSegment>(OptimizerSegment{0, o.size.shard, {0.1F}});
  OptimizerStepArgs args{.optimizer = &optimizer,
                         .master = o.random(o.shard(), kWide, 0.02F),
                         .gradient = o.random(o.shard(), kWide, 1e-3F),
                         .segments = std::span(all.get(), 1),
                         .scalars = o.constant({kOptimizerScalars}, 1e-6F),
                         .gradient_scale = o.constant({1}, 1.0F)};
  if (parameter_dtype != kWide) args.parameter = o.empty(o.shard(), parameter_dtype);
  double bytes = bytes_of({args.master, args.master, args.gradient, args.parameter});
  const auto views = std::make_shared<std::vector<TensorView>>();
  for (const OptimizerState& state :
       optimizer_states(optimizer, hyperparameter_values(optimizer))) {
    const Shape shape{o.size.shard / state.block};
    views->push_back(state.dtype == kWide ? o.constant(shape, 1e-6F) : o.empty(shape, state.dtype));
    bytes += 2.0 * bytes_of({views->back()});
  }
  args.states = *views;
  PreparedKernel prepared = call_of(o, &KernelTable::optimizer_step, args, bytes);
  prepared.call = [all, views, call = std::move(prepared.call)](Stream& stream) { call(stream); };
  return prepared;
}

/// A shard that is one matrix, with a column for each channel, and what the kernels of factored
/// moments take beside it.
struct FactoredOperands {
  explicit FactoredOperands(KernelLab& lab) : o{lab} {}

  Operands o;
  std::int64_t columns = std::max<std::int64_t>(2, o.size.channels);
  std::int64_t rows = std::max<std::int64_t>(2, o.size.shard / columns);
  FactoredPart part{.matrix = factored_matrix(rows, columns, 0, 0, {0.1F}),
                    .numel = rows * columns};
  std::int64_t numbers = part.matrix.numbers();

  TensorView elements(float deviation) { return o.random({part.numel}, kWide, deviation); }
  TensorView norm() {
    const auto norm = std::bit_cast<std::int64_t>(1e3);
    return {o.integers(1, norm).data, DType::kFloat64, Shape{1}};
  }
  TensorView scalars() { return o.constant({kOptimizerScalars}, 1e-6F); }
  TensorView exact_sum() { return o.integers(kExactSumWords, 0); }

  /// A call on the part or the matrix, which lives as long as the call.
  template <typename Args, typename Item>
  PreparedKernel call(Kernel<Args> kernel, Args args, std::span<const Item> Args::*items,
                      const Item& item, double bytes) const {
    const auto one = std::make_shared<Item>(item);
    args.*items = std::span<const Item>(one.get(), 1);
    PreparedKernel prepared = call_of(o, kernel, args, bytes);
    prepared.call = [one, run = std::move(prepared.call)](Stream& stream) { run(stream); };
    return prepared;
  }
};

PreparedKernel factored_squares(KernelLab& lab) {
  FactoredOperands f(lab);
  const FactoredSquaresArgs args{.gradient = f.elements(1e-3F),
                                 .gradient_scale = f.o.constant({1}, 1.0F),
                                 .gradient_norm = f.norm(),
                                 .sums = f.o.integers(f.numbers * kFactoredWords, 0)};
  return f.call(&KernelTable::factored_squares, args, &FactoredSquaresArgs::parts, f.part,
                bytes_of({args.gradient, args.sums, args.sums}));
}

PreparedKernel factored_moments(KernelLab& lab) {
  FactoredOperands f(lab);
  const FactoredMomentsArgs args{.gradient_norm = f.norm(),
                                 .scalars = f.scalars(),
                                 .sums = f.o.integers(f.numbers * kFactoredWords, 1 << 20),
                                 .moments = f.o.constant({f.numbers}, 1e-6F),
                                 .factors = f.o.empty({f.numbers}, kWide)};
  return f.call(&KernelTable::factored_moments, args, &FactoredMomentsArgs::matrices, f.part.matrix,
                bytes_of({args.sums, args.moments, args.moments, args.factors}));
}

PreparedKernel factored_update_squares(KernelLab& lab) {
  FactoredOperands f(lab);
  const FactoredUpdateSquaresArgs args{.gradient = f.elements(1e-3F),
                                       .gradient_scale = f.o.constant({1}, 1.0F),
                                       .factors = f.o.constant({f.numbers}, 1.0F),
                                       .words = f.exact_sum()};
  return f.call(&KernelTable::factored_update_squares, args, &FactoredUpdateSquaresArgs::parts,
                f.part, bytes_of({args.gradient, args.factors}));
}

PreparedKernel factored_step(KernelLab& lab, DType parameter_dtype) {
  FactoredOperands f(lab);
  FactoredStepArgs args{.master = f.elements(0.02F),
                        .gradient = f.elements(1e-3F),
                        .gradient_scale = f.o.constant({1}, 1.0F),
                        .factors = f.o.constant({f.numbers}, 1.0F),
                        .update_squares = f.exact_sum(),
                        .parameter_squares = f.exact_sum(),
                        .scalars = f.scalars()};
  if (parameter_dtype != kWide) args.parameter = f.o.empty({f.part.numel}, parameter_dtype);
  const double bytes =
      bytes_of({args.master, args.master, args.gradient, args.parameter, args.factors});
  return f.call(&KernelTable::factored_step, args, &FactoredStepArgs::parts, f.part, bytes);
}

PreparedKernel ordered_sum(KernelLab& lab, DType t, std::size_t count) {
  Operands o{lab};
  std::vector<TensorView> sources;
  for (std::size_t i = 0; i < count; ++i) sources.push_back(o.random(o.shard(), t));
  const TensorView dst = o.empty(o.shard(), t);
  const auto call = [o, sources, dst](Stream& stream) {
    o.lab.kernels().ordered_sum({.sources = sources, .dst = dst}, stream);
  };
  return {.call = call, .bytes = bytes_of({dst}) * static_cast<double>(count + 1)};
}

}  // namespace

void add_state_cases(std::vector<KernelCase>& cases, DType t) {
  const Cases to{cases, t};
  for (const Optimizer& optimizer : optimizers()) {
    if (is_factored(optimizer)) continue;
    cases.push_back(
        {concat("optimizer_step/", optimizer.name, "/parameter:", to_string(t)),
         [&optimizer, t](KernelLab& lab) { return optimizer_step(lab, optimizer, t); }});
  }
  cases.push_back({concat("factored_step/parameter:", to_string(t)),
                   [t](KernelLab& lab) { return factored_step(lab, t); }});
  for (const std::size_t count : {2, 4}) {
    to.add(concat("ordered_sum/sources:", count),
           [=](KernelLab& lab) { return ordered_sum(lab, t, count); });
  }
  to.add("add", &KernelTable::add, [t](Operands& o) {
    return AddArgs{.src = o.random(o.shard(), t), .dst = o.random(o.shard(), t)};
  });
  to.add(
      "exact_squares", &KernelTable::exact_squares,
      [t](Operands& o) {
        return ExactSquaresArgs{.x = o.random(o.shard(), t),
                                .words = o.integers(kExactSumWords, 0)};
      },
      [](const ExactSquaresArgs& a) { return bytes_of({a.x}); });
  to.add(
      "find_non_finite", &KernelTable::find_non_finite,
      [t](Operands& o) {
        return FindNonFiniteArgs{.x = o.random(o.shard(), t),
                                 .squares = o.integers(kExactSumWords, 1),  // as if there were one
                                 .scaler = o.integers(kLossScalerWords, 0)};
      },
      [](const FindNonFiniteArgs& a) { return bytes_of({a.x}); });
  const auto written = [](const FillArgs& a) { return bytes_of({a.dst}); };
  to.add(
      "fill", &KernelTable::fill,
      [t](Operands& o) { return FillArgs{.dst = o.empty(o.shard(), t), .value = 2.0F}; }, written,
      written);
}

void add_scalar_cases(std::vector<KernelCase>& cases) {
  const Cases to{cases, kWide};
  to.add("factored_squares", factored_squares);
  to.add("factored_moments", factored_moments);
  to.add("factored_update_squares", factored_update_squares);
  for (const DType half : {DType::kBFloat16, DType::kFloat16}) {
    for (const bool narrow : {true, false}) {
      const DType from = narrow ? kWide : half, into = narrow ? half : kWide;
      cases.push_back(
          {concat("cast/", to_string(from), "->", to_string(into)), [=](KernelLab& lab) {
             Operands o{lab};
             return counted_call(
                 o, &KernelTable::cast,
                 CastArgs{.src = o.random(o.shard(), from), .dst = o.empty(o.shard(), into)});
           }});
    }
  }
  // The words of eight ranks for the matrices of eight blocks.
  cases.push_back({"max_words/ranks:8", [](KernelLab& lab) {
                     Operands o{lab};
                     const auto words = [&](const Shape& shape) {
                       return TensorView(o.integers(shape.numel(), 0).data, DType::kInt32, shape);
                     };
                     return counted_call(
                         o, &KernelTable::max_words,
                         MaxWordsArgs{.rows = words({8, 32}), .words = words({32})});
                   }});
  // The codes of an MLP's matrix.
  cases.push_back({"fp8_transpose/uint8", [](KernelLab& lab) {
                     Operands o{lab};
                     const std::int64_t c = o.size.channels;
                     return counted_call(
                         o, &KernelTable::fp8_transpose,
                         Fp8TransposeArgs{.codes = o.empty({4 * c, c}, DType::kUInt8),
                                          .transposed = o.empty({c, 4 * c}, DType::kUInt8)});
                   }});
  // The tensors of four matrices in each of 48 blocks, over 1024 steps.
  cases.push_back({"roll_fp8_history/steps:1024", [](KernelLab& lab) {
                     Operands o{lab};
                     const auto words = [&](const Shape& shape) {
                       return TensorView(o.integers(shape.numel(), 0).data, DType::kInt32, shape);
                     };
                     constexpr std::int64_t kTensors = 3 * 4 * 48;
                     return counted_call(o, &KernelTable::roll_fp8_history,
                                         RollFp8HistoryArgs{.newest = words({kTensors}),
                                                            .history = words({kTensors, 1023}),
                                                            .scale_words = words({kTensors})});
                   }});
  to.add(
      "exact_sum", &KernelTable::exact_sum,
      [](Operands& o) {
        return ExactSumArgs{.x = o.random({o.size.tokens()}, kWide),
                            .words = o.integers(kExactSumWords, 0)};
      },
      [](const ExactSumArgs& a) {
        return bytes_of({a.x, a.words, a.words});
      });
  to.add(
      "loss_scale", &KernelTable::loss_scale,
      [](Operands& o) {
        return LossScaleArgs{.count = o.integers(1, o.size.tokens()), .scale = o.empty({1}, kWide)};
      },
      [](const LossScaleArgs& a) {
        return bytes_of({a.count, a.scale});
      });
  Cases{cases, DType::kFloat64}.add(
      "step_results", &KernelTable::step_results,
      [](Operands& o) {
        return StepResultsArgs{.losses = o.integers(kExactSumWords, 1),
                               .squares = o.integers(kExactSumWords, 1),
                               .clip_norm = 1.0,
                               .results = o.empty({2}, DType::kFloat64),
                               .clip_factor = o.empty({1}, kWide)};
      },
      [](const StepResultsArgs& a) {
        return bytes_of({a.losses, a.squares, a.results, a.clip_factor});
      });
  to.add(
      "update_loss_scaler", &KernelTable::update_loss_scaler,
      [](Operands& o) {
        return UpdateLossScalerArgs{.rule = {},
                                    .squares = o.integers(kExactSumWords, 0),
                                    .scaler = o.integers(kLossScalerWords, 0),
                                    .candidates = o.constant({2 * kOptimizerScalars}, 1.0F),
                                    .base = o.integers(1, 0),
                                    .scalars = o.empty({kOptimizerScalars}, kWide)};
      },
      [](const UpdateLossScalerArgs& a) {
        return bytes_of({a.squares, a.scaler, a.scaler, a.candidates, a.base, a.scalars});
      });
  const auto written = [](const FillNormalArgs& a) { return bytes_of({a.dst}); };
  to.add(
      "fill_normal", &KernelTable::fill_normal,
      [](Operands& o) {
        return FillNormalArgs{.dst = o.empty(o.shard(), kWide), .key = {1, 2}};
      },
      written, written);
}

}  // namespace tessera::bench
