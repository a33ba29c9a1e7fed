#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "conversions.h"
#include "interrupts.h"
#include "tessera/cli/answers.h"

namespace py = pybind11;

namespace tessera::python {
namespace {

using Values = std::vector<std::pair<std::string, std::string>>;

/// The result of `answer`, which takes long for many ranks: without the interpreter's lock. Ctrl-C
/// is heard when it is there.
template <typename Answer>
auto unlocked(const Answer& answer) {
  const py::gil_scoped_release free;
  return answer();
}

py::dict to_python(const Setting& setting) {
  constexpr const char* kTypes[]{"integer", "number", "flag", "text", "bytes"};
  py::dict row;
  row["name"] = setting.name;
  row["type"] = kTypes[static_cast<std::size_t>(setting.type)];
  row["default"] = python::to_python(nlohmann::ordered_json(setting.fallback));
  row["help"] = cli::with_keywords(setting.help);
  row["choices"] = setting.choices;
  return row;
}

/// By pipeline rank.
py::list spans_of(const cli::SimulationAnswer& answer) {
  py::list ranks;
  for (const std::vector<ActionSpan>& of_rank : answer.spans) {
    py::list spans;
    for (const ActionSpan& span : of_rank) {
      spans.append(
          py::make_tuple(span.action, std::string(to_string(span.lane)), span.begin, span.end));
    }
    ranks.append(spans);
  }
  return ranks;
}

}  // namespace

void add_answers(py::module_& module) {
  module.def(
      "plan",
      [](const Values& values, const std::string& file) {
        cli::PlanAnswer answer = unlocked([&] { return cli::answer_plan({values, file}); });
        std::vector<std::string> notes;
        for (const std::string& note : answer.notes) notes.push_back(cli::with_keywords(note));
        return py::make_tuple(to_python(answer.json), answer.step.ranks, notes);
      },
      py::arg("values"), py::arg("config_file"));
  module.def(
      "simulate",
      [](const Values& values, const std::string& file) {
        const cli::SimulationAnswer answer = unlocked([&] {
          return cli::answer_simulation({values, file});
        });
        return py::make_tuple(to_python(answer.json), answer.step.ranks, spans_of(answer));
      },
      py::arg("values"), py::arg("config_file"));
  module.def(
      "sweep",
      [](const Values& values, const std::string& file, const cli::SweptSettings& sweep) {
        return to_python(unlocked([&] { return cli::answer_sweep({values, file}, sweep); }));
      },
      py::arg("values"), py::arg("config_file"), py::arg("sweep"));
  module.def(
      "estimate_memory",
      [](const Values& values, const cli::SweptSettings& lists) {
        return to_python(unlocked([&] { return cli::answer_memory({values, ""}, lists); }));
      },
      py::arg("values"), py::arg("lists"));
  module.def(
      "explain",
      [](const Values& values, const std::string& file) {
        return to_python(unlocked([&] { return cli::answer_explanation({values, file}); }));
      },
      py::arg("values"), py::arg("config_file"));
  module.def(
      "settings",
      [](const std::string& of) {
        py::list rows;
        const cli::SettingsOf program = of == "session"    ? cli::SettingsOf::kSession
                                        : of == "plan"     ? cli::SettingsOf::kPlan
                                        : of == "simulate" ? cli::SettingsOf::kSimulation
                                                           : cli::SettingsOf::kMemoryEstimate;
        for (const Setting& setting : cli::settings_of(program)) rows.append(to_python(setting));
        return rows;
      },
      py::arg("of"));
}

}  // namespace tessera::python
