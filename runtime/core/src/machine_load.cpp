#include "tessera/core/machine_load.h"

#include <omp.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

#include "cgroup_folders.h"

namespace tessera {
namespace {

constexpr int kLooks = 10;
constexpr std::chrono::milliseconds kPause{50};
constexpr double kTicksOfNoLoad = 2.0;

double seconds_of(const timeval& time) {
  return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
}

double tick_seconds() {
  static const long ticks = std::max(sysconf(_SC_CLK_TCK), 1L);
  return 1.0 / static_cast<double>(ticks);
}

/// Empty: all. A thread that is bound to fewer CPUs than its process says nothing of the others.
std::set<int> cpus_of_process() {
  const CpuList cpus = cpus_of_thread();
  if (static_cast<int>(cpus.size()) < omp_get_num_procs()) return {};
  return {cpus.begin(), cpus.end()};
}

/// "cpu1 user nice system idle iowait irq softirq steal guest guest_nice", in ticks; user has guest
/// in it.
void read_stat(const std::string& path, MachineReading& reading) {
  const std::set<int> cpus = cpus_of_process();
  std::ifstream file(path);
  int used = 0, all = 0;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    words >> name;
    if (name.size() < 4 || name.compare(0, 3, "cpu") != 0) continue;
    ++all;
    if (!cpus.empty() && !cpus.contains(std::stoi(name.substr(3)))) continue;
    double user = 0, nice = 0, system = 0, idle = 0, waits = 0, irq = 0, softirq = 0, steal = 0;
    words >> user >> nice >> system >> idle >> waits >> irq >> softirq >> steal;
    reading.busy += tick_seconds() * (user + nice + system + irq + softirq);
    reading.stolen += tick_seconds() * steal;
    ++used;
  }
  reading.cpus = std::max(used, 1);
  reading.machine_cpus = std::max(all, 1);
}

/// "0.59 6.65 10.98 1/92 20720": 1 of 92 threads can run.
int read_runnable(const std::string& path) {
  std::ifstream file(path);
  double load = 0.0;
  int runnable = 0;
  file >> load >> load >> load >> runnable;
  return file ? runnable : 0;
}

/// Those of all levels; a level without a quota has none.
void read_throttling(const CgroupPlaces& places, MachineReading& reading) {
  const CgroupFolders folders = cgroup_folders(places);
  for (const auto* version : {&folders.version_2, &folders.version_1}) {
    for (const std::filesystem::path& folder : *version) {
      std::ifstream file(folder / "cpu.stat");
      std::string key;
      for (std::int64_t value = 0; file >> key >> value;) {
        if (key == "nr_periods") reading.periods += value;
        if (key == "nr_throttled") reading.throttled += value;
      }
    }
  }
}

double share(double part, double whole) {
  return whole > 0.0 ? std::clamp(part / whole, 0.0, 1.0) : 0.0;
}

}  // namespace

MachineReading read_machine(const MachinePlaces& places) {
  MachineReading reading;
  rusage own{};
  getrusage(RUSAGE_SELF, &own);
  reading.own = seconds_of(own.ru_utime) + seconds_of(own.ru_stime);
  reading.clock =
      std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  read_stat(places.stat, reading);
  reading.runnable = read_runnable(places.loadavg);
  read_throttling(places.cgroup, reading);
  return reading;
}

double MachineLoad::most() const { return std::max({others, stolen, waiting, throttled}); }

MachineLoad load_between(const MachineReading& begin, const MachineReading& end, int cores) {
  const double seconds = end.clock - begin.clock;
  const auto wanted = static_cast<double>(std::max(cores, 1));
  const double spare = std::max(end.cpus - wanted, 0.0);
  const double ticks = kTicksOfNoLoad * tick_seconds() * end.cpus;
  const double others = (end.busy - begin.busy) - (end.own - begin.own) - ticks;
  const double waiting = end.runnable - 1 - std::max(end.machine_cpus - wanted, 0.0);
  return {.others = share(others - spare * seconds, wanted * seconds),
          .stolen = share(end.stolen - begin.stolen, end.cpus * seconds),
          .waiting = share(waiting, wanted),
          .throttled = share(static_cast<double>(end.throttled - begin.throttled),
                             static_cast<double>(end.periods - begin.periods))};
}

MachineLoad watch_machine(int cores, const std::function<MachineReading()>& read,
                          const std::function<void()>& pause) {
  const MachineReading begin = read();
  MachineLoad load;
  double waiting = 0.0;
  for (int look = 0; look < kLooks; ++look) {
    pause();
    load = load_between(begin, read(), cores);
    waiting += load.waiting / kLooks;
  }
  load.waiting = waiting;
  return load;
}

MachineLoad watch_machine(int cores) {
  return watch_machine(
      cores, [] { return read_machine(); }, [] { std::this_thread::sleep_for(kPause); });
}

}  // namespace tessera
