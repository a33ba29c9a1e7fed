#include "bench/kernel_cases.h"

#include <set>
#include <string>
#include <utility>

#include "bench/kernel_operands.h"
#include "settings/gpt_choice.h"
#include "tessera/lab/kernel_calls.h"
#include "tessera/model/gpt.h"
#include "tessera/trainer/training_plan.h"

namespace tessera::bench {
namespace {

std::string name_of(const GemmArgs& args) {
  const char* const pass = args.transpose_a   ? "weight_gradient"
                           : args.transpose_b ? "forward"
                                              : "input_gradient";
  std::int64_t in = args.a.shape[1], out = args.c.shape[1];
  if (args.transpose_a) in = args.c.shape[1], out = args.c.shape[0];
  if (!args.transpose_a && !args.transpose_b) std::swap(in, out);
  return concat("gemm/", pass, "/", to_string(args.a.dtype), "/", in, "->", out);
}

/// The recorded operands have no memory: new ones of the same shapes and strides.
PreparedKernel prepare(KernelLab& lab, GemmArgs args) {
  Operands o{lab};
  for (TensorView* view : {&args.a, &args.b, &args.c, &args.bias, &args.residual, &args.gelu_input,
                           &args.gelu_backward_input}) {
    if (!*view) continue;
    Shape shape = view->shape;
    const std::int64_t columns = shape[shape.rank() - 1];
    if (shape.rank() == 2) shape = {shape[0], view->strides[0]};
    *view = o.random(shape, view->dtype).narrow(shape.rank() - 1, 0, columns);
  }
  return counted_call(o, &KernelTable::gemm, args);
}

}  // namespace

std::vector<KernelCase> gemm_cases(std::int64_t tokens, DType dtype) {
  GptConfig gpt = gpt_preset("gpt2-124m");
  gpt.layers = 1;
  const Model model = make_gpt(gpt);
  const cli::TokenShapes shapes(tokens);
  TrainerOptions options;
  options.micro_batch = 1;
  options.precision = dtype;
  options.device = DeviceChoice::kCpu;
  const TrainingPlan plan = make_training_plan({model, shapes}, options);
  std::vector<KernelCase> cases;
  std::set<std::string> known;  // the head runs in chunks
  for (const GemmArgs& args : record_gemms(plan)) {
    const std::string name = name_of(args);
    if (!known.insert(name).second) continue;
    cases.push_back({name, [args](KernelLab& lab) { return prepare(lab, args); }});
  }
  return cases;
}

}  // namespace tessera::bench
