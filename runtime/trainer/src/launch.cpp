#include "tessera/trainer/launch.h"

#include <exception>
#include <mutex>
#include <new>
#include <thread>

#include "tessera/core/error.h"
#include "tessera/core/start_thread.h"

namespace tessera {
namespace {

/// Keeps the exception that explains the others.
class RootCause {
 public:
  void add(int rank, std::exception_ptr error, bool aborted) {
    std::lock_guard lock(mutex_);
    if (error_ == nullptr || (aborted_ && !aborted)) {
      rank_ = rank;
      error_ = std::move(error);
      aborted_ = aborted;
    }
  }

  void rethrow_if_any() const {
    if (error_ == nullptr) return;
    const std::string prefix = concat("rank ", rank_, ": ");
    try {
      std::rethrow_exception(error_);
    } catch (const Error& error) {
      std::throw_with_nested(Error(error.code(), prefix + error.what()));
    } catch (const std::bad_alloc&) {
      std::throw_with_nested(Error(ErrorCode::kOutOfMemory,
                                   prefix + "the machine is out of memory; use fewer ranks or a "
                                            "smaller model or micro-batch"));
    } catch (const std::exception& error) {
      std::throw_with_nested(Error(ErrorCode::kInternal, prefix + error.what()));
    } catch (...) {
      std::throw_with_nested(Error(ErrorCode::kInternal, prefix + "an unknown exception"));
    }
  }

 private:
  std::mutex mutex_;
  int rank_ = -1;
  bool aborted_ = false;
  std::exception_ptr error_;
};

/// Runs one rank's body; what it throws goes to `cause` and, as text, to `on_failure`.
void run_rank(int rank, const std::function<void(int)>& body, RootCause& cause,
              const std::function<void(int, const char*)>& on_failure) {
  try {
    body(rank);
  } catch (const Error& error) {
    cause.add(rank, std::current_exception(), error.code() == ErrorCode::kAborted);
    on_failure(rank, error.what());
  } catch (const std::exception& error) {
    cause.add(rank, std::current_exception(), false);
    on_failure(rank, error.what());
  } catch (...) {
    cause.add(rank, std::current_exception(), false);
    on_failure(rank, "an unknown exception");
  }
}

/// Ranks `first` to `first` + `ranks` - 1.
void launch(int first, int ranks, const std::function<void(int)>& body,
            const std::function<void(int, const char*)>& on_failure) {
  require(ranks > 0, ErrorCode::kInvalidArgument, "cannot launch ", ranks,
          " ranks; there must be at least one");
  RootCause cause;
  {
    std::vector<std::jthread> threads;  // joined when the scope ends
    threads.reserve(static_cast<std::size_t>(ranks));
    for (int rank = first; rank < first + ranks; ++rank) {
      // The ranks that run must not wait for one that does not, whatever else fails here.
      bool started = false;
      run_rank(
          rank,
          [&](int) {
            threads.push_back(start_thread<std::jthread>(
                concat("rank ", rank), [&, rank] { run_rank(rank, body, cause, on_failure); }));
            started = true;
          },
          cause, on_failure);
      if (!started) break;
    }
  }
  cause.rethrow_if_any();
}

}  // namespace

void launch_ranks(int ranks, const std::function<void(int rank)>& body) {
  launch(0, ranks, body, [](int, const char*) {});
}

void launch_ranks(const std::vector<std::unique_ptr<ProcessGroup>>& world,
                  const std::function<void(int rank, ProcessGroup& group)>& body) {
  const int first = world.empty() ? 0 : world.front()->rank();
  const auto group_of = [&](int rank) -> ProcessGroup& {
    return *world[static_cast<std::size_t>(rank - first)];
  };
  launch(
      first, static_cast<int>(world.size()), [&](int rank) { body(rank, group_of(rank)); },
      [&](int rank, const char* what) {
        // All ends: a group of NCCL does not tell its neighbours.
        const std::string reason = concat("rank ", rank, " failed: ", what);
        for (const auto& group : world) group->abort(reason);
      });
}

}  // namespace tessera
