#include "agreed_plan.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "best_evaluation.h"
#include "chosen_samples.h"
#include "resume.h"
#include "step_trace.h"
#include "tessera/core/error.h"
#include "tessera/trainer/agreement.h"
#include "tessera/trainer/output_file.h"
#include "tessera/trainer/rank_binding.h"
#include "tessera/trainer/rank_device.h"

namespace tessera {
namespace {

/// Returns the result of `body`. If it throws, the other processes must not wait for this one.
template <typename Body>
auto telling_others(const std::shared_ptr<World>& world, const Body& body) {
  try {
    return body();
  } catch (const std::exception& error) {
    if (world != nullptr) {
      world->groups().front()->abort(
          concat("rank ", world->first_rank(), " failed: ", error.what()));
    }
    throw;
  }
}

/// All processes of a run must have come here for the same run.
void compare_processes(const RunInputs& inputs, const TrainerOptions& options) {
  if (options.world == nullptr || options.world->processes() == 1) return;
  const auto own = telling_others(options.world, [&] {
    TrainerOptions here = resolved(options);
    here.device = resolved_device(here.device);
    std::vector<NamedText> all = identity_of_options(here);
    all.insert(all.begin(), identity_of_program());
    all.push_back(identity_of_model(inputs.model));
    for (NamedText& value : identity_of_data(inputs.source, here)) all.push_back(std::move(value));
    for (NamedText& value :
         inputs.evaluation != nullptr
             ? identity_of_data(FirstSamples(*inputs.evaluation, here.evaluation_samples), here)
             : std::vector<NamedText>()) {
      value.name = concat("evaluation ", value.name);
      all.push_back(std::move(value));
    }
    return all;
  });
  require_agreement(*options.world, own);
}

/// Before it is looked for checkpoints: no other run may add any.
void lock_folder(TrainingPlan& plan) {
  const CheckpointOptions& options = plan.options.checkpoints;
  plan.folder_lock = std::make_shared<FolderLock>(storage_of(options), options.folder);
  if (!plan.folder_lock->note().empty()) plan.notes.push_back(plan.folder_lock->note());
}

/// Bytes on the host of the CPU's ranks of this machine: offloaded state, and the copies of all
/// state while checkpoints are written. GPUs' ranks have theirs elsewhere.
std::int64_t on_host(const TrainingPlan& plan) {
  const std::int64_t disk_buffers =
      plan.disk_bytes > 0 ? disk_buffer_bytes(disk_options(plan.options)) : 0;
  return plan.options.device == DeviceChoice::kCpu
             ? (plan.host_memory.total + plan.snapshot_bytes + disk_buffers) *
                   ranks_on_host(plan.options)
             : 0;
}

}  // namespace

bool speaks(const TrainerOptions& options) {
  return options.world == nullptr || options.world->first_rank() == 0;
}

TrainingPlan agreed_plan(const RunInputs& inputs, const TrainerOptions& options) {
  compare_processes(inputs, options);
  TrainingPlan plan = telling_others(options.world, [&] {
    const TrainerOptions here = on_this_machine(options);
    check_best_evaluation(here, inputs.evaluation != nullptr);
    TrainingPlan made = make_training_plan(inputs, here);
    require(made.disk_bytes == 0 || !here.offload_path.empty(), ErrorCode::kConfig,
            "optimizer state goes to disk, and nobody has said where: set `offload_path` to a "
            "folder on it");
    if (!here.gemm_table.empty()) {
      if (here.device == DeviceChoice::kCuda) {
        made.gemm_table = std::make_shared<GemmTable>(read_gemm_table(here.gemm_table));
        const std::vector<NamedText> identity = identity_of_options(here);
        made.notes.push_back(
            concat("GEMMs run as the table '", here.gemm_table, "' says (",
                   std::ranges::find(identity, "gemm_table", &NamedText::name)->value,
                   "); another table, or none, gives other bits"));
      } else {
        made.notes.emplace_back("`gemm_table` has no effect on the CPU");
      }
    }
    for (std::string note : {sharing_note(here), binding_note(options, made.options)}) {
      if (!note.empty()) made.notes.insert(made.notes.begin(), std::move(note));
    }
    const std::int64_t available = available_bytes(made.options) - on_host(made);
    require_memory(made, available);
    if (!here.trace.file.empty() && speaks(here)) check_writable(here.trace.file, "`trace.file`");
    if (std::string note = tight_memory_note(made, available); !note.empty()) {
      made.notes.push_back(std::move(note));
    }
    if (!here.checkpoints.folder.empty() && speaks(here)) lock_folder(made);
    ResumeChoice resumed = find_resume_point(made);
    made.resume = std::move(resumed.point);
    for (std::string& note : resumed.notes) made.notes.push_back(std::move(note));
    if (!here.trace.file.empty()) {
      steps_to_trace(made.options, made.resume != nullptr ? made.resume->manifest.step : 0);
    }
    return made;
  });
  agree_on_resume_point(options, plan.resume.get());
  return plan;
}

}  // namespace tessera
