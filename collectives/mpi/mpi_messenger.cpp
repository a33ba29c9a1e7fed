// The module libtessera_mpi.so: the only code that knows MPI. See mpi_group.h.

#include <mpi.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <vector>

#include "tessera/core/error.h"
#include "world/messenger.h"

namespace tessera {
namespace {

/// One message that says why the run was aborted has this tag, in a communicator of its own.
constexpr int kAbortTag = 1;

void check(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  fail(ErrorCode::kUnavailable, what, ": ", text.data());
}

/// MPI counts in int.
constexpr std::size_t kMaxCount = std::size_t{1} << 30U;

/// A message in parts that MPI can count.
class MpiTransfer : public Messenger::Transfer {
 public:
  void add(MPI_Request request) { requests_.push_back(request); }
  ~MpiTransfer() override {
    for (MPI_Request& request : requests_) {
      if (request == MPI_REQUEST_NULL) continue;
      // Only after a failure. A send cannot be taken back for certain, so nobody waits for it.
      MPI_Cancel(&request);
      MPI_Request_free(&request);
    }
  }
  bool done() override {
    int done = 0;
    check(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done,
                      MPI_STATUSES_IGNORE),
          "MPI_Testall");
    return done != 0;
  }

 private:
  std::vector<MPI_Request> requests_;
};

/// Bytes that each of `processes` can have of a window: of what MPI's folder has free, half is left
/// to others. Open MPI says on one process only that there is not enough, and the others wait for
/// it.
std::uint64_t window_bytes(int processes) {
  constexpr std::uint64_t kGrain = 2U << 20U;
  struct statvfs folder {};
  if (statvfs("/dev/shm", &folder) != 0) return 0;
  const std::uint64_t available = std::uint64_t{folder.f_bavail} * folder.f_frsize;
  return available / 2 / static_cast<std::uint64_t>(processes) / kGrain * kGrain;
}

class MpiMessenger : public Messenger {
 public:
  MpiMessenger() {
    int initialised = 0;
    MPI_Initialized(&initialised);
    require(initialised == 0, ErrorCode::kUnavailable, "MPI can be started once in a process");
    int provided = 0;
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
    require(provided == MPI_THREAD_MULTIPLE, ErrorCode::kUnavailable,
            "this MPI cannot be called from several threads (MPI_THREAD_MULTIPLE); use one that "
            "can, as Debian's Open MPI");
    check(MPI_Comm_dup(MPI_COMM_WORLD, &messages_), "MPI_Comm_dup");
    check(MPI_Comm_dup(MPI_COMM_WORLD, &aborts_), "MPI_Comm_dup");
    MPI_Comm_set_errhandler(messages_, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(aborts_, MPI_ERRORS_RETURN);
    MPI_Comm_rank(messages_, &process_);
    MPI_Comm_size(messages_, &processes_);
    int* upper_bound = nullptr;
    int found = 0;
    MPI_Comm_get_attr(messages_, MPI_TAG_UB, static_cast<void*>(&upper_bound), &found);
    if (found != 0) max_tag_ = static_cast<std::uint32_t>(*upper_bound);
    constexpr std::size_t kReasonBytes = 4096;
    abort_text_.reserve(kReasonBytes);
    abort_sends_.reserve(static_cast<std::size_t>(processes_));
  }

  ~MpiMessenger() override {
    // Finalising waits for all processes; after a failure some of them will not come.
    if (!left_) return;
    if (window_ != MPI_WIN_NULL) {
      MPI_Win_unlock_all(window_);
      MPI_Win_free(&window_);
    }
    MPI_Comm_free(&messages_);
    MPI_Comm_free(&aborts_);
    MPI_Finalize();
  }

  int process() const override { return process_; }
  int processes() const override { return processes_; }

  std::vector<std::string> exchange(const std::string& mine) override {
    const auto count = static_cast<std::size_t>(processes_);
    const int own = static_cast<int>(mine.size());
    std::vector<int> sizes(count);
    check(MPI_Allgather(&own, 1, MPI_INT, sizes.data(), 1, MPI_INT, messages_), "MPI_Allgather");
    std::vector<int> offsets(count);
    for (std::size_t p = 1; p < count; ++p) offsets[p] = offsets[p - 1] + sizes[p - 1];
    std::string all(static_cast<std::size_t>(offsets.back() + sizes.back()), '\0');
    check(MPI_Allgatherv(mine.data(), own, MPI_CHAR, all.data(), sizes.data(), offsets.data(),
                         MPI_CHAR, messages_),
          "MPI_Allgatherv");
    std::vector<std::string> texts;
    for (std::size_t p = 0; p < count; ++p) {
      texts.push_back(
          all.substr(static_cast<std::size_t>(offsets[p]), static_cast<std::size_t>(sizes[p])));
    }
    return texts;
  }

  SharedWindow share_window(const std::vector<int>& neighbours) override {
    MPI_Comm machine = MPI_COMM_NULL;
    check(MPI_Comm_split(messages_, neighbours.front(), process_, &machine), "MPI_Comm_split");
    MPI_Comm_set_errhandler(machine, MPI_ERRORS_RETURN);
    SharedWindow window;
    if (neighbours.size() > 1) window = allocate_window(machine, neighbours.size());
    MPI_Comm_free(&machine);
    return window;
  }

  std::shared_ptr<Transfer> send(int process, std::uint32_t tag, const void* data,
                                 std::size_t bytes) override {
    auto transfer = std::make_shared<MpiTransfer>();
    const auto* from = static_cast<const char*>(data);
    for_each_part(bytes, [&](std::size_t begin, int count) {
      MPI_Request request = MPI_REQUEST_NULL;
      check(MPI_Isend(from + begin, count, MPI_BYTE, process, checked(tag), messages_, &request),
            "MPI_Isend");
      transfer->add(request);
    });
    return transfer;
  }

  std::shared_ptr<Transfer> receive(int process, std::uint32_t tag, void* data,
                                    std::size_t bytes) override {
    auto transfer = std::make_shared<MpiTransfer>();
    auto* to = static_cast<char*>(data);
    for_each_part(bytes, [&](std::size_t begin, int count) {
      MPI_Request request = MPI_REQUEST_NULL;
      check(MPI_Irecv(to + begin, count, MPI_BYTE, process, checked(tag), messages_, &request),
            "MPI_Irecv");
      transfer->add(request);
    });
    return transfer;
  }

  void abort(std::string_view reason) noexcept override {
    const std::lock_guard lock(mutex_);
    // Reserved memory is not exceeded: memory may be short.
    if (!abort_sends_.empty()) return;
    abort_text_ = reason.substr(0, abort_text_.capacity());
    for (int p = 0; p < processes_; ++p) {
      if (p == process_) continue;
      MPI_Request request = MPI_REQUEST_NULL;
      MPI_Isend(abort_text_.data(), static_cast<int>(abort_text_.size()), MPI_CHAR, p, kAbortTag,
                aborts_, &request);
      abort_sends_.push_back(request);
    }
  }

  int lost() noexcept override { return -1; }  // mpirun ends all when one is lost

  std::string failure() override {
    const std::lock_guard lock(mutex_);
    if (!heard_.empty()) return heard_;
    int there = 0;
    MPI_Status status{};
    MPI_Iprobe(MPI_ANY_SOURCE, kAbortTag, aborts_, &there, &status);
    if (there == 0) return "";
    int length = 0;
    MPI_Get_count(&status, MPI_CHAR, &length);
    std::string text(static_cast<std::size_t>(length), '\0');
    MPI_Recv(text.data(), length, MPI_CHAR, status.MPI_SOURCE, kAbortTag, aborts_,
             MPI_STATUS_IGNORE);
    heard_ = text.empty() ? kNoReason : text;
    return heard_;
  }

  void leave() noexcept override { left_ = true; }

 private:
  SharedWindow allocate_window(MPI_Comm machine, std::size_t processes) {
    SharedWindow window;
    std::uint64_t bytes = window_bytes(static_cast<int>(processes));
    check(MPI_Bcast(&bytes, 1, MPI_UINT64_T, 0, machine), "MPI_Bcast");
    if (bytes == 0) return window;
    MPI_Info hints = MPI_INFO_NULL;
    MPI_Info_create(&hints);
    MPI_Info_set(hints, "alloc_shared_noncontig", "true");  // each part begins with a page
    void* own = nullptr;
    check(MPI_Win_allocate_shared(static_cast<MPI_Aint>(bytes), 1, hints, machine,
                                  static_cast<void*>(&own), &window_),
          "MPI cannot share memory between the processes of a machine; Open MPI does it by its "
          "component osc/sm, in /dev/shm");
    MPI_Info_free(&hints);
    // Ranks wait for each other by atomics in the shared memory itself: one epoch lasts all along.
    check(MPI_Win_lock_all(MPI_MODE_NOCHECK, window_), "MPI_Win_lock_all");
    window.bytes = bytes;
    for (int i = 0; i < static_cast<int>(processes); ++i) {
      MPI_Aint size = 0;
      int unit = 0;
      void* base = nullptr;
      check(MPI_Win_shared_query(window_, i, &size, &unit, static_cast<void*>(&base)),
            "MPI_Win_shared_query");
      window.bases.push_back(static_cast<std::byte*>(base));
    }
    return window;
  }

  template <typename Do>
  static void for_each_part(std::size_t bytes, const Do& each) {
    for (std::size_t begin = 0; begin < bytes; begin += kMaxCount) {
      each(begin, static_cast<int>(std::min(kMaxCount, bytes - begin)));
    }
  }
  int checked(std::uint32_t tag) const {
    require(tag <= max_tag_, ErrorCode::kUnavailable, "this MPI has tags up to ", max_tag_,
            " only, too few for so many ranks and groups");
    return static_cast<int>(tag);
  }

  MPI_Comm messages_ = MPI_COMM_NULL;
  MPI_Comm aborts_ = MPI_COMM_NULL;
  MPI_Win window_ = MPI_WIN_NULL;
  int process_ = 0;
  int processes_ = 1;
  std::uint32_t max_tag_ = 32767;
  bool left_ = false;
  std::mutex mutex_;
  std::string abort_text_;  // lives as long as the messenger: nobody waits for these sends
  std::vector<MPI_Request> abort_sends_;
  std::string heard_;
};

}  // namespace
}  // namespace tessera

/// The function that the library looks for in this module.
extern "C" tessera::Messenger* tessera_make_mpi_messenger() { return new tessera::MpiMessenger(); }
