#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "execution/lanes.h"
#include "execution/layer_runner.h"
#include "execution/micro_batches.h"
#include "execution/optimizer_runner.h"
#include "execution/parameter_export.h"
#include "execution/step_buffers.h"
#include "execution/step_exchange.h"
#include "execution/step_graph.h"
#include "execution/step_keys.h"
#include "tessera/core/error.h"
#include "tessera/sharding/executor.h"
#include "tessera/sharding/step_context.h"

namespace tessera {

class Executor::Impl {
 public:
  Impl(TrainingState& state, const Model& model, const std::vector<Program>& programs,
       RankGroups& groups, Memory& memory, ExecutorOptions options);
  /// Enqueued work may copy to and from memory that goes first, so it ends here.
  ~Impl() {
    try {
      lanes_.synchronize();
    } catch (...) {  // NOLINT: whoever asked for the work has been told
    }
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void begin_step(std::int64_t step, const RateOfStep& rate, std::size_t program);
  StepResult finish_step();
  LossScalerState loss_scaler() const {
    require_no_step();
    return scaler_;
  }
  void set_loss_scaler(const LossScalerState& state);
  StepResult evaluate(std::size_t program, std::int64_t samples,
                      const std::function<void(std::int64_t)>& after_batch);
  void predict(std::size_t program, std::int64_t step, const OnPrediction& receive);
  void take_snapshot(std::size_t program, std::int64_t step);
  void prepare_snapshot(std::size_t program);
  TensorView snapshot(std::size_t program, const std::string& state_tensor) const {
    const SnapshotBuffers* const host = programs_.at(program)->host.get();
    require(host != nullptr, ErrorCode::kInvalidArgument, "no snapshot has been taken");
    return host->at(state_tensor);
  }
  std::vector<Fp8History> fp8_histories();
  void set_fp8_histories(const std::vector<Fp8History>& histories);
  void run_apart_from_steps(const std::function<void(Stream&)>& work) {
    require_no_step();
    run_apart(work);
  }
  void set_parameters(const ParameterValues& values) {
    require_no_step();
    run_apart([&](Stream& stream) { state_.set_parameters(values, stream); });
  }
  void gather_parameters(const std::function<void(FullParameter)>& receive) {
    require_no_step();
    ParameterExport(state_, model_, programs_.front()->schedule, groups_, device_, kernels_,
                    lanes_.of(Lane::kReduce))
        .run(receive);
  }
  Traffic traffic() const {
    Traffic all = groups_.traffic();
    all += copies_;
    return all;
  }
  const std::vector<ActionSpan>& spans() const { return spans_; }
  std::vector<std::string> notes();

 private:
  /// A schedule, and what it takes to run it.
  struct Loaded {
    Loaded(Impl& impl, const Program& program, Memory& memory);

    const Schedule& schedule;
    const BatchSource& source;
    const bool has_snapshot;
    const std::size_t number;
    StepBuffers buffers;
    std::unique_ptr<SnapshotBuffers> host;  ///< of the snapshot, once there has been one
    std::shared_ptr<MicroBatches> batches;
    std::shared_ptr<StepKeys> keys;  ///< of a schedule that trains
    const bool predicts;
    LayerRunner layers;
    StepContext context;
    std::unique_ptr<StepGraph> graph;
    Traffic copies_of_step;  ///< as the last one that was issued has counted them
    std::vector<bool> waited_for;
    std::vector<Event> events;
    std::vector<std::string> names;  ///< of the actions, in words

   private:
    Loaded(Impl& impl, const Program& program, Memory& memory, const Loaded* alike);
  };

  /// A step that has begun.
  struct Begun {
    std::size_t program;
    std::size_t turn;  ///< of what the host gives it and gets from it
    std::chrono::steady_clock::time_point at;
    Event results;
    std::int64_t step;
    std::int64_t skipped;       ///< that the host knew of
    std::vector<double> rates;  ///< learning rates, if so many steps were skipped, one more, ...
  };

  void require_no_step() const {
    require(begun_.empty(), ErrorCode::kInvalidArgument,
            "a step has begun: finish_step() comes first");
  }
  void enter(HostPhase phase, std::size_t program, std::int64_t step) {
    if (options_.recorder != nullptr) options_.recorder->begin_phase(phase, program, step);
  }
  void run_apart(const std::function<void(Stream& compute)>& work);
  [[noreturn]] void abandon(std::string_view reason);
  [[noreturn]] void rethrow_explained(const std::exception_ptr& failure) const;
  void issue(Loaded& program, std::int64_t step, int index);
  StepExchange::Given given_of(std::int64_t step, std::int64_t items,
                               std::span<const double> rates) const;
  void judge(const Begun& step, StepResult& result);
  std::string find_non_finite(std::size_t turn);
  void prepare(Memory& memory);
  void begin_histories();
  const Schedule* schedule_with_histories() const;
  /// One before it, of the same batches; null if there is none.
  const Loaded* find_alike(const Program& program) const;

  TrainingState& state_;
  const Model& model_;
  const ModelLayout& layout_;
  RankGroups& groups_;
  ExecutorOptions options_;
  Device& device_;
  const KernelTable& kernels_;
  const Optimizer& optimizer_;
  const std::vector<double> hyperparameters_;
  std::unique_ptr<OptimizerRunner> optimizer_steps_;
  Lanes lanes_;
  StepExchange exchange_;
  std::unique_ptr<BufferPool> pool_;
  std::vector<std::unique_ptr<Loaded>> programs_;
  Tensor scratch_;  ///< of the compute lane, on a CUDA device
  std::string registration_note_;
  Traffic copies_;
  std::deque<Begun> begun_;   ///< the oldest first
  Event results_;             ///< of the step that is being issued, once they have been
  LossScalerState scaler_{};  ///< after the last step that is finished
  std::chrono::milliseconds longest_step_{0};
  std::vector<ActionSpan> spans_;
};

}  // namespace tessera
