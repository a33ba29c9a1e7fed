#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>

#include "execution/executor_impl.h"
#include "tessera/core/cuda_device.h"
#include "tessera/kernels/optimizer.h"
#include "tessera/kernels/philox.h"
#include "tessera/sharding/operation.h"
#include "tessera/sharding/sample_division.h"

// How a step begins, is issued and ends.
namespace tessera {

/// The optimizer's scalars are chosen on the device, by how many of the steps before are skipped,
/// of which those in flight have not told the host yet: each of these adds a possibility.
StepExchange::Given Executor::Impl::given_of(std::int64_t step, std::int64_t items,
                                             std::span<const double> rates) const {
  StepExchange::Given given{
      .items = items,
      .skipped = scaler_.skipped,
      .rounding = {options_.seed, stream_of("rounding", static_cast<std::uint64_t>(step))}};
  std::int64_t count = step + 1 - scaler_.skipped;
  for (const double rate : rates) {
    given.optimizer.push_back(
        optimizer_scalars(optimizer_, hyperparameters_, rate, std::max<std::int64_t>(1, count--)));
  }
  return given;
}

void Executor::Impl::begin_step(std::int64_t step, const RateOfStep& rate, std::size_t number) {
  Loaded& program = *programs_.at(number);
  const bool first = begun_.empty();
  const std::size_t turn = first ? 0 : 1 - begun_.back().turn;
  require(static_cast<int>(begun_.size()) < options_.steps_in_flight &&
              (first || begun_.back().program == number),
          ErrorCode::kInvalidArgument, begun_.size(), " steps have begun, and this executor has ",
          options_.steps_in_flight, " in flight at most, of one program: finish_step() first");
  const auto now = std::chrono::steady_clock::now();
  if (first) lanes_.take_spans();  // of what ran between steps
  if (first && program.has_snapshot) prepare_snapshot(number);
  try {
    enter(HostPhase::kReads, number, step);
    const std::int64_t items = program.batches->read(step, turn);
    enter(HostPhase::kIssues, number, step);
    if (program.keys != nullptr) program.keys->begin_step(step, turn);
    std::vector<double> rates{rate(step - scaler_.skipped)};
    if (options_.loss_scaling) {
      for (std::size_t more = 1; more <= begun_.size(); ++more) {
        rates.push_back(rate(step - scaler_.skipped - static_cast<std::int64_t>(more)));
      }
    }
    // Every stage reads the batches; the targets count where the losses are.
    const int last = static_cast<int>(program.schedule.layers.size()) - 1;
    const std::int64_t counted = program.schedule.is_here(last) ? items : 0;
    exchange_.begin_step(turn, given_of(step, counted, rates), program.graph != nullptr);
    Stream& compute = lanes_.of(Lane::kCompute);
    lanes_.end_action(Lane::kCompute);
    program.batches->send(turn, compute);
    if (program.keys != nullptr) program.keys->send(turn, compute);
    bool issued = false;  // and not replayed
    const Traffic copied = std::exchange(copies_, {});
    const auto put = [&](int action) {
      issued = true;
      issue(program, step, action);
    };
    if (program.graph != nullptr) {
      results_ = program.graph->run({.number = step + 1, .longest = longest_step_}, exchange_, put);
    } else {
      const auto actions = static_cast<int>(program.schedule.actions.size());
      for (int i = 0; i < actions; ++i) put(i);
    }
    if (issued) program.copies_of_step = copies_;
    copies_ = copied;
    copies_ += program.copies_of_step;
    begun_.push_back(
        {number, turn, now, std::exchange(results_, {}), step, scaler_.skipped, std::move(rates)});
  } catch (const std::exception& error) {
    abandon(error.what());
  } catch (...) {
    abandon("an unknown exception");
  }
}

void Executor::Impl::prepare_snapshot(std::size_t number) {
  Loaded& program = *programs_.at(number);
  require(program.has_snapshot, ErrorCode::kInvalidArgument, "this schedule copies nothing");
  require_no_step();
  if (program.host != nullptr) return;
  program.host = std::make_unique<SnapshotBuffers>(program.schedule, device_);
  program.buffers.take(*program.host);
  lanes_.open(Lane::kCopyOut);
}

void Executor::Impl::take_snapshot(std::size_t number, std::int64_t step) {
  prepare_snapshot(number);
  Loaded& program = *programs_[number];
  for (std::size_t i = 0; i < program.schedule.actions.size(); ++i) {
    if (!copies_to_snapshot(program.schedule, program.schedule.actions[i])) continue;
    issue(program, step, static_cast<int>(i));
  }
  lanes_.synchronize();
}

StepResult Executor::Impl::finish_step() {
  require(!begun_.empty(), ErrorCode::kInvalidArgument, "no step has begun");
  const Begun step = std::move(begun_.front());
  begun_.pop_front();
  enter(HostPhase::kWaits, step.program, step.step);
  try {
    // A step with none behind it is over when its updates are.
    if (!begun_.empty()) {
      try {
        step.results.synchronize();
      } catch (...) {
        lanes_.synchronize();  // with the cause, if a lane knows it
        throw;
      }
    }
    if (begun_.empty() || lanes_.failed()) lanes_.synchronize();
  } catch (...) {
    rethrow_explained(std::current_exception());
  }
  enter(HostPhase::kOutside, step.program, step.step);
  using std::chrono::milliseconds;
  longest_step_ = std::max(longest_step_, std::chrono::duration_cast<milliseconds>(
                                              std::chrono::steady_clock::now() - step.at));
  if (options_.trace && begun_.empty()) spans_ = lanes_.take_spans();
  DiskStore* const disk = state_.disk();
  const bool trains = programs_[step.program]->schedule.purpose == Purpose::kTrain;
  if (disk != nullptr && trains && begun_.empty()) disk->mark(step.step + 1);
  StepResult result{.loss = exchange_.mean_loss(step.turn),
                    .gradient_norm = exchange_.gradient_norm(step.turn),
                    .items = exchange_.total_items(step.turn)};
  judge(step, result);
  return result;
}

void Executor::Impl::judge(const Begun& step, StepResult& result) {
  const auto more = static_cast<std::size_t>(scaler_.skipped - step.skipped);
  result.learning_rate = step.rates.at(more);
  const DeviceLossScaler* const scaler = exchange_.scaler();
  if (scaler == nullptr || programs_[step.program]->schedule.purpose != Purpose::kTrain) return;
  scaler_ = scaler->state(step.turn);
  result.loss_scale = scaler->result(step.turn);
  if (result.loss_scale->exhausted) result.loss_scale->non_finite = find_non_finite(step.turn);
}

/// Every rank knows of its own gradients, and all have come here.
std::string Executor::Impl::find_non_finite(std::size_t turn) {
  std::int64_t first = exchange_.scaler()->first_bad(turn);
  if (ProcessGroup* const control = groups_.control(); control != nullptr) {
    DeviceArray<std::int64_t> all(device_, control->size());
    all.host()[control->rank()] = first;
    Stream& stream = lanes_.of(Lane::kReduce);
    all.upload(stream);
    control->all_reduce(all.view(), stream);
    all.download(stream);
    stream.synchronize();
    first = *std::min_element(all.host(), all.host() + all.numel());
  }
  const GradientPlace place = gradient_place(first);
  const Unit& unit = layout_.units.at(static_cast<std::size_t>(place.unit));
  std::int64_t element = place.element;
  for (const FlatParameter& flat : unit.flats) {  // one after the other, trainable ones first
    for (const FlatTensor& tensor : flat.tensors) {
      if (element >= tensor.offset + tensor.spec.shape.numel()) continue;
      return concat("the gradient of ", tensor.spec.name, " in unit ", unit.name);
    }
    if (element < flat.padded_numel) break;
    element -= flat.padded_numel;
  }
  return concat("the gradient of padding in unit ", unit.name);
}

void Executor::Impl::set_loss_scaler(const LossScalerState& state) {
  require_no_step();
  scaler_.skipped = state.skipped;
  DeviceLossScaler* const scaler = exchange_.scaler();
  if (scaler == nullptr) return;
  scaler_ = state;
  Stream& stream = lanes_.of(Lane::kReduce);
  scaler->set(state, stream);
  stream.synchronize();
}

/// Issues one action on its lane: waits, work, and an event if somebody waits for it.
void Executor::Impl::issue(Loaded& program, std::int64_t step, int index) {
  const auto i = static_cast<std::size_t>(index);
  const Action& action = program.schedule.actions[i];
  Stream& stream = lanes_.of(action.lane);
  const StepGraph* const graph =
      program.graph != nullptr && program.graph->capturing() ? program.graph.get() : nullptr;
  for (const int wait : action.waits) {
    if (graph != nullptr && !graph->waits_inside(index, wait)) continue;
    stream.wait(program.events[static_cast<std::size_t>(wait)]);
  }
  if (graph != nullptr) {
    graph->wait_for_previous(index, stream);
  } else if (!begun_.empty()) {
    // Not issued again yet, so these are the previous step's events.
    for (const int wait : action.previous_waits) {
      stream.wait(program.events[static_cast<std::size_t>(wait)]);
    }
  }
  const auto run = action.operation->run;
  const Work work{.name = program.names[i],
                  .action = index,
                  .seconds = options_.cost ? options_.cost(program.schedule, action) : 0.0,
                  .step = step,
                  .program = static_cast<int>(program.number),
                  .goes_on = is_collective(action) || action.operation->on_host};
  const auto announce = [this, &action, step] {
    if (options_.before_action) options_.before_action(state_.rank(), step, action);
  };
  if (is_collective(action) || action.operation->on_host) {
    // Process groups and copies submit tasks of their own, which know of no action. An empty one
    // before them takes the action's cost, and begins its span.
    stream.submit(work, announce);
    run(program.context, action, stream);
  } else if (run != nullptr) {  // else its event alone: the slot is free again
    stream.submit(work, [&program, &action, run, &stream, announce] {
      announce();
      run(program.context, action, stream);
    });
  }
  if (program.waited_for[i]) program.events[i] = stream.record();
  if (action.operation == &operations::kResults && options_.steps_in_flight > 1) {
    results_ = stream.record();
  }
  if (graph != nullptr) graph->tell_next(index, stream);
}

}  // namespace tessera
