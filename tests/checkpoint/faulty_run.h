#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace tessera::test {

/// What happens to a process of a run, and where. A place is the name of an operation, whose first
/// action of `step` it is; "snapshot", the end of copying the state for the checkpoint of
/// `checkpoint`; or a call of Storage for that one, as `faulty_run` lists them.
struct Fault {
  std::string how{};  ///< kill, stop, throw or term; "": nothing happens
  std::string place{};
  int process = 0;              ///< in which it happens; a signal `term` goes to all
  std::int64_t step = 0;        ///< counted from 0
  std::int64_t checkpoint = 0;  ///< its step
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Fault, how, place, process, step, checkpoint)

/// The run of one process: the argument of the program `faulty_run`, as JSON. It joins the others
/// as processes of a launcher do, saves into `folder` and goes on from what is there.
struct FaultyRun {
  std::string strategy{};
  int samples_per_step = 0;
  std::int64_t steps = 0, save_every = 0, total_limit = 0;
  std::string folder{};
  std::string log{};    ///< process 0 adds a line for each step, and the last one's parameters
  std::string calls{};  ///< the file that lists the storage's calls for the fault's checkpoint
  int timeout_ms = 0;   ///< of collectives
  Fault fault{};
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(FaultyRun, strategy, samples_per_step, steps, save_every,
                                   total_limit, folder, log, calls, timeout_ms, fault)

}  // namespace tessera::test
