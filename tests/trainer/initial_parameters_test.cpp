#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "support/tiny_model.h"
#include "tessera/trainer/session.h"
#include "tessera/trainer/trainer.h"

// Runs that start from given parameters, and hand over the trained ones.
namespace tessera::initial_parameters_test {
namespace {

using test::tiny_model;
using test::TinyData;

using Values = std::map<std::string, std::vector<float>>;

Values values_of(const std::vector<FullParameter>& parameters) {
  Values values;
  for (const FullParameter& parameter : parameters) values[parameter.name] = parameter.values;
  return values;
}

TrainerOptions options_of(const std::string& strategy, int ranks) {
  return {.strategy = strategy,
          .ranks = ranks,
          .steps = 3,
          .micro_batch = 1,
          .device = DeviceChoice::kCpu,
          .threads_per_rank = 1};
}

TEST(InitialParameters, AreThoseThatARunStartsFrom) {
  const Model model = tiny_model();
  const TinyData data;
  Values given;
  for (auto& [name, values] :
       values_of(Session(model, data, options_of("no_shard", 1)).parameters())) {
    float next = 0.01F;
    for (float& value : values) value = (next = -1.01F * next) * 0.5F;
    for (float& value : values) value = std::clamp(value, -0.5F, 0.5F);
    given[name] = values;
  }
  for (const char* strategy : {"full_shard", "zero2", "no_shard"}) {
    for (const int ranks : {1, 2, 3}) {
      for (const DType precision : {DType::kFloat32, DType::kBFloat16}) {
        SCOPED_TRACE(testing::Message() << strategy << " " << ranks);
        TrainerOptions options = options_of(strategy, ranks);
        options.precision = precision;
        Session session(model, data, options);
        session.set_parameters([&](const std::string& name) { return std::span(given.at(name)); });
        std::vector<double> losses;
        while (const auto record = session.step()) losses.push_back(record->loss);

        options.initial_parameters = [&](TrainingState& state, Stream& stream) {
          state.set_parameters([&](const std::string& name) { return std::span(given.at(name)); },
                               stream);
        };
        EXPECT_EQ(values_of(Session(model, data, options).parameters()), given);
        std::vector<double> steps;
        std::vector<FullParameter> received;
        const Trainer trainer(model, data, options);
        trainer.train(
            [&](const StepRecord& record) {
              steps.push_back(record.loss);
              return true;
            },
            {}, {}, {}, [&](FullParameter parameter) { received.push_back(std::move(parameter)); });
        EXPECT_EQ(steps, losses);
        EXPECT_EQ(values_of(received), values_of(session.parameters()));
      }
    }
  }
}

}  // namespace
}  // namespace tessera::initial_parameters_test
