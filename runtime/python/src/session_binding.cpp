#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "conversions.h"
#include "interrupts.h"
#include "tessera/cli/embedded_run.h"
#include "tessera/core/device.h"
#include "tessera/core/error.h"
#include "tessera/sharding/training_state.h"

namespace py = pybind11;

namespace tessera::python {
namespace {

/// A tensor of a rank's state, or a copy of one on a GPU or on disk.
struct HeldTensor {
  std::shared_ptr<const void> owner;  ///< of the memory: the run, or the copy
  std::byte* data = nullptr;
  std::int64_t bytes = 0;
  std::string name, role, format, tier, unit, tensor, sharded;
  int rank = 0;
  std::int64_t first = 0, block = 1;
  bool is_copy = false;
  /// Stretches of parameters: name, first and last element but one, and where they begin here.
  std::vector<std::tuple<std::string, std::int64_t, std::int64_t, std::int64_t>> pieces{};
};

/// Samples as Python hands them over: int32, without gaps.
std::vector<std::int32_t> integers_of(const py::buffer& buffer) {
  const py::buffer_info info = buffer.request();
  require(info.itemsize == sizeof(std::int32_t) && info.format == "i", ErrorCode::kInvalidArgument,
          "samples are arrays of int32, and this one's format is '", info.format, "'");
  std::vector<std::int32_t> values(static_cast<std::size_t>(info.size));
  if (!values.empty()) std::memcpy(values.data(), info.ptr, values.size() * sizeof(std::int32_t));
  return values;
}

/// A run under a loop in Python.
class PythonSession {
 public:
  using Values = std::vector<std::pair<std::string, std::string>>;
  /// Gives the samples of an evaluation for the length of a sample.
  using MakeSamples = std::function<py::tuple(std::int64_t)>;

  PythonSession(const Values& values, const std::string& file, bool is_given,
                const std::optional<MakeSamples>& evaluation) {
    const auto interrupted = std::make_shared<std::atomic<bool>>(false);
    cli::EmbeddedRun::Data data{.is_given = is_given};
    if (evaluation) {
      data.evaluation = [&evaluation](std::int64_t length) {
        const py::gil_scoped_acquire lock;
        const py::tuple arrays = (*evaluation)(length);
        return cli::GivenTokens{integers_of(arrays[0].cast<py::buffer>()),
                                integers_of(arrays[1].cast<py::buffer>())};
      };
    }
    const auto stop = [&] { *interrupted = true; };
    run_interruptible(
        [&] {
          run_ = std::make_shared<cli::EmbeddedRun>(cli::GivenSettings{values, file}, data,
                                                    [interrupted] { return interrupted->load(); });
        },
        stop, stop);
  }

  cli::EmbeddedRun& run() const {
    require(run_ != nullptr, ErrorCode::kInvalidArgument,
            "the session is closed; make another one, from a checkpoint if need be");
    return *run_;
  }
  /// Ends the ranks; what views of state show stays until the last of them is gone.
  void close() { run_ = nullptr; }

  /// Ctrl-C waits for the end of what has begun; a second one gives the run up.
  template <typename Body>
  void work(const Body& body) const {
    cli::EmbeddedRun& run = this->run();
    run_interruptible([&] { body(run); }, [] {},
                      [&] { run.session().abort("interrupted by Ctrl-C"); });
  }

  std::optional<StepRecord> step() const {
    std::optional<StepRecord> record;
    work([&](cli::EmbeddedRun& run) { record = run.step(); });
    return record;
  }
  EvaluationRecord evaluate() const {
    EvaluationRecord record;
    work([&](cli::EmbeddedRun& run) { record = run.evaluate(); });
    return record;
  }
  std::string save(const std::string& folder) const {
    std::string path;
    work([&](cli::EmbeddedRun& run) { path = run.save(folder); });
    return path;
  }
  void finish() const {
    work([](cli::EmbeddedRun& run) { run.finish(); });
  }
  std::vector<FullParameter> parameters() const {
    std::vector<FullParameter> all;
    work([&](cli::EmbeddedRun& run) { all = run.session().parameters(); });
    return all;
  }
  void set_parameters(const std::vector<std::pair<std::string, py::buffer>>& arrays) const;
  std::vector<HeldTensor> state() const;

 private:
  std::shared_ptr<cli::EmbeddedRun> run_;
};

void PythonSession::set_parameters(
    const std::vector<std::pair<std::string, py::buffer>>& arrays) const {
  std::vector<py::buffer_info> infos;
  std::map<std::string, std::span<const float>> values;
  for (const auto& [name, buffer] : arrays) {
    infos.push_back(buffer.request());
    const py::buffer_info& info = infos.back();
    require(info.format == "f", ErrorCode::kInvalidArgument, "parameters are arrays of float32; ",
            name, " has the format '", info.format, "'");
    values[name] = {static_cast<const float*>(info.ptr), static_cast<std::size_t>(info.size)};
  }
  work([&](cli::EmbeddedRun& run) {
    run.session().set_parameters([&](const std::string& name) {
      const auto found = values.find(name);
      require(found != values.end(), ErrorCode::kInvalidArgument, "set_parameters: '", name,
              "' is missing; give all parameters, as parameters() returns them");
      return found->second;
    });
  });
}

HeldTensor held(const TrainingState& state, const StateTensor& tensor,
                const std::shared_ptr<cli::EmbeddedRun>& run, Stream& stream) {
  HeldTensor result{.owner = run,
                    .data = tensor.view.data,
                    .bytes = tensor.range.numel * static_cast<std::int64_t>(size_of(tensor.format)),
                    .name = tensor.name,
                    .role = std::string(to_string(tensor.role)),
                    .format = std::string(to_string(tensor.format)),
                    .tier = std::string(to_string(tensor.tier)),
                    .unit = state.layout().units[static_cast<std::size_t>(tensor.unit)].name,
                    .tensor = tensor.tensor,
                    .sharded = to_string(tensor.sharded),
                    .rank = state.rank(),
                    .first = tensor.range.begin,
                    .block = tensor.block};
  for (const StatePiece& piece : state.pieces(tensor)) {
    result.pieces.emplace_back(piece.parameter->name, piece.elements.begin,
                               piece.elements.begin + piece.elements.numel,
                               piece.first - tensor.range.begin);
  }
  const bool is_on_gpu = run->session().plan().options.device == DeviceChoice::kCuda;
  if (tensor.tier != Tier::kDisk && !(tensor.tier == Tier::kDevice && is_on_gpu)) return result;
  auto copy = std::make_shared<std::vector<std::byte>>(static_cast<std::size_t>(result.bytes));
  if (tensor.tier == Tier::kDisk) {
    state.disk()->read(tensor.extent, *copy);
  } else {
    stream.copy(copy->data(), tensor.view.data, copy->size());
    stream.synchronize();
  }
  result.data = copy->data();
  result.owner = std::move(copy);
  result.is_copy = true;
  return result;
}

std::vector<HeldTensor> PythonSession::state() const {
  std::mutex mutex;
  std::map<int, std::vector<HeldTensor>> by_rank;
  work([&](cli::EmbeddedRun& run) {
    run.session().states([&](const TrainingState& state, Stream& stream) {
      std::vector<HeldTensor> tensors;
      for (const StateTensor& tensor : state) tensors.push_back(held(state, tensor, run_, stream));
      const std::lock_guard lock(mutex);
      by_rank[state.rank()] = std::move(tensors);
    });
  });
  std::vector<HeldTensor> all;
  for (auto& [rank, tensors] : by_rank) std::ranges::move(tensors, std::back_inserter(all));
  return all;
}

/// Elements of `data` in one row.
template <typename T>
py::buffer_info row_of(T* data, std::int64_t numel, bool read_only) {
  return py::buffer_info(data, sizeof(T), py::format_descriptor<T>::format(), 1,
                         {static_cast<py::ssize_t>(numel)}, {static_cast<py::ssize_t>(sizeof(T))},
                         read_only);
}

void add_records(py::module_& module) {
  py::class_<StepRecord>(module, "StepRecord")
      .def_readonly("step", &StepRecord::step)
      .def_readonly("loss", &StepRecord::loss)
      .def_readonly("gradient_norm", &StepRecord::gradient_norm)
      .def_readonly("learning_rate", &StepRecord::learning_rate)
      .def_readonly("tokens", &StepRecord::tokens)
      .def_readonly("positions", &StepRecord::positions)
      .def_readonly("loss_scale", &StepRecord::loss_scale)
      .def_readonly("skipped", &StepRecord::skipped)
      .def_readonly("seconds", &StepRecord::seconds)
      .def_readonly("tokens_per_second", &StepRecord::tokens_per_second)
      .def_readonly("peak_bytes", &StepRecord::peak_bytes)
      .def_readonly("exposed_seconds", &StepRecord::exposed_seconds);
  py::class_<EvaluationRecord>(module, "EvaluationRecord")
      .def_readonly("step", &EvaluationRecord::step)
      .def_readonly("loss", &EvaluationRecord::loss)
      .def_readonly("perplexity", &EvaluationRecord::perplexity)
      .def_readonly("tokens", &EvaluationRecord::tokens)
      .def_property_readonly("token_accuracy", &EvaluationRecord::token_accuracy)
      .def_property_readonly("f1", &EvaluationRecord::f1)
      .def_property_readonly("macro_f1", &EvaluationRecord::macro_f1);
}

void add_tensors(py::module_& module) {
  py::class_<HeldTensor>(module, "HeldTensor", py::buffer_protocol())
      .def_buffer([](HeldTensor& tensor) {
        return row_of(reinterpret_cast<std::uint8_t*>(tensor.data), tensor.bytes, true);
      })
      .def_readonly("name", &HeldTensor::name)
      .def_readonly("role", &HeldTensor::role)
      .def_readonly("format", &HeldTensor::format)
      .def_readonly("tier", &HeldTensor::tier)
      .def_readonly("unit", &HeldTensor::unit)
      .def_readonly("tensor", &HeldTensor::tensor)
      .def_readonly("sharded", &HeldTensor::sharded)
      .def_readonly("rank", &HeldTensor::rank)
      .def_readonly("first", &HeldTensor::first)
      .def_readonly("block", &HeldTensor::block)
      .def_readonly("is_copy", &HeldTensor::is_copy)
      .def_readonly("pieces", &HeldTensor::pieces);
  py::class_<FullParameter>(module, "FullParameter", py::buffer_protocol())
      .def_buffer([](FullParameter& parameter) {
        return row_of(parameter.values.data(), static_cast<std::int64_t>(parameter.values.size()),
                      false);
      })
      .def_readonly("name", &FullParameter::name)
      .def_property_readonly("shape", [](const FullParameter& parameter) {
        py::tuple shape(static_cast<std::size_t>(parameter.shape.rank()));
        for (int i = 0; i < parameter.shape.rank(); ++i) {
          shape[static_cast<std::size_t>(i)] = parameter.shape[i];
        }
        return shape;
      });
}

}  // namespace

void add_session(py::module_& module) {
  add_records(module);
  add_tensors(module);
  py::class_<PythonSession>(module, "Session")
      .def(py::init<const PythonSession::Values&, const std::string&, bool,
                    const std::optional<PythonSession::MakeSamples>&>(),
           py::arg("values"), py::arg("config_file"), py::arg("is_given"), py::arg("evaluation"))
      .def_property_readonly("sizes",
                             [](const PythonSession& session) {
                               const cli::RunSizes& sizes = session.run().sizes();
                               return py::make_tuple(sizes.sequence_length, sizes.vocab_size,
                                                     sizes.samples_per_step);
                             })
      .def_property_readonly(
          "settings",
          [](const PythonSession& session) { return to_python(session.run().settings()); })
      .def_property_readonly(
          "schedules",
          [](const PythonSession& session) { return session.run().session().plan().step.ranks; })
      .def_property_readonly(
          "steps", [](const PythonSession& session) { return session.run().session().steps(); })
      .def_property_readonly("samples",
                             [](const PythonSession& session) { return session.run().samples(); })
      .def_property_readonly(
          "evaluation", [](const PythonSession& session) { return session.run().evaluation(); })
      .def(
          "give",
          [](const PythonSession& session, const py::buffer& inputs, const py::buffer& targets) {
            session.run().give({integers_of(inputs), integers_of(targets)});
          },
          py::arg("inputs"), py::arg("targets"))
      .def("step", &PythonSession::step)
      .def("evaluate", &PythonSession::evaluate)
      .def("save", &PythonSession::save, py::arg("folder"))
      .def("finish", &PythonSession::finish)
      .def("parameters", &PythonSession::parameters)
      .def("set_parameters", &PythonSession::set_parameters, py::arg("arrays"))
      .def("state", &PythonSession::state)
      .def("notes",
           [](const PythonSession& session) {
             std::vector<std::string> notes;
             session.work([&](cli::EmbeddedRun& run) { notes = run.session().notes(); });
             for (std::string& note : notes) note = cli::with_keywords(note);
             return notes;
           })
      .def("stop", [](const PythonSession& session) { session.run().session().stop(); })
      .def("close", &PythonSession::close, py::call_guard<py::gil_scoped_release>());
}

}  // namespace tessera::python
