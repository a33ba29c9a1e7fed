#pragma once

/// How tests steer the fake NCCL, and what they ask it afterwards.
namespace tessera::emulator {

/// The next operation of `rank` stalls, and its communicator reports ncclRemoteError.
void fail_next_nccl_operation(int rank);
/// From now on, no buffer can be registered, or buffers can be again.
void refuse_nccl_registrations(bool refuse);
/// Buffers registered with communicators that still exist.
int nccl_registrations();
/// Collectives, of all communicators, that were given registered memory only.
long nccl_registered_collectives();
/// Communicators that have been made and not destroyed or aborted.
int nccl_communicators();
/// How often two threads were inside NCCL with one communicator: must be 0.
int nccl_violations();

}  // namespace tessera::emulator
