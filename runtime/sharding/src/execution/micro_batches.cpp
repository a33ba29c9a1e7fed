#include "execution/micro_batches.h"

#include <algorithm>
#include <exception>
#include <new>
#include <string>
#include <utility>

#include "tessera/core/error.h"

namespace tessera {
namespace {

constexpr std::int32_t kIgnored = -1;             // what the losses leave out
constexpr std::int32_t kIgnoredByPyTorch = -100;  // and what data made for PyTorch say instead

/// "samples 8 to 11".
std::string describe_samples(std::int64_t first, std::int64_t count) {
  return count == 1 ? concat("sample ", first)
                    : concat("samples ", first, " to ", first + count - 1);
}

/// The source's own fill. What it throws is told as the source's failure: it is the user's code, or
/// data that the user gave. (Which rank it is, is said by whoever runs the ranks.)
std::int64_t fill_from(const BatchSource& source, std::int64_t step, std::int64_t first,
                       std::int64_t samples, const TensorView& inputs, const TensorView& targets) {
  const auto text = [&](const char* what) {
    return concat("the batch source failed at step ", step + 1, ", ",
                  describe_samples(first, samples), ": ", what);
  };
  try {
    return source.fill(first, samples, inputs, targets);
  } catch (const Error& error) {
    std::throw_with_nested(Error(error.code(), text(error.what())));
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    std::throw_with_nested(Error(ErrorCode::kInvalidArgument, text(error.what())));
  } catch (...) {
    std::throw_with_nested(Error(ErrorCode::kInvalidArgument, text("an unknown exception")));
  }
}

/// Makes every target that does not count kIgnored, and returns how many do. See BatchSource::fill.
std::int64_t count_targets(const TensorView& targets, const std::string& samples) {
  std::int32_t* const values = targets.as<std::int32_t>();
  std::int64_t counted = 0;
  for (std::int64_t i = 0; i < targets.numel(); ++i) {
    if (values[i] == kIgnoredByPyTorch) values[i] = kIgnored;
    require(values[i] >= kIgnored, ErrorCode::kInvalidArgument, "target ", i, " of ", samples,
            " is ", values[i], "; a target is a class, at least 0, or -1 or -100 if it does not ",
            "count: mend the data");
    counted += values[i] >= 0 ? 1 : 0;
  }
  return counted;
}

/// Targets of int32 that are not below `classes`, if that is known.
void check_classes_of(const TensorView& targets, std::int64_t classes, std::int64_t first,
                      std::int64_t samples, std::int64_t step) {
  if (targets.dtype != DType::kInt32 || classes == 0) return;
  const std::int32_t* const values = targets.as<std::int32_t>();
  const std::int64_t of_sample = std::max<std::int64_t>(1, targets.numel() / samples);
  for (std::int64_t i = 0; i < targets.numel(); ++i) {
    require(values[i] < classes, ErrorCode::kInvalidArgument, "step ", step + 1, ": target ",
            i % of_sample, " of sample ", first + i / of_sample, " is ", values[i],
            ", and the model has the classes 0 to ", classes - 1,
            "; mend the data, or give the last layer more outputs");
  }
}

}  // namespace

/// A micro-batch in host memory, on its way to the device's.
class MicroBatches::Staging {
 public:
  Staging(Device& device, const Batch& batch)
      : device_(device), inputs_(host_view(batch.inputs)), targets_(host_view(batch.targets)) {}
  ~Staging() {
    for (const TensorView& view : {inputs_, targets_}) {
      device_.deallocate_host(view.data, static_cast<std::size_t>(view.bytes()));
    }
  }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  const TensorView& inputs() const { return inputs_; }
  const TensorView& targets() const { return targets_; }
  void send(const Batch& batch, Stream& stream) const {
    const auto copy = [&](const TensorView& to, const TensorView& from) {
      stream.copy(to.data, from.data, static_cast<std::size_t>(from.bytes()));
    };
    copy(batch.inputs, inputs_);
    copy(batch.targets, targets_);
  }

 private:
  TensorView host_view(const TensorView& view) {
    return TensorView(device_.allocate_host(static_cast<std::size_t>(view.bytes())), view.dtype,
                      view.shape);
  }

  Device& device_;
  TensorView inputs_, targets_;
};

MicroBatches::~MicroBatches() = default;

MicroBatches::MicroBatches(const Schedule& schedule, const BatchSource& source, int rank,
                           Memory& memory, std::int64_t samples, int steps_in_flight)
    : source_(source),
      division_(divide_samples(schedule.mesh, schedule.micro_steps, samples)),
      place_(sample_place(ShardNesting(schedule.mesh, schedule.placement), rank)),
      has_contents_(memory.device().kind() != DeviceKind::kSim),
      is_readable_(has_contents_ && memory.device().host_accessible()),
      read_(static_cast<std::size_t>(steps_in_flight)) {
  Device& device = memory.device();
  for (int m = 0; m < schedule.micro_steps; ++m) {
    Batch batch;
    batch.inputs = Tensor::empty(memory, source.input_shape(samples), source.input_dtype(),
                                 MemoryCategory::kData, "inputs");
    batch.targets = Tensor::empty(memory, source.target_shape(samples), source.target_dtype(),
                                  MemoryCategory::kData, "targets");
    batches_.push_back(std::move(batch));
  }
  if (!has_contents_ || (device.host_accessible() && steps_in_flight == 1)) return;
  for (Read& read : read_) {
    for (const Batch& batch : batches_) {
      read.staging.push_back(std::make_unique<Staging>(device, batch));
    }
  }
}

std::int64_t MicroBatches::read(std::int64_t step, std::size_t turn) {
  Read& read = read_[turn];
  read.step = step;
  std::int64_t items = 0;
  for (std::size_t m = 0; m < batches_.size(); ++m) {
    const Batch& batch = batches_[m];
    const Staging* staging = read.staging.empty() ? nullptr : read.staging[m].get();
    const TensorView inputs = staging != nullptr ? staging->inputs() : batch.inputs.view();
    const TensorView targets = staging != nullptr ? staging->targets() : batch.targets.view();
    const std::int64_t first = first_sample_of(step, static_cast<int>(m));
    const std::int64_t filled =
        fill_from(source_, step, first, division_.micro_batch, inputs, targets);
    items += filled;
    if (first_items_.size() < batches_.size()) first_items_.push_back(filled);
    if (targets.dtype != DType::kInt32 || !has_contents_) continue;
    const std::string samples = describe_samples(first, division_.micro_batch);
    const std::int64_t counted = count_targets(targets, samples);
    require(filled == counted, ErrorCode::kInvalidArgument, "BatchSource::fill returned ", filled,
            " for ", samples, " (step ", step + 1, ", micro-step ", m + 1, "), but ", counted,
            " of their ", targets.numel(), " targets count: those that are neither -1 nor ",
            "-100; the loss would be scaled wrongly, so let fill return their number");
    check_classes_of(targets, classes_, first, division_.micro_batch, step);
  }
  return items;
}

void MicroBatches::check_classes(int micro_step, std::int64_t classes) const {
  if (!is_readable_) return;
  const Batch& batch = at(micro_step);
  check_classes_of(batch.targets, classes, batch.index * division_.micro_batch,
                   division_.micro_batch, batch.index / division_.micro_batches_per_step());
}

void MicroBatches::check_losses(int micro_step, const Shape& losses,
                                const std::string& layer) const {
  const auto m = static_cast<std::size_t>(micro_step);
  if (!has_contents_ || m >= first_items_.size()) return;  // a plan
  const Tensor& given = batches_[m].targets;
  const Shape& targets = given.shape();
  // Numbers of a vector of targets have one loss together, but where fill() counts them.
  const bool classes = given.dtype() == DType::kInt32;
  const int dims = classes ? targets.rank() : std::max(1, targets.rank() - 1);
  bool fits = losses.numel() == first_items_[m];
  std::int64_t rows = 1;
  for (int dim = 0; dim < std::min(dims, targets.rank()); ++dim) {
    rows *= targets[dim];
    fits = fits || losses.numel() == rows;
  }
  require(fits, ErrorCode::kInvalidArgument, "layer '", layer, "' comes last and returned ",
          losses.numel(), " numbers, ", losses, ", which are no losses: the targets of a ",
          "micro-batch are ", targets, ", and BatchSource::fill returned ", first_items_[m],
          "; let it end on a loss, one for each target or sample (ops::cross_entropy, "
          "ops::squared_error, ...)");
}

void MicroBatches::send(std::size_t turn, Stream& stream) {
  const Read& read = read_[turn];
  stream.submit({.name = "batches"}, [this, step = read.step] {
    for (std::size_t m = 0; m < batches_.size(); ++m) {
      batches_[m].index = index_of(step, static_cast<int>(m));
    }
  });
  for (std::size_t m = 0; m < read.staging.size(); ++m) read.staging[m]->send(batches_[m], stream);
}

}  // namespace tessera
