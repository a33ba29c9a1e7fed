#include "fiber.h"

#include <pthread.h>
#include <sys/mman.h>

#include <atomic>
#include <new>

#if defined(__x86_64__)
// void tessera_emulator_switch(void** save, void* to): saves and restores what a call must
// preserve. Thirty times as fast as swapcontext, which asks the kernel for the signal mask.
extern "C" void tessera_emulator_switch(void** save, void* to);
asm(R"(
.text
.globl tessera_emulator_switch
.type tessera_emulator_switch,@function
tessera_emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size tessera_emulator_switch, .-tessera_emulator_switch
)");
#endif

namespace tessera::emulator {
namespace {

// Sanitizers put more on the stack.
constexpr std::size_t kStackBytes = std::size_t{kAddressSanitizer || kThreadSanitizer ? 256 : 64}
                                    << 10;
constexpr std::size_t kGuardBytes = 4096;
constexpr std::size_t kStaggerBytes = 192;
constexpr unsigned kStaggers = 40;                           // kept below two pages
[[maybe_unused]] constexpr unsigned kNoSynchronisation = 1;  // of __tsan_switch_to_fiber

std::atomic<std::size_t> fiber_count = 0;

}  // namespace

std::size_t Fiber::count() { return fiber_count.load(); }

Fiber::~Fiber() {
  if (stack_ == nullptr) return;
#if defined(TESSERA_EMULATOR_TSAN)
  __tsan_destroy_fiber(tsan_fiber_);
#endif
  unpoison(stack_, kStackBytes);
  munmap(stack_ - kGuardBytes, kStackBytes + kGuardBytes);
  --fiber_count;
}

void Fiber::adopt_current() {
#if defined(TESSERA_EMULATOR_TSAN)
  tsan_fiber_ = __tsan_get_current_fiber();
#endif
  if (!kAddressSanitizer || stack_bottom_ != nullptr) return;
  pthread_attr_t attributes;
  void* bottom = nullptr;
  pthread_getattr_np(pthread_self(), &attributes);
  pthread_attr_getstack(&attributes, &bottom, &stack_bytes_);
  pthread_attr_destroy(&attributes);
  stack_bottom_ = bottom;
}

void Fiber::make_stack(unsigned number) {
  if (stack_ != nullptr) return;
  void* memory = mmap(nullptr, kStackBytes + kGuardBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  mprotect(memory, kGuardBytes, PROT_NONE);
  stack_ = static_cast<char*>(memory) + kGuardBytes;
  stack_bottom_ = stack_;
  stack_bytes_ = kStackBytes;
  number_ = number;
  ++fiber_count;
#if defined(TESSERA_EMULATOR_TSAN)
  tsan_fiber_ = __tsan_create_fiber(0);
#endif
}

void Fiber::restart(void (*entry)()) {
  unpoison(stack_, kStackBytes);
#if defined(__x86_64__)
  void** top =
      reinterpret_cast<void**>(stack_ + kStackBytes - 64 - number_ % kStaggers * kStaggerBytes);
  *--top = nullptr;  // where entry would return to; also keeps its stack aligned as after a call
  *--top = reinterpret_cast<void*>(entry);
  for (int saved = 0; saved < 6; ++saved) *--top = nullptr;
  stack_pointer_ = top;
#else
  getcontext(&context_);
  context_.uc_stack.ss_sp = stack_;
  context_.uc_stack.ss_size = kStackBytes - number_ % kStaggers * kStaggerBytes;
  context_.uc_link = nullptr;
  makecontext(&context_, entry, 0);
#endif
}

void Fiber::switch_between(Fiber& from, Fiber& to, [[maybe_unused]] bool finished) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(finished ? nullptr : &from.asan_frames_, to.stack_bottom_,
                                 to.stack_bytes_);
#endif
#if defined(TESSERA_EMULATOR_TSAN)
  __tsan_switch_to_fiber(to.tsan_fiber_, kNoSynchronisation);
#endif
#if defined(__x86_64__)
  tessera_emulator_switch(&from.stack_pointer_, to.stack_pointer_);
#else
  swapcontext(&from.context_, &to.context_);
#endif
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(from.asan_frames_, nullptr, nullptr);
#endif
}

void Fiber::signal_last([[maybe_unused]] SyncPoint& point, [[maybe_unused]] Fiber& current) {
#if defined(TESSERA_EMULATOR_TSAN)
  __tsan_switch_to_fiber(tsan_fiber_, kNoSynchronisation);
  point.signal();
  __tsan_switch_to_fiber(current.tsan_fiber_, kNoSynchronisation);
#endif
}

void Fiber::entered() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
}

}  // namespace tessera::emulator
