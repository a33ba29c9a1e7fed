#pragma once

#include <pybind11/pybind11.h>

namespace tessera::python {

/// Schedule, validate, account.
void add_schedules(pybind11::module_& module);
/// The commands that run nothing: plan, simulate, sweep, estimate_memory, explain; the settings.
void add_answers(pybind11::module_& module);
/// Session, its records and its tensors.
void add_session(pybind11::module_& module);

}  // namespace tessera::python
