#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "tessera/core/cpu_list.h"
#include "tessera/core/usable_cores.h"

// How busy a machine is beside this process: a benchmark that shares its cores measures the others.
namespace tessera {

/// Where Linux tells what its CPUs do; tests have files of their own.
struct MachinePlaces {
  std::string stat = "/proc/stat";
  std::string loadavg = "/proc/loadavg";
  CgroupPlaces cgroup{};
};

/// Counters at one moment, in seconds since some beginning; 0 where Linux says nothing.
struct MachineReading {
  double clock = 0.0;
  double busy = 0.0;    ///< CPU time of all programs on the CPUs that this process may use
  double stolen = 0.0;  ///< time for which the hypervisor kept those CPUs from this machine
  double own = 0.0;     ///< CPU time of this process
  int cpus = 1;         ///< that this process may use
  int machine_cpus = 1;
  int runnable = 0;          ///< threads of the machine that run or wait for a CPU, this among them
  std::int64_t periods = 0;  ///< of the control groups' quotas
  std::int64_t throttled = 0;  ///< of those: in which a quota held this process back
};

MachineReading read_machine(const MachinePlaces& places = {});

/// Time that a measurement on some cores was kept from, each as a share; 0: none.
struct MachineLoad {
  double others = 0.0;     ///< of the cores: what other programs had of them
  double stolen = 0.0;     ///< of the CPUs: what the hypervisor had of them
  double waiting = 0.0;    ///< of the cores: threads of others that found no core beside them
  double throttled = 0.0;  ///< of the periods of a quota: those in which it held this process back

  /// The largest one.
  double most() const;
};

/// Between two readings, of a measurement that keeps `cores` busy. Others take nothing as long as
/// there are CPUs beside those. Linux counts the CPU time of programs by its ticks: up to two for
/// each CPU are no load. `waiting` is of `end`, and means something if this process ran no threads
/// but the one that read.
MachineLoad load_between(const MachineReading& begin, const MachineReading& end, int cores);

/// How busy others keep a machine on which this process does nothing: `read` is called now and ten
/// times more, each after a `pause`.
MachineLoad watch_machine(int cores, const std::function<MachineReading()>& read,
                          const std::function<void()>& pause);
/// Over half a second of this machine.
MachineLoad watch_machine(int cores);

}  // namespace tessera
