#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// CPUs (hardware threads) by the numbers that Linux, taskset and numactl give them, in increasing
/// order, each once.
using CpuList = std::vector<int>;

/// "0-3,8", and "0-6:2" for every second one, as taskset writes it.
std::string to_string(const CpuList& cpus);
/// Throws Error{kConfig} for a text that names no CPUs.
CpuList parse_cpu_list(std::string_view text);

/// The CPUs that the scheduler may run the calling thread on: those that taskset, numactl or a
/// launcher has left to it.
CpuList cpus_of_thread();
/// Has the calling thread run on `cpus` only, and with it the threads that it starts from now on.
/// Throws Error{kUnavailable} if the system refuses.
void bind_thread(const CpuList& cpus);

/// cpus_of_thread(), but for what OpenMP has done: if its variables say so (OMP_PROC_BIND,
/// OMP_PLACES, GOMP_CPU_AFFINITY) it binds the process's first thread to a place, mostly one core,
/// as it is loaded, and threads that are started from there stay on it. Teams are not OpenMP's (see
/// thread_team.h), so nothing would move them: these are the CPUs of all places then.
CpuList usable_cpus();

}  // namespace tessera
