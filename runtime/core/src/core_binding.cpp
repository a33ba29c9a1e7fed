#include "tessera/core/core_binding.h"

#include <algorithm>
#include <map>
#include <optional>
#include <span>

#include "tessera/core/error.h"

namespace tessera {
namespace {

using Cores = std::span<const Core>;

/// Part r of n of `count` things: from `begin` up to `end`.
struct Part {
  std::size_t begin = 0, end = 0;
};

Part part_of(std::size_t count, std::size_t r, std::size_t n) {
  return {.begin = count * r / n, .end = count * (r + 1) / n};
}

RankCores rank_cores(Cores cores) {
  RankCores own{.cpus = {}, .cores = static_cast<int>(cores.size()), .nodes = {}};
  for (const Core& core : cores) {
    own.cpus.insert(own.cpus.end(), core.cpus.begin(), core.cpus.end());
    if (std::ranges::find(own.nodes, core.node) == own.nodes.end()) own.nodes.push_back(core.node);
  }
  std::ranges::sort(own.cpus);
  return own;
}

/// All cores of those nodes.
RankCores rank_cores(const CpuTopology& topology, std::span<const int> nodes) {
  std::vector<Core> cores;
  for (const Core& core : topology.cores) {
    if (std::ranges::find(nodes, core.node) != nodes.end()) cores.push_back(core);
  }
  return rank_cores(cores);
}

/// Divides one machine's cores.
class Division {
 public:
  Division(const CpuTopology& topology, const BindRequest& request)
      : topology_(topology),
        request_(request),
        nodes_(topology.nodes()),
        ranks_(static_cast<std::size_t>(request.ranks)) {
    // A user who names CPUs knows where the GPUs are.
    const bool follow_gpus = request.cpus.empty() && !request.gpus.empty();
    if (!follow_gpus) return;
    gpu_nodes_.emplace();
    for (const std::string& gpu : request.gpus) {
      gpu_nodes_->push_back(topology.node_of_device(gpu));
    }
  }

  /// Why kAuto leaves the ranks alone; "": it need not.
  std::string obstacle() const {
    if (topology_.partial) {
      return concat("this process was started on CPUs ", to_string(all().cpus), " only");
    }
    if (request_.quota > 0 && request_.quota < cpus()) {
      return concat("a quota of ", request_.quota, " of ", cpus(), " CPUs: others share them");
    }
    return "";
  }

  /// Whether each rank has as many cores as the others, on one node, and CPUs for its threads.
  bool has_equal_parts() const {
    const std::size_t cores = topology_.cores.size();
    const bool is_even = ranks_ > 1 && ranks_ <= cores && cores % ranks_ == 0;
    return is_even && nodes_.size() == 1 && request_.gpus.empty() &&
           request_.threads <= cpus() / request_.ranks;
  }

  CoreBinding none(std::string why) const {
    return {.policy = BindPolicy::kNone,
            .why = std::move(why),
            .ranks = std::vector<RankCores>(ranks_, all())};
  }

  CoreBinding by_cores() const {
    const std::string lack = lack_of_cores();
    if (!lack.empty()) {
      CoreBinding binding = by_nodes();
      binding.why = binding.why.empty() ? lack : concat(lack, ", and ", binding.why);
      return binding;
    }
    if (const std::string why = unknown_gpu(); !why.empty()) return none(why);
    CoreBinding binding{.policy = BindPolicy::kCores, .why = {}, .ranks = {}};
    for (std::size_t r = 0; r < ranks_; ++r) binding.ranks.push_back(rank_cores(block_of(r)));
    return binding;
  }

  CoreBinding by_nodes() const {
    const std::string why = nodes_.size() == 1 ? "one NUMA node" : unknown_gpu();
    // Ranks that divide no CPUs of a list share them.
    const bool is_limited = !request_.cpus.empty();
    if (!why.empty() && !is_limited) return none(why);
    CoreBinding binding{.policy = BindPolicy::kNuma, .why = why, .ranks = {}};
    for (std::size_t r = 0; r < ranks_; ++r) {
      binding.ranks.push_back(rank_cores(topology_, nodes_of_rank(r)));
    }
    const auto has_all = [this](const RankCores& own) { return own.nodes.size() == nodes_.size(); };
    if (!is_limited && std::ranges::all_of(binding.ranks, has_all)) {
      return none("each rank has all NUMA nodes");
    }
    return binding;
  }

 private:
  RankCores all() const { return rank_cores(topology_.cores); }
  int cpus() const { return static_cast<int>(all().cpus.size()); }
  Cores cores_of(int node) const {
    const auto is_of = [node](const Core& core) { return core.node == node; };
    const auto first = std::ranges::find_if(topology_.cores, is_of);
    const auto last = std::find_if_not(first, topology_.cores.end(), is_of);
    return {first, last};
  }

  /// The cores that rank r divides, and with whom: its number among `sharers`.
  struct Portion {
    Cores cores;
    std::size_t number = 0, sharers = 0;
  };
  Portion portion_of(std::size_t r) const {
    if (!gpu_nodes_) return {.cores = topology_.cores, .number = r, .sharers = ranks_};
    const std::vector<int>& of = *gpu_nodes_;
    const auto count = [&](std::size_t end) {
      return static_cast<std::size_t>(
          std::count(of.begin(), of.begin() + static_cast<std::ptrdiff_t>(end), of[r]));
    };
    return {.cores = cores_of(of[r]), .number = count(r), .sharers = count(ranks_)};
  }

  /// A quota's share: a rank has no use for more.
  std::size_t most_cores() const {
    if (request_.quota == 0) return topology_.cores.size();
    return std::max<std::size_t>(1, static_cast<std::size_t>(request_.quota) / ranks_);
  }

  Cores block_of(std::size_t r) const {
    const Portion portion = portion_of(r);
    const Part part = part_of(portion.cores.size(), portion.number, portion.sharers);
    return portion.cores.subspan(part.begin, std::min(part.end - part.begin, most_cores()));
  }

  std::string lack_of_cores() const {
    if (request_.quota > 0 && ranks_ > static_cast<std::size_t>(request_.quota)) {
      return concat(ranks_, " ranks have a quota of ", request_.quota, " cores");
    }
    for (std::size_t r = 0; r < ranks_ && unknown_gpu().empty(); ++r) {
      const Portion portion = portion_of(r);
      if (portion.sharers <= portion.cores.size()) continue;
      return concat(portion.sharers, " ranks share ", portion.cores.size(),
                    portion.cores.size() == 1 ? " core" : " cores",
                    gpu_nodes_ ? concat(" of node ", (*gpu_nodes_)[r]) : "");
    }
    return "";
  }

  std::string unknown_gpu() const {
    if (!gpu_nodes_) return "";
    for (std::size_t r = 0; r < ranks_; ++r) {
      const int node = (*gpu_nodes_)[r];
      if (node < 0) return concat("the NUMA node of GPU ", request_.gpus[r], " is not known");
      if (std::ranges::find(nodes_, node) == nodes_.end()) {
        return concat("this process may use no core of node ", node, ", where GPU ",
                      request_.gpus[r], " is");
      }
    }
    return "";
  }

  /// Those whose middle lies among the rank's part of all cores, else the one where its own lies.
  std::vector<int> nodes_of_rank(std::size_t r) const {
    if (gpu_nodes_) return {(*gpu_nodes_)[r]};
    // In units of half a core over the number of ranks, which keep the middles whole numbers.
    const std::size_t all = topology_.cores.size();
    const std::size_t begin = 2 * all * r;
    const std::size_t end = 2 * all * (r + 1);
    std::vector<int> own;
    int around = nodes_.front();
    std::size_t before = 0;
    for (const int node : nodes_) {
      const std::size_t count = cores_of(node).size();
      const std::size_t middle = (2 * before + count) * ranks_;
      if (middle >= begin && middle < end) own.push_back(node);
      if (2 * before * ranks_ <= (begin + end) / 2) around = node;
      before += count;
    }
    if (own.empty()) own.push_back(around);
    return own;
  }

  const CpuTopology& topology_;
  const BindRequest& request_;
  const std::vector<int> nodes_;
  const std::size_t ranks_;
  std::optional<std::vector<int>> gpu_nodes_;  ///< by rank, if ranks are bound by their GPUs
};

void check(const CpuTopology& topology, const BindRequest& request) {
  require(request.ranks >= 1, ErrorCode::kInvalidArgument, "no cores can be divided among ",
          request.ranks, " ranks");
  require(request.gpus.empty() || request.gpus.size() == static_cast<std::size_t>(request.ranks),
          ErrorCode::kInvalidArgument, request.ranks, " ranks have ", request.gpus.size(), " GPUs");
  require(request.cpus.empty() || request.policy != BindPolicy::kNone, ErrorCode::kConfig,
          "bind_core_list is ", to_string(request.cpus),
          ", but bind is none; leave one of them out");
  CpuList usable;
  for (const Core& core : topology.cores) {
    usable.insert(usable.end(), core.cpus.begin(), core.cpus.end());
  }
  std::ranges::sort(usable);
  for (const int cpu : request.cpus) {
    require(std::ranges::binary_search(usable, cpu), ErrorCode::kConfig,
            "bind_core_list names CPU ", cpu, ", which this process may not use; it has ",
            to_string(usable));
  }
}

/// Which processes have CPUs in common without having the same; "": none.
std::string overlap_of(const std::map<CpuList, std::vector<std::size_t>>& sharers) {
  std::map<int, const CpuList*> owners;
  for (const auto& [mask, ranks] : sharers) {
    for (const int cpu : mask) {
      const auto [owner, fresh] = owners.emplace(cpu, &mask);
      if (fresh) continue;
      return concat("processes were started on CPUs ", to_string(*owner->second), " and on ",
                    to_string(mask));
    }
  }
  return "";
}

}  // namespace

std::string_view to_string(BindPolicy policy) {
  switch (policy) {
    case BindPolicy::kAuto:
      return "auto";
    case BindPolicy::kCores:
      return "cores";
    case BindPolicy::kNuma:
      return "numa";
    case BindPolicy::kNone:
      return "none";
  }
  return "unknown";
}

CoreBinding divide_cores(const CpuTopology& topology, const BindRequest& request) {
  check(topology, request);
  const CpuTopology usable = request.cpus.empty() ? topology : within(topology, request.cpus);
  const Division division(usable, request);
  switch (request.policy) {
    case BindPolicy::kNone:
      return division.none("");
    case BindPolicy::kCores:
      return division.by_cores();
    case BindPolicy::kNuma:
      return division.by_nodes();
    case BindPolicy::kAuto:
      break;
  }
  if (!request.cpus.empty()) return division.by_cores();
  const std::string obstacle = division.obstacle();
  if (!obstacle.empty()) return division.none(obstacle);
  return division.has_equal_parts() ? division.by_cores() : division.by_nodes();
}

CoreBinding divide_masks(const CpuTopology& topology, const BindRequest& request,
                         const std::vector<CpuList>& masks, std::size_t own) {
  std::map<CpuList, std::vector<std::size_t>> sharers;
  for (std::size_t r = 0; r < masks.size(); ++r) sharers[masks[r]].push_back(r);
  const std::string overlap = overlap_of(sharers);
  CoreBinding all{.policy = BindPolicy::kNone, .why = overlap, .ranks = {}};
  all.ranks.resize(masks.size());
  for (const auto& [mask, ranks] : sharers) {
    BindRequest part = request;
    part.ranks = static_cast<int>(ranks.size());
    part.gpus.clear();
    for (const std::size_t r : ranks) {
      if (!request.gpus.empty()) part.gpus.push_back(request.gpus[r]);
    }
    if (!overlap.empty()) part = {.policy = BindPolicy::kNone, .ranks = part.ranks};
    CoreBinding binding = divide_cores(within(topology, mask), part);
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      all.ranks[ranks[i]] = std::move(binding.ranks[i]);
    }
    if (!overlap.empty() || mask != masks[own]) continue;
    all.policy = binding.policy;
    all.why = std::move(binding.why);
  }
  return all;
}

std::string describe(const CoreBinding& binding) {
  const std::string why = binding.why.empty() ? "" : concat(" (", binding.why, ")");
  if (binding.policy == BindPolicy::kNone) return "none" + why;
  const auto [least, most] = std::ranges::minmax(binding.ranks, {}, &RankCores::cores);
  const std::string count =
      least.cores == most.cores ? concat(most.cores) : concat(least.cores, " to ", most.cores);
  const bool by_nodes = binding.policy == BindPolicy::kNuma;
  return concat(by_nodes ? "NUMA nodes, " : "cores, ", count,
                by_nodes ? (most.cores == 1 ? " core" : " cores") : "", " per rank", why);
}

}  // namespace tessera
