#include "evaluate/evaluation.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "commands.h"
#include "output/terminal.h"
#include "run/watchers.h"
#include "settings/data_choice.h"
#include "tessera/core/error.h"
#include "tessera/trainer/log.h"
#include "tessera/trainer/session.h"

namespace tessera::cli {
namespace {

/// -log of the softmax at `label`.
double loss_of(std::span<const float> logits, std::size_t label) {
  const double largest = *std::ranges::max_element(logits);
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
  return std::log(sum) + largest - static_cast<double>(logits[label]);
}

struct Classified {
  Confusion confusion;
  double losses = 0.0;
};

Classified classify(const TokenDataset& data, std::int64_t samples, std::size_t classes,
                    Session& session) {
  const std::int64_t wanted = samples_of_a_call(session);
  const std::int64_t length = data.options().sequence_length;
  const auto row_of = [&](std::vector<std::int32_t>& values, std::int64_t row) {
    return std::span(values).subspan(static_cast<std::size_t>(row * length),
                                     static_cast<std::size_t>(length));
  };
  Classified found{Confusion(static_cast<std::int64_t>(classes))};
  for (std::int64_t first = 0; first < samples; first += wanted) {
    const std::int64_t count = std::min(wanted, samples - first);
    // A sample's tokens, and behind them where their documents begin, if that is asked for.
    const std::int64_t planes = data.has_starts() ? 2 : 1;
    std::vector<std::int32_t> inputs(static_cast<std::size_t>(count * planes * length));
    std::vector<std::int32_t> targets(static_cast<std::size_t>(count * length));
    for (std::int64_t row = 0; row < count; ++row) {
      std::span<std::int32_t> starts;
      if (planes == 2) starts = row_of(inputs, row * planes + 1);
      data.fill_sample(first + row, row_of(inputs, row * planes), row_of(targets, row), starts);
    }
    const Session::Outputs outputs =
        session.forward(TensorView(inputs.data(), DType::kInt32, Shape{count, planes * length}));
    for (std::size_t place = 0; place < targets.size(); ++place) {
      if (targets[place] < 0) continue;
      const auto logits = std::span(outputs.values).subspan(place * classes, classes);
      found.confusion.add(targets[place], likeliest(logits));
      found.losses += loss_of(logits, static_cast<std::size_t>(targets[place]));
    }
  }
  return found;
}

}  // namespace

std::string describe_classification(const Confusion& confusion, double loss,
                                    const std::vector<std::string>& labels) {
  const auto percent = [](double share) { return concat(fixed(100.0 * share, 2), " %"); };
  const std::string binary =
      labels.size() == 2 ? concat("F1 ", percent(confusion.f1(1)), " of '", labels[1], "', ") : "";
  return concat("loss ", fixed(loss, 6), ", accuracy ", percent(confusion.accuracy()), ", ", binary,
                "macro F1 ", percent(confusion.macro_f1()), ", on ",
                counted(confusion.count(), "text"));
}

int run_classification(Config config, const Launcher& launcher, const GptChoice& choice,
                       const TokenDataset& data) {
  const std::vector<std::string>& labels = choice.config.labels;
  const Model model = make_model(choice);
  const DumpWatch dumps;
  const TrainerOptions options =
      begin_forward(config, launcher, choice, "classification", data.identity(), dumps);
  Session session(model, data, options);
  const std::int64_t samples = evaluation_samples(config, data);
  const auto [confusion, losses] = classify(data, samples, labels.size(), session);
  if (launcher.process != 0) return kExitGood;
  const std::int64_t count = confusion.count();
  const double loss = losses / static_cast<double>(count);
  const EvaluationRecord record{.loss = loss,
                                .perplexity = std::exp(loss),
                                .tokens = count,
                                .positions = samples * data.options().sequence_length,
                                .correct = confusion.correct()};
  nlohmann::ordered_json json = to_json(record);
  json["accuracy"] = confusion.accuracy();
  json["macro_f1"] = confusion.macro_f1();
  if (labels.size() == 2) json["f1"] = confusion.f1(1);
  for (std::size_t label = 0; label < labels.size(); ++label) {
    json["f1_by_label"][labels[label]] = confusion.f1(static_cast<std::int64_t>(label));
  }
  std::vector<std::string> lines = describe_data(data, choice);
  lines.push_back(describe_classification(confusion, loss, labels));
  tell_evaluation(config, choice, parameter_count(model), to_json(record), json, lines);
  return kExitGood;
}

}  // namespace tessera::cli
