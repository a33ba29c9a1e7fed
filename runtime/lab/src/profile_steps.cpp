#include "profile_steps.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "object_reader.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, kEvidences> kNames{"measured", "corrected", "interpolated"};

constexpr std::pair<const char*, double StepTimes::*> kSeconds[] = {
    {"beside", &StepTimes::beside},
    {"gap", &StepTimes::gap},
    {"between", &StepTimes::between},
    {"step", &StepTimes::step}};
constexpr std::pair<const char*, double StepTimes::Kernel::*> kNumbers[] = {
    {"seconds", &StepTimes::Kernel::seconds},
    {"spread", &StepTimes::Kernel::spread},
    {"alone", &StepTimes::Kernel::alone},
    {"calls", &StepTimes::Kernel::calls}};

StepTimes::Kernel kernel_of(const Json& json, const std::string& place) {
  ObjectReader object(json, place);
  StepTimes::Kernel kernel{.operation = object.text("operation"),
                           .kernel = object.text("kernel"),
                           .dtype = object.text("dtype"),
                           .size = {}};
  const Json& size = object.take("size");
  const bool numbers = size.is_array() && std::ranges::all_of(size, [](const Json& number) {
                         return number.is_number() && number.get<double>() > 0.0;
                       });
  require(numbers, ErrorCode::kConfig, object.place_of("size"),
          " must be an array of numbers above 0, not ", size.dump());
  kernel.size = size.get<std::vector<double>>();
  for (const auto& [key, member] : kNumbers) kernel.*member = object.number(key, true);
  object.finish();
  return kernel;
}

}  // namespace

std::string_view to_string(Evidence evidence) { return kNames[static_cast<std::size_t>(evidence)]; }

StepTimes step_times_of(const Json& json, const std::string& place) {
  ObjectReader object(json, place);
  StepTimes steps{.model = object.text("model"),
                  .threads = static_cast<int>(object.number("threads")),
                  .source = object.text("source"),
                  .kernels = {}};
  for (const auto& [key, member] : kSeconds) steps.*member = object.number(key, true);
  if (object.has("handover")) object.take("handover");  // of earlier profiles, which mistook it
  const Json& kernels = object.take("kernels");
  require(kernels.is_array(), ErrorCode::kConfig, object.place_of("kernels"), " must be an array");
  for (const Json& kernel : kernels) {
    steps.kernels.push_back(kernel_of(kernel, object.place_of("kernels")));
  }
  object.finish();
  return steps;
}

Residual residual_of(const Json& json, const std::string& place) {
  ObjectReader object(json, place);
  const std::string evidence = object.text("evidence");
  const auto found = std::ranges::find(kNames, evidence);
  require(found != kNames.end(), ErrorCode::kConfig, place, ": 'evidence' must be measured, ",
          "corrected or interpolated, not '", evidence, "'");
  const Json& meets = object.take("meets");
  require(meets.is_boolean(), ErrorCode::kConfig, place, ": 'meets' must be true or false, not ",
          meets.dump());
  Residual residual{.evidence = static_cast<Evidence>(found - kNames.begin()),
                    .meets = meets.get<bool>(),
                    .half_width = object.number("half_width"),
                    .ratio = object.has("ratio") ? object.number("ratio") : 1.0,
                    .cells = object.count("cells"),
                    .source = object.text("source")};
  object.finish();
  return residual;
}

Json json_of(const StepTimes& steps) {
  Json json{{"model", steps.model}, {"threads", steps.threads}, {"source", steps.source}};
  for (const auto& [key, member] : kSeconds) json[key] = steps.*member;
  json["kernels"] = Json::array();
  for (const StepTimes::Kernel& kernel : steps.kernels) {
    Json of_kernel{{"operation", kernel.operation},
                   {"kernel", kernel.kernel},
                   {"dtype", kernel.dtype},
                   {"size", kernel.size}};
    for (const auto& [key, member] : kNumbers) of_kernel[key] = kernel.*member;
    json["kernels"].push_back(std::move(of_kernel));
  }
  return json;
}

Json json_of(const Residual& residual) {
  return {{"evidence", to_string(residual.evidence)},
          {"meets", residual.meets},
          {"half_width", residual.half_width},
          {"ratio", residual.ratio},
          {"cells", residual.cells},
          {"source", residual.source}};
}

}  // namespace tessera
