#pragma once

/// How tests steer the fake NCCL, and what they ask it afterwards.
namespace tessera::emulator {

/// The next operation of `rank` stalls, and its communicator reports ncclRemoteError.
void fail_next_nccl_operation(int rank);
/// From now on, no buffer can be registered, or buffers can be again.
void refuse_nccl_registrations(bool refuse);
/// Buffers registered with communicators that still exist.
int nccl_registrations();
/// From now on, ncclMemAlloc fails, or gives out memory again.
void refuse_nccl_memory(bool refuse);
/// Collectives, of all communicators, that were given only memory that NCCL can use in place:
/// registered from the beginning of a page on, and from ncclMemAlloc.
long nccl_registered_collectives();
/// Operations that a thread of NCCL's has launched: those of communicators that do not block.
long nccl_background_launches();
/// Aborts of communicators that another thread was in a call with.
int nccl_aborts_during_calls();
/// Communicators that have been made and not destroyed or aborted.
int nccl_communicators();
/// How often two threads were inside NCCL with one communicator: must be 0.
int nccl_violations();

}  // namespace tessera::emulator
