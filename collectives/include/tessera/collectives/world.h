#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "tessera/collectives/process_group.h"

namespace tessera {

struct WorldOptions {
  int local_ranks = 1;  ///< ranks of each process, the same in all
  /// How long an operation waits for its peers while no other operation ends on this machine.
  std::chrono::milliseconds timeout{30000};
  bool check = false;  ///< groups are checked; see checked_group.h
  /// Every process counts as a node of its own: its ranks share no memory with others.
  bool apart = false;
};

/// The ranks of a run that spans processes, as one of them sees it. Rank r is thread r %
/// local_ranks() of process r / local_ranks().
///
/// Ranks on one node read each other's buffers where they lie, as threads of one process do, if
/// the buffers come from make_device(); other buffers are staged, which Traffic::copied_bytes
/// counts. Ranks on different nodes exchange messages. Sums are in rank order wherever the ranks
/// are, so the bits are those of make_thread_group.
///
/// If a process ends without having destroyed its World, however it ends, every operation of the
/// others fails within a second with Error{kAborted} that names its ranks.
class World {
 public:
  virtual ~World() = default;
  virtual int size() const = 0;  ///< ranks in all
  virtual int process() const = 0;
  virtual int processes() const = 0;
  virtual int first_rank() const = 0;     ///< of this process
  virtual int local_ranks() const = 0;    ///< of this process
  virtual int ranks_on_host() const = 0;  ///< of all processes on this node
  /// first_rank()'s place among the ranks of this node.
  virtual int first_local_rank() const = 0;
  /// The node of a rank. Nodes are numbered from 0 in the order of their first ranks.
  virtual int machine_of(int rank) const = 0;

  /// This process's ends of the group of all ranks; element i is rank first_rank() + i. The world
  /// must outlive them and everything split from them.
  virtual const std::vector<std::unique_ptr<ProcessGroup>>& groups() const = 0;

  /// A CPU device whose memory the ranks of this node can read. The world must outlive it.
  virtual std::unique_ptr<Device> make_device() = 0;

  /// Why the run cannot go on: a rank has aborted a group of this world, or a process was lost.
  /// Empty while all is well. Known in every process within a second; safe from any thread.
  virtual std::string failure() const = 0;
};

/// Where the processes of a run meet that were not started by an MPI launcher.
struct SocketRendezvous {
  int process = 0;
  int processes = 1;
  std::string address{};  ///< of the node of process 0: a name or an IP address
  int port = 0;           ///< process 0 listens here
  int listener = -1;      ///< process 0: a socket that listens already, instead of binding `port`
  /// A secret of the job, the same in all its processes, which they prove to each other that they
  /// know. Empty: the port stands for it, so other jobs stay out, but not who means harm.
  std::string token{};
  std::chrono::milliseconds patience{30000};  ///< how long processes look for each other
};

/// Joins the other processes; blocks until all are there. Nodes exchange messages over TCP,
/// which is neither encrypted nor signed after the meeting.
/// Throws Error{kUnavailable} that names the address, or the pair that cannot connect, and
/// Error{kConfig} if processes disagree about the options.
std::unique_ptr<World> make_socket_world(const SocketRendezvous& rendezvous,
                                         const WorldOptions& options);

}  // namespace tessera
