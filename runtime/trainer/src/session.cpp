#include "tessera/trainer/session.h"

#include <utility>

#include "agreed_plan.h"
#include "session_impl.h"
#include "tessera/trainer/gather.h"

namespace tessera {

Session::Session(const Model& model, const BatchSource& source, const TrainerOptions& options,
                 const BatchSource* evaluation) {
  auto plan =
      std::make_unique<const TrainingPlan>(agreed_plan({model, source, evaluation}, options));
  const TrainingPlan& kept = *plan;
  impl_ = std::make_unique<Impl>(std::move(plan), kept);
}

Session::Session(const TrainingPlan& plan) : impl_(std::make_unique<Impl>(nullptr, plan)) {}

Session::~Session() = default;

const TrainingPlan& Session::plan() const { return impl_->plan(); }
std::int64_t Session::steps() const { return impl_->steps(); }
std::optional<StepRecord> Session::step() { return impl_->step(impl_->planned_rate(), false); }
std::optional<StepRecord> Session::step(double learning_rate) {
  impl_->require_none_begun();
  return impl_->step([learning_rate](std::int64_t) { return learning_rate; }, false);
}
std::optional<StepRecord> Session::step_ahead() { return impl_->step(impl_->planned_rate(), true); }
EvaluationRecord Session::evaluate() { return impl_->evaluate(); }
Session::Outputs Session::forward(const TensorView& inputs, const TensorView& targets) {
  return impl_->forward(inputs, targets);
}
std::string Session::save(const std::string& folder) {
  impl_->finish_save();
  impl_->begin_save(folder);
  return impl_->finish_save()->path;
}
void Session::begin_save(const std::string& folder) { impl_->begin_save(folder); }
const std::optional<BestEvaluation>& Session::best_evaluation() const {
  return impl_->best_evaluation();
}
void Session::set_best_evaluation(const BestEvaluation& best) { impl_->set_best_evaluation(best); }
std::optional<SaveRecord> Session::poll_save() { return impl_->poll_save(); }
std::optional<SaveRecord> Session::finish_save() { return impl_->finish_save(); }
void Session::stop() { impl_->stop(); }
void Session::abort(std::string_view reason) noexcept { impl_->abort(reason); }
std::int64_t Session::traced_steps() const { return impl_->traced_steps(); }
std::vector<RankUse> Session::use() { return impl_->use(); }

std::vector<std::string> Session::exchange(const std::string& own) {
  std::vector<std::string> all{own};
  impl_->run_alone([&](RankSeat& seat) {
    if (seat.leaders != nullptr) all = gather(*seat.leaders, own);
  });
  return all;
}

std::vector<FullParameter> Session::parameters() {
  std::vector<FullParameter> all;
  parameters([&](FullParameter parameter) { all.push_back(std::move(parameter)); });
  return all;
}

void Session::parameters(const std::function<void(FullParameter)>& receive) {
  impl_->run_alone([&](RankSeat& seat) {
    seat.executor.gather_parameters([&](FullParameter parameter) {
      if (impl_->leads(seat)) receive(std::move(parameter));
    });
  });
}

void Session::set_parameters(const ParameterValues& values) {
  impl_->change_state([&](RankSeat& seat) { seat.executor.set_parameters(values); });
}

void Session::states(
    const std::function<void(const TrainingState& state, Stream& stream)>& receive) {
  impl_->run_alone([&](RankSeat& seat) {
    seat.executor.run_apart([&](Stream& stream) { receive(seat.state, stream); });
  });
}

std::vector<std::string> Session::notes() {
  std::vector<std::string> notes = plan().notes;
  notes.insert(notes.end(), impl_->notes().begin(), impl_->notes().end());
  impl_->run([&](RankSeat& seat) {
    if (!impl_->leads(seat)) return;
    for (const std::string& note : seat.executor.notes()) notes.push_back(note);
  });
  return notes;
}

}  // namespace tessera
