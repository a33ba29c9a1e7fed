#include "tessera/core/cpu_list.h"

#include <omp.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>

#include "tessera/core/error.h"

namespace tessera {
namespace {

constexpr int kMostCpus = 1 << 16;  // Linux is built for 8192 at most

/// A set of `count` CPUs, as the system calls take it.
class CpuMask {
 public:
  explicit CpuMask(int count)
      : bytes_(CPU_ALLOC_SIZE(static_cast<std::size_t>(count))),
        set_(CPU_ALLOC(static_cast<std::size_t>(count)), [](cpu_set_t* set) { CPU_FREE(set); }) {
    require(set_ != nullptr, ErrorCode::kOutOfMemory, "no memory for a set of CPUs");
    CPU_ZERO_S(bytes_, set_.get());
  }
  std::size_t bytes() const { return bytes_; }
  cpu_set_t* get() const { return set_.get(); }
  void add(int cpu) { CPU_SET_S(static_cast<std::size_t>(cpu), bytes_, set_.get()); }
  bool has(int cpu) const {
    return CPU_ISSET_S(static_cast<std::size_t>(cpu), bytes_, set_.get()) != 0;
  }

 private:
  std::size_t bytes_;
  std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set_;
};

/// A number at the start of `text`, which is taken off; -1 if there is none.
int take_number(std::string_view& text) {
  int number = -1;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
  if (read.ec != std::errc()) return -1;
  text.remove_prefix(static_cast<std::size_t>(read.ptr - text.data()));
  return number;
}

bool take(std::string_view& text, char expected) {
  if (text.empty() || text.front() != expected) return false;
  text.remove_prefix(1);
  return true;
}

/// Takes "4", "0-3" or "0-6:2" off the start of `text`; false if there is none of them.
bool take_range(std::string_view& text, CpuList& cpus) {
  const int first = take_number(text);
  int last = first;
  int stride = 1;
  if (take(text, '-')) {
    last = take_number(text);
    if (take(text, ':')) stride = take_number(text);
  }
  if (first < 0 || last < first || last >= kMostCpus || stride < 1) return false;
  for (int cpu = first; cpu <= last; cpu += stride) cpus.push_back(cpu);
  return true;
}

}  // namespace

std::string to_string(const CpuList& cpus) {
  std::string text;
  for (std::size_t i = 0; i < cpus.size();) {
    std::size_t last = std::min(i + 1, cpus.size() - 1);
    const int stride = cpus[last] - cpus[i];
    while (last + 1 < cpus.size() && cpus[last + 1] == cpus[last] + stride) ++last;
    if (stride > 1 && last < i + 2) last = i;  // two are no series
    text += concat(text.empty() ? "" : ",", cpus[i]);
    if (last > i) text += concat("-", cpus[last], stride > 1 ? concat(":", stride) : "");
    i = last + 1;
  }
  return text;
}

CpuList parse_cpu_list(std::string_view text) {
  CpuList cpus;
  std::string_view rest = text;
  bool good = take_range(rest, cpus);
  while (good && !rest.empty()) good = take(rest, ',') && take_range(rest, cpus);
  require(good, ErrorCode::kConfig, "'", text,
          "' names no CPUs; write their numbers and ranges, like 0-3,8-11");
  std::ranges::sort(cpus);
  cpus.erase(std::ranges::unique(cpus).begin(), cpus.end());
  return cpus;
}

CpuList cpus_of_thread() {
  // The call fails with EINVAL where the kernel knows of more CPUs.
  for (int count = CPU_SETSIZE; count <= kMostCpus; count *= 2) {
    const CpuMask mask(count);
    if (sched_getaffinity(0, mask.bytes(), mask.get()) != 0) {
      if (errno == EINVAL) continue;
      break;
    }
    CpuList cpus;
    for (int cpu = 0; cpu < count; ++cpu) {
      if (mask.has(cpu)) cpus.push_back(cpu);
    }
    return cpus;
  }
  fail(ErrorCode::kUnavailable,
       "the system does not say on which CPUs this thread may run: ", std::strerror(errno));
}

void bind_thread(const CpuList& cpus) {
  require(!cpus.empty(), ErrorCode::kInvalidArgument, "a thread cannot be bound to no CPU");
  CpuMask mask(cpus.back() + 1);
  for (const int cpu : cpus) mask.add(cpu);
  require(sched_setaffinity(0, mask.bytes(), mask.get()) == 0, ErrorCode::kUnavailable,
          "cannot bind a thread to CPUs ", to_string(cpus), ": ", std::strerror(errno),
          "; train with `bind` none");
}

CpuList usable_cpus() {
  const CpuList own = cpus_of_thread();
  if (omp_get_proc_bind() == omp_proc_bind_false) return own;
  CpuList all;
  bool is_place = false;
  for (int place = 0; place < omp_get_num_places(); ++place) {
    CpuList cpus(static_cast<std::size_t>(omp_get_place_num_procs(place)));
    omp_get_place_proc_ids(place, cpus.data());
    std::ranges::sort(cpus);
    is_place = is_place || cpus == own;
    all.insert(all.end(), cpus.begin(), cpus.end());
  }
  std::ranges::sort(all);
  all.erase(std::ranges::unique(all).begin(), all.end());
  return is_place ? all : own;
}

}  // namespace tessera
