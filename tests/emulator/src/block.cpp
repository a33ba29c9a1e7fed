#include "block.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <map>
#include <string>

#include "async_copy.h"

namespace tessera::emulator {

constinit thread_local const Identity* current_identity = nullptr;

namespace {

constinit thread_local Block* running_block = nullptr;

const char* file_name(const Location& where) {
  const char* path = where.file_name();
  const char* slash = std::strrchr(path, '/');
  return slash != nullptr ? slash + 1 : path;
}

bool same_place(const Location& a, const Location& b) {
  return a.line() == b.line() && std::strcmp(a.file_name(), b.file_name()) == 0;
}

const char* name_of(Collective collective) {
  switch (collective) {
    case Collective::kShuffle:
      return "a shuffle";
    case Collective::kVote:
      return "a vote";
    case Collective::kSyncWarp:
      return "__syncwarp";
    case Collective::kMma:
      return "mma";
    case Collective::kLdMatrix:
      return "ldmatrix";
  }
  return "";
}

}  // namespace

Block& Block::running() { return *running_block; }

bool Block::run(const Grid& grid, uint3 index, Order& order, Fiber& scheduler) {
  grid_ = &grid;
  order_ = &order;
  scheduler_ = &scheduler;
  running_block = this;
  ++turn_;
  prepare(index);
  const unsigned warps = (count_ + 31) / 32;
  while (alive_ > 0 && error_[0] == '\0') {
    bool progress = false;
    for (unsigned turn = 0; turn < warps && error_[0] == '\0'; ++turn) {
      const unsigned warp = order.warp(turn, warps);
      while (Thread* next = take_ready(warp)) {
        progress = true;
        running_thread_ = nullptr;
        go_to(next);
        if (error_[0] != '\0') break;
      }
    }
    if (!progress) describe_deadlock();
  }
  if (error_[0] != '\0') {
    abandon_threads();
    return false;
  }
  const long damaged = shared_.find_damage();
  if (damaged >= 0) describe_damage(damaged, index);
  return damaged < 0;
}

void Block::prepare(uint3 index) {
  const dim3 block = grid_->block;
  count_ = alive_ = block.x * block.y * block.z;
  while (threads_.size() < count_) threads_.push_back(std::make_unique<Thread>());
  shared_.clear(grid_->shared_limit);
  dynamic_shared_ = nullptr;
  if (grid_->dynamic_shared_bytes > 0) {
    dynamic_shared_ = static_cast<unsigned char*>(
        shared_.object(&dynamic_shared_, grid_->dynamic_shared_bytes, 128));
  }
  barrier_.waiting = 0;
  barrier_.count = 0;
  for (unsigned i = 0; i < count_; ++i) {
    Thread& thread = *threads_[i];
    thread.identity = {.thread = {i % block.x, i / block.x % block.y, i / (block.x * block.y)},
                       .block = index,
                       .block_dim = block,
                       .grid_dim = grid_->grid,
                       .lane = i % 32,
                       .warp = i / 32};
    thread.state = Thread::State::kReady;
    thread.copies = thread.groups = 0;
    thread.fiber.make_stack(i);
    thread.fiber.restart(&Block::enter_thread);
  }
  for (unsigned w = 0; w * 32 < count_; ++w) {
    warps_[w].waiting = 0;
    warps_[w].ready = count_ - w * 32 >= 32 ? 0xffffffffU : (1U << (count_ % 32)) - 1;
  }
}

/// After a fault: those that will not go on leave stacks behind that cannot be used again.
void Block::abandon_threads() {
  for (unsigned i = 0; i < count_; ++i) {
    Thread& thread = *threads_[i];
    if (thread.state != Thread::State::kDone)
      thread.fiber.signal_last(end_[turn_ % 2], *scheduler_);
  }
  await_end();
  threads_.clear();
}

void Block::keep_fibers(std::size_t count) {
  if (threads_.size() > count) threads_.resize(count);
}

void Block::enter_thread() {
  Fiber::entered();
  Block& block = running();
  block.grid_->start->await();
  block.end_[(block.turn_ - 1) % 2].await();  // of the block that ran here before
  // Nobody returns from a fault: told inside of the handler, the exception would never be let go.
  bool has_thrown = false;
  std::array<char, 256> what;
  try {
    (*block.grid_->body)();
  } catch (const std::exception& error) {
    has_thrown = true;
    std::snprintf(what.data(), what.size(), "%s", error.what());
  }
  if (has_thrown) block.fault(what.data(), Location::current());
  Thread& thread = block.thread();
  ++thread.groups;
  deliver_copies(thread, 0);
  block.end_[block.turn_ % 2].signal();
  thread.state = Thread::State::kDone;
  --block.alive_;
  // Those that have exited are not waited for.
  if (block.alive_ > 0 && block.barrier_.waiting == block.alive_) block.complete_barrier();
  block.go_to(nullptr);
  __builtin_unreachable();
}

/// The next lane to run, in the order of the launch; null if all of the warp are waiting.
Thread* Block::take_ready(unsigned warp) {
  std::uint32_t& ready = warps_[warp].ready;
  if (ready == 0) return nullptr;
  const unsigned lane = order_->pick(ready);
  ready &= ~(1U << lane);
  return threads_[warp * 32 + lane].get();
}

/// Switches to a thread, or to the scheduler.
void Block::go_to(Thread* next) {
  Thread* from = running_thread_;
  running_thread_ = next;
  current_identity = next != nullptr ? &next->identity : nullptr;
  Fiber::switch_between(from != nullptr ? from->fiber : *scheduler_,
                        next != nullptr ? next->fiber : *scheduler_,
                        from != nullptr && from->state == Thread::State::kDone);
}

/// Lets other threads run until this one is ready again; those of its own warp first, since they
/// are what it waits for as a rule.
void Block::yield() {
  Thread* self = running_thread_;
  Thread* next = error_[0] != '\0' ? nullptr : take_ready(self->identity.warp);
  if (next != self) go_to(next);
}

int Block::barrier(Vote vote, bool predicate, const Location& where) {
  Thread& self = thread();
  if (barrier_.waiting == 0) {
    barrier_.where = where;
    barrier_.vote = vote;
  } else if (!same_place(barrier_.where, where)) {
    std::array<char, 256> text;
    std::snprintf(text.data(), text.size(), "__syncthreads here, while others wait at %s:%u",
                  file_name(barrier_.where), barrier_.where.line());
    fault(text.data(), where);
  }
  barrier_.count += predicate ? 1 : 0;
  self.state = Thread::State::kAtBarrier;
  self.where = where;
  SyncPoint& sync = barrier_.sync[barrier_.generation % 2];
  sync.signal();
  if (++barrier_.waiting == alive_) complete_barrier();
  yield();
  sync.await();
  return self.vote_result;
}

void Block::complete_barrier() {
  int result = barrier_.count;
  if (barrier_.vote == Vote::kAny) result = barrier_.count > 0 ? 1 : 0;
  if (barrier_.vote == Vote::kAll) {
    result = barrier_.count == static_cast<int>(barrier_.waiting) ? 1 : 0;
  }
  for (unsigned i = 0; i < count_; ++i) {
    Thread& waiting = *threads_[i];
    if (waiting.state != Thread::State::kAtBarrier) continue;
    waiting.state = Thread::State::kReady;
    waiting.vote_result = result;
    warps_[i / 32].ready |= 1U << (i % 32);
  }
  barrier_.waiting = 0;
  barrier_.count = 0;
  ++barrier_.generation;
}

void Block::warp_barrier(std::uint32_t mask, const Location& where) {
  SyncPoint& sync = warps_[thread().identity.warp].sync;
  sync.signal();
  meet(mask, Collective::kSyncWarp, nullptr, nullptr, where);
  sync.await();
}

void Block::meet(std::uint32_t mask, Collective collective, void* payload, Combine combine,
                 const Location& where) {
  Thread& self = thread();
  Warp& warp = warps_[self.identity.warp];
  const unsigned first = self.identity.warp * 32;
  if (count_ - first < 32) mask &= (1U << (count_ - first)) - 1;  // lanes that there are not
  const std::uint32_t bit = 1U << self.identity.lane;
  if ((mask & bit) == 0) fault("a lane that is not in the mask it gives", where);
  std::size_t i = 0;
  while (i < warp.waiting &&
         (warp.rendezvous[i].mask != mask || warp.rendezvous[i].collective != collective)) {
    ++i;
  }
  Rendezvous& group = warp.rendezvous[i];
  if (i == warp.waiting) {
    ++warp.waiting;
    group.mask = mask;
    group.arrived = 0;
    group.collective = collective;
    group.where = where;
  } else if ((collective == Collective::kMma || collective == Collective::kLdMatrix) &&
             !same_place(group.where, where)) {
    fault("lanes of a warp at different mma or ldmatrix instructions", where);
  }
  group.arrived |= bit;
  group.payload[self.identity.lane] = payload;
  if (group.arrived != mask) {
    self.state = Thread::State::kInWarp;
    self.where = where;
    self.collective = collective;
    self.mask = mask;
    yield();
    return;
  }
  if (combine != nullptr) combine(group.payload, mask);
  warp.ready |= mask & ~bit;
  if (i != --warp.waiting) warp.rendezvous[i] = warp.rendezvous[warp.waiting];
}

void Block::fault(const char* what, const Location& where) {
  const Identity& id = thread().identity;
  std::snprintf(error_.data(), error_.size(),
                "%s at %s:%u, thread (%u, %u, %u) of block (%u, %u, %u)", what, file_name(where),
                where.line(), id.thread.x, id.thread.y, id.thread.z, id.block.x, id.block.y,
                id.block.z);
  go_to(nullptr);
  __builtin_unreachable();
}

/// On the scheduler: which threads wait where.
void Block::describe_deadlock() {
  struct Group {
    unsigned threads, first;
  };
  std::map<std::string, Group> groups;
  for (unsigned i = 0; i < count_; ++i) {
    const Thread& thread = *threads_[i];
    std::array<char, 256> text;
    if (thread.state == Thread::State::kDone) {
      std::snprintf(text.data(), text.size(), "have exited");
    } else if (thread.state == Thread::State::kAtBarrier) {
      std::snprintf(text.data(), text.size(), "wait at __syncthreads %s:%u",
                    file_name(thread.where), thread.where.line());
    } else {
      std::snprintf(text.data(), text.size(), "wait at %s of lanes %08x %s:%u",
                    name_of(thread.collective), thread.mask, file_name(thread.where),
                    thread.where.line());
    }
    ++groups.try_emplace(text.data(), Group{0, i}).first->second.threads;
  }
  const uint3 block = threads_[0]->identity.block;
  std::string all = "deadlock in block (" + std::to_string(block.x) + ", " +
                    std::to_string(block.y) + ", " + std::to_string(block.z) + "): ";
  const char* separator = "";
  for (const auto& [text, group] : groups) {
    all += separator + std::to_string(group.threads) + " threads (the first is " +
           std::to_string(group.first) + ") " + text;
    separator = "; ";
  }
  std::snprintf(error_.data(), error_.size(), "%s", all.c_str());
}

void Block::describe_damage(long bytes, uint3 index) {
  std::snprintf(error_.data(), error_.size(),
                "a write outside of a shared object of %ld bytes in block (%u, %u, %u)", bytes,
                index.x, index.y, index.z);
}

}  // namespace tessera::emulator
