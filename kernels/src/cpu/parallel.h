#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <exception>

namespace tessera::cpu {

/// Threads that a kernel called from here may use: those of the stream it runs on.
inline int thread_count() { return omp_in_parallel() ? 1 : omp_get_max_threads(); }

/// While it lives, kernels and libraries that this thread calls run on it alone, also where the
/// team has but one thread and OpenMP does not count it as parallel.
class OneThread {
 public:
  OneThread() : saved_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneThread() { omp_set_num_threads(saved_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int saved_;
};

/// Calls body(thread, team) on each thread of an OpenMP team of at most `threads`. An exception
/// that left a parallel region would end the program: this waits for the other threads and throws
/// that of the first thread that has one.
template <typename Body>
void on_threads(int threads, const Body& body) {
  std::exception_ptr error;
  int thrower = threads;
#pragma omp parallel num_threads(threads)
  {
    const int thread = omp_get_thread_num();
    try {
      body(thread, omp_get_num_threads());
    } catch (...) {
#pragma omp critical(tessera_parallel_error)
      if (thread < thrower) {
        thrower = thread;
        error = std::current_exception();
      }
    }
  }
  if (error) std::rethrow_exception(error);
}

/// Calls body(begin, end) on disjoint ranges that cover [0, count), on the OpenMP threads that
/// oneDNN uses too (one pool, no second set of spinning workers). Every range but the last is a
/// multiple of `grain`, and there are at most count / grain of them, rounded up: small work stays
/// on one thread.
///
/// The split depends on count, grain and the thread count only. A kernel whose sums cross ranges
/// must combine them in range order to stay deterministic. Of exceptions, that of the first
/// range that has one is thrown, when all ranges are done.
template <typename Body>
void parallel_for(std::int64_t count, std::int64_t grain, const Body& body) {
  if (count <= 0) return;
  const std::int64_t chunks = (count + grain - 1) / grain;
  const auto threads = static_cast<int>(std::min<std::int64_t>(thread_count(), chunks));
  if (threads <= 1) {
    body(std::int64_t{0}, count);
    return;
  }
  on_threads(threads, [&](std::int64_t t, std::int64_t n) {
    const std::int64_t begin = chunks * t / n * grain;
    const std::int64_t end = std::min(count, chunks * (t + 1) / n * grain);
    if (begin < end) body(begin, end);
  });
}

}  // namespace tessera::cpu
