#include "optimizer_arguments.h"

#include "random_key_argument.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

struct Expected {
  std::string_view optimizer;
  std::int64_t numel = 0;
};

void check_view(const Expected& expected, std::string_view name, const TensorView& view,
                bool dtype_matches) {
  require(view || expected.numel == 0, ErrorCode::kInvalidArgument, expected.optimizer, ": ", name,
          " is missing");
  require(view.numel() == expected.numel && view.is_contiguous(), ErrorCode::kInvalidArgument,
          expected.optimizer, ": ", name, " has shape ", view.shape, ", expected ", expected.numel,
          " contiguous elements");
  require(dtype_matches, ErrorCode::kInvalidArgument, expected.optimizer, ": ", name, " cannot be ",
          to_string(view.dtype));
}

void check_floats(const Expected& expected, std::string_view name, const TensorView& view) {
  check_view(expected, name, view, view.dtype == DType::kFloat32);
}

}  // namespace

void check_optimizer_step(const OptimizerStepArgs& args) {
  require(args.optimizer != nullptr, ErrorCode::kInvalidArgument,
          "optimizer step: of no optimizer");
  const Expected expected{args.optimizer->name, args.master.numel()};
  require(!is_factored(*args.optimizer), ErrorCode::kInvalidArgument, expected.optimizer,
          ": keeps factored moments; its step is KernelTable::factored_step");
  check_floats(expected, "master", args.master);
  require(args.states.size() <= args.optimizer->states.size(), ErrorCode::kInvalidArgument,
          expected.optimizer, ": ", args.states.size(), " states, expected at most ",
          args.optimizer->states.size());
  for (std::size_t i = 0; i < args.optimizer->states.size(); ++i) {
    const bool is_given = state_data(args, i) != nullptr;
    if (is_given || !args.optimizer->states_optional) {
      const OptimizerState& state = args.optimizer->states[i];
      const TensorView view = i < args.states.size() ? args.states[i] : TensorView();
      check_view({expected.optimizer, (expected.numel + state.block - 1) / state.block}, state.name,
                 view, view.dtype == state.dtype);
    }
  }
  check_view(expected, "gradient", args.gradient, is_compute_dtype(args.gradient.dtype));
  if (args.parameter) {
    const bool fits = args.parameter.dtype == DType::kBFloat16 ||
                      (args.parameter.dtype == DType::kFloat16 && !args.stochastic_rounding);
    check_view(expected, "parameter", args.parameter, fits);
  }
  check_floats({expected.optimizer, kOptimizerScalars}, "scalars", args.scalars);
  check_floats({expected.optimizer, 1}, "gradient_scale", args.gradient_scale);
  if (args.skip) {
    check_view({expected.optimizer, 1}, "skip", args.skip, args.skip.dtype == DType::kInt64);
  }
  if (args.stochastic_rounding) {
    check_random_key("stochastic rounding: rounding_key", args.rounding_key);
  }
  require(args.first_index >= 0, ErrorCode::kInvalidArgument, expected.optimizer,
          ": the first index is ", args.first_index);
  const std::int64_t block = optimizer_block(*args.optimizer);
  for (const OptimizerSegment& segment : args.segments) {
    require(segment.begin % block == 0, ErrorCode::kInvalidArgument, expected.optimizer,
            ": a segment begins at ", segment.begin, ", inside of a block of ", block);
    require(segment.begin >= 0 && segment.begin <= segment.end && segment.end <= expected.numel,
            ErrorCode::kInvalidArgument, expected.optimizer, ": segment [", segment.begin, ", ",
            segment.end, ") of a shard of ", expected.numel);
  }
}

}  // namespace tessera
