#include "tessera/core/touch_pages.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "tessera/core/error.h"

namespace tessera {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kPieces = std::size_t{256} << 20;  // four of those that a thread takes

/// Memory that nobody has touched.
class Mapping {
 public:
  explicit Mapping(std::size_t bytes)
      : bytes_(bytes),
        begin_(static_cast<unsigned char*>(
            mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {}
  ~Mapping() { munmap(begin_, bytes_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  unsigned char* begin() const { return begin_; }
  std::size_t pages_there() const {
    std::vector<unsigned char> there((bytes_ + kPage - 1) / kPage);
    EXPECT_EQ(mincore(begin_, bytes_, there.data()), 0);
    return static_cast<std::size_t>(std::ranges::count_if(there, [](int p) { return p & 1; }));
  }

 private:
  std::size_t bytes_;
  unsigned char* begin_;
};

TEST(TouchPages, TakesAllPagesAndKeepsWhatTheyHold) {
  constexpr std::size_t kBytes = 1000 * kPage + 1;
  const Mapping memory(1001 * kPage);
  memory.begin()[5 * kPage + 3] = 7;
  EXPECT_EQ(memory.pages_there(), 1U);
  HostWork work;
  // Neither end is that of a page.
  EXPECT_TRUE(touch_pages(memory.begin() + 1, kBytes - 1, {.work = &work}));
  EXPECT_EQ(memory.pages_there(), 1001U);
  EXPECT_EQ(memory.begin()[5 * kPage + 3], 7);
  EXPECT_EQ(work.of(HostTask::kTouchPages).done_bytes, static_cast<std::int64_t>(kBytes));
  EXPECT_EQ(work.of(HostTask::kTouchPages).total_bytes, static_cast<std::int64_t>(kBytes));
}

/// Each thread waits for the others when it has taken a piece: no thread takes two before that.
TEST(TouchPages, WorksOnAsManyThreadsAsItIsGiven) {
  for (const int threads : {1, 2, 4}) {
    const Mapping memory(kPieces);
    std::mutex mutex;
    std::condition_variable changed;
    std::set<std::thread::id> seen;
    HostWork work([&] {
      std::unique_lock lock(mutex);
      seen.insert(std::this_thread::get_id());
      changed.notify_all();
      EXPECT_TRUE(changed.wait_for(lock, std::chrono::minutes(1), [&] {
        return seen.size() == static_cast<std::size_t>(threads);
      }));
      return false;
    });
    EXPECT_TRUE(touch_pages(memory.begin(), kPieces, {.threads = threads, .work = &work}));
    EXPECT_EQ(seen.size(), static_cast<std::size_t>(threads));
    EXPECT_EQ(memory.pages_there(), kPieces / kPage);
  }
}

TEST(TouchPages, EndsEarlyIfTheRunIsToEnd) {
  const Mapping memory(kPieces);
  HostWork work([] { return true; });
  try {
    touch_pages(memory.begin(), kPieces, {.threads = 1, .work = &work});
    ADD_FAILURE() << "it went on";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kAborted);
  }
  EXPECT_EQ(memory.pages_there(), kPieces / 4 / kPage);
}

TEST(TouchPages, SaysThatThereIsNoMemoryThere) {
  const Mapping memory(4 * kPage);
  ASSERT_EQ(mprotect(memory.begin() + 2 * kPage, 2 * kPage, PROT_NONE), 0);
  EXPECT_FALSE(touch_pages(memory.begin(), 4 * kPage));
}

}  // namespace
}  // namespace tessera
