#include <pybind11/operators.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>
#include <vector>

#include "bindings.h"
#include "conversions.h"
#include "tessera/cli/answers.h"
#include "tessera/sharding/schedule.h"
#include "tessera/sharding/schedule_json.h"
#include "tessera/sharding/step_plan.h"
#include "tessera/sharding/validate.h"

namespace py = pybind11;

namespace tessera::python {

void add_schedules(py::module_& module) {
  py::class_<Schedule>(module, "Schedule")
      .def(py::init([](const std::string& text) { return parse_schedule(text); }), py::arg("text"))
      .def("__str__", [](const Schedule& schedule) { return to_string(schedule); })
      .def(py::self == py::self)
      .def_property_readonly("pipeline_rank",
                             [](const Schedule& schedule) { return schedule.pipeline.rank; })
      .def("describe",
           [](const Schedule& schedule) {
             std::vector<std::string> words;
             for (const Action& action : schedule.actions) {
               words.push_back(tessera::describe(schedule, action));
             }
             return words;
           })
      .def("to_json", [](const Schedule& schedule) { return to_python(to_json(schedule)); });
  module.def(
      "parse_schedules", [](const std::string& text) { return parse_step_plan(text).ranks; },
      py::arg("text"));
  module.def(
      "print_schedules",
      [](std::vector<Schedule> schedules) { return to_string(StepPlan{std::move(schedules)}); },
      py::arg("schedules"));
  module.def(
      "validate",
      [](std::vector<Schedule> schedules) {
        std::vector<Violation> violations;
        {
          const py::gil_scoped_release free;
          violations = schedules.size() == 1 ? validate(schedules.front())
                                             : validate(StepPlan{std::move(schedules)});
        }
        py::list found;
        for (const Violation& one : violations) {
          found.append(py::make_tuple(to_string(one.rule), one.action, one.message));
        }
        return found;
      },
      py::arg("schedules"));
  module.def(
      "account", [](const Schedule& schedule) { return to_python(cli::account_json(schedule)); },
      py::arg("schedule"));
}

}  // namespace tessera::python
