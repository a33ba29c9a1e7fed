#include <CLI/CLI.hpp>
#include <ctime>
#include <iostream>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <ranges>
#include <string>
#include <string_view>
#include <vector>

#include "bench/bench_commands.h"
#include "bench/collective_bench.h"
#include "bench/machine_context.h"
#include "commands.h"
#include "tessera/compat/launcher.h"
#include "tessera/core/error.h"
#include "tessera/core/mesh.h"
#include "tessera/trainer/byte_size.h"
#include "tessera/trainer/launch.h"
#include "tessera/trainer/output_file.h"
#include "tessera/trainer/rank_device.h"
#include "tessera/trainer/trainer_options.h"

namespace tessera::cli {
namespace {

using bench::CollectiveOptions;
using bench::CollectiveRow;

struct CollectivesRequest {
  CollectiveOptions measure{};
  std::string collective = "all";
  std::string group = "world";
  std::string min_bytes = "64K", max_bytes = "64M", step_bytes = "0";
  std::string type = "float", op = "sum";
  std::string device = "auto";
  std::string json_path{};
  int check = 1, blocking = 0;
  int ranks = 0, threads_of_process = 1;
  int replicas = 1;
  int threads_per_rank = 0;
  int timeout_seconds = 120;
  bool statistics = false;
  int unused = 0;  ///< flags of nccl-tests with one value that can be had
};

/// Groups that a collective runs over, all at once.
struct GroupKind {
  std::string_view name;
  std::optional<Axis> axis;  ///< none: all ranks
};

/// All ranks, and the groups of each axis from the innermost outwards.
std::vector<GroupKind> all_group_kinds() {
  std::vector<GroupKind> kinds{{"world", std::nullopt}};
  for (const AxisRow& row : kAxisTable | std::views::reverse) {
    if (row.sums_gradients) kinds.push_back({row.name, row.axis});
  }
  return kinds;
}

/// The other name of a group; "" if it has none.
std::string_view alias_of(const GroupKind& kind) {
  if (kind.axis == Axis::kShard) return "intra";
  return kind.axis == Axis::kReplicate ? "inter" : "";
}

/// "world, shard (or intra), replicate (or inter), all".
std::string group_names() {
  std::string text;
  for (const GroupKind& kind : all_group_kinds()) {
    const std::string_view alias = alias_of(kind);
    text += concat(kind.name, alias.empty() ? "" : concat(" (or ", alias, ")"), ", ");
  }
  return text + "all";
}

std::vector<GroupKind> groups_of(const CollectivesRequest& request, const Mesh& mesh) {
  std::vector<GroupKind> kinds;
  for (const GroupKind& kind : all_group_kinds()) {
    // With one replica the shard group is the world, and the others have one rank.
    const bool of_interest = !kind.axis || mesh.world_size() > mesh.size(Axis::kShard);
    const std::string_view alias = alias_of(kind);
    const bool is_named = request.group == kind.name || (!alias.empty() && request.group == alias);
    if (is_named || (request.group == "all" && of_interest)) kinds.push_back(kind);
  }
  require(!kinds.empty(), ErrorCode::kConfig, "there is no group '", request.group,
          "'; there are: ", group_names());
  return kinds;
}

/// "world, 1 group of 4 ranks".
std::string describe(const GroupKind& kind, const Mesh& mesh) {
  const int size = kind.axis ? mesh.size(*kind.axis) : mesh.world_size();
  const int groups = mesh.world_size() / size;
  return concat(kind.name, ", ", groups, groups == 1 ? " group of " : " groups of ", size,
                size == 1 ? " rank" : " ranks");
}

std::vector<const bench::CollectiveCase*> collectives_of(const CollectivesRequest& request) {
  std::vector<const bench::CollectiveCase*> cases;
  if (request.collective != "all") return {&bench::find_collective(request.collective)};
  for (const auto& collective : bench::collective_cases()) {
    if (takes(collective, request.measure.dtype)) cases.push_back(&collective);
  }
  return cases;
}

/// Parses the texts of the command line. Throws Error{kConfig}.
void read_options(CollectivesRequest& request) {
  CollectiveOptions& o = request.measure;
  o.min_bytes = parse_bytes(request.min_bytes);
  o.max_bytes = parse_bytes(request.max_bytes);
  o.step_bytes = parse_bytes(request.step_bytes);
  o.check = request.check != 0;
  o.blocking = request.blocking != 0;
  o.dtype = bench::parse_nccl_type(request.type);
  require(o.min_bytes > 0, ErrorCode::kConfig, "-b ", request.min_bytes, " must be above 0");
  require(o.min_bytes <= o.max_bytes, ErrorCode::kConfig, "-b ", request.min_bytes, " is above -e ",
          request.max_bytes, "; exchange them, or give both");
  require(request.op == "sum", ErrorCode::kConfig, "-o ", request.op,
          " is not among the library's operations; it sums: -o sum");
}

TrainerOptions run_options(const CollectivesRequest& request) {
  TrainerOptions options;
  options.ranks = request.ranks * request.threads_of_process;
  if (options.ranks == 0) options.ranks = 2;
  options.device = parse_device(request.device);
  options.threads_per_rank = request.threads_per_rank;
  constexpr int kDay = 24 * 60 * 60;
  options.timeout =
      std::chrono::seconds(request.timeout_seconds == 0 ? kDay : request.timeout_seconds);
  return options;
}

/// One run: its measurements and its report.
class CollectivesRun {
 public:
  CollectivesRun(const CollectivesRequest& request, TrainerOptions options, bool speaks)
      : request_(request),
        measure_(request.measure),
        options_(std::move(options)),
        mesh_(make_mesh(options_.ranks, request.replicas)),
        kinds_(groups_of(request, mesh_)),
        cases_(collectives_of(request)),
        speaks_(speaks),
        table_(std::cout, measure_, request.statistics) {
    measure_.threads = options_.threads_per_rank > 0
                           ? options_.threads_per_rank
                           : default_threads_per_rank(ranks_on_host(options_));
    // Threads of GEMMs must not be held to the core of the collective.
    measure_.bind_threads = !measure_.contended;
  }

  int run() {
    if (!request_.json_path.empty() && speaks_) file_.emplace(request_.json_path, "-J");
    if (speaks_) print_beginning();
    const auto own = make_groups(options_);
    const auto& groups = own.empty() ? options_.world->groups() : own;
    launch_ranks(groups, [this](int rank, ProcessGroup& world) { measure(rank, world); });
    if (speaks_) table_.ending(rows_);
    if (file_) file_->write(json().dump(2) + "\n");
    bench::require_right(rows_);
    return kExitGood;
  }

 private:
  void print_beginning() const {
    std::cout << "# tessera " << TESSERA_VERSION << " bench collectives, columns of nccl-tests\n"
              << "# nThread " << measure_.threads << " ranks " << options_.ranks << " minBytes "
              << measure_.min_bytes << " maxBytes " << measure_.max_bytes
              << " step: " << (measure_.step_bytes > 0 ? measure_.step_bytes : measure_.step_factor)
              << (measure_.step_bytes > 0 ? "(bytes)" : "(factor)")
              << " warmup iters: " << measure_.warm_ups << " iters: " << measure_.iterations
              << " repeats: " << measure_.repeats << " validation: " << measure_.check << "\n#\n"
              << "# Using "
              << (options_.device == DeviceChoice::kCuda ? "GPUs over group " : "the CPU, group ")
              << to_string(options_.group) << "\n";
    for (const auto& [key, value] : bench::machine_context()) {
      std::cout << "#   " << key << ": " << value << "\n";
    }
  }

  void measure(int rank, ProcessGroup& world) {
    const auto device = make_rank_device(options_, rank);
    const bool first_here =
        options_.world == nullptr ? rank == 0 : rank == options_.world->first_rank();
    for (const GroupKind& kind : kinds_) {
      std::unique_ptr<ProcessGroup> part;
      if (kind.axis) {
        part = world.split(mesh_.group({*kind.axis}, rank).front(), rank);
      }
      const bench::BenchGroups groups{world, part ? *part : world};
      const std::string name = describe(kind, mesh_);
      for (const bench::CollectiveCase* collective : cases_) {
        if (first_here && speaks_) table_.heading(*collective, name);
        const auto rows =
            measure_collective(*collective, groups, *device, measure_, [&](const auto& row) {
              if (first_here && speaks_) table_.row(row);
            });
        if (first_here) keep(rows, name);
      }
    }
  }

  void keep(const std::vector<CollectiveRow>& rows, const std::string& group) {
    for (const CollectiveRow& row : rows) {
      rows_.push_back(row);
      results_.push_back(to_json(row, group, measure_));
    }
  }

  nlohmann::ordered_json json() const {
    auto context = nlohmann::ordered_json::object();
    for (const auto& part : {bench::machine_context(), bench::build_context()}) {
      for (const auto& [key, value] : part) context[key] = value;
    }
    context["machine.threads_per_rank"] = std::to_string(measure_.threads);
    const std::int64_t wrong = bench::wrong_elements(rows_);
    return {{"tool", "tessera bench collectives"},
            {"context", context},
            {"config",
             {{"ranks", options_.ranks},
              {"replicas", request_.replicas},
              {"device", to_string(options_.device)},
              {"iterations", measure_.iterations},
              {"warmup_iterations", measure_.warm_ups},
              {"repeats", measure_.repeats},
              {"blocking", measure_.blocking},
              {"unalign", measure_.unalign},
              {"validation", measure_.check}}},
            {"results", results_},
            {"out_of_bounds", {{"count", wrong}, {"okay", wrong == 0}}},
            {"average_bus_bandwidth", {{"bandwidth", bench::average_busbw(rows_)}}}};
  }

  const CollectivesRequest& request_;
  CollectiveOptions measure_;
  TrainerOptions options_;
  const Mesh mesh_;
  const std::vector<GroupKind> kinds_;
  const std::vector<const bench::CollectiveCase*> cases_;
  const bool speaks_;
  bench::CollectiveTable table_;
  std::vector<CollectiveRow> rows_;  // of the first rank of this process, as the next
  nlohmann::ordered_json results_ = nlohmann::ordered_json::array();
  std::optional<OutputFile> file_;
};

int run_collectives(CollectivesRequest request) {
  read_options(request);
  TrainerOptions options = run_options(request);
  const int asked = request.ranks * request.threads_of_process;
  const Launcher launcher = join_launched(options);
  require(asked == 0 || asked == options.ranks, ErrorCode::kConfig, "-g asks for ", asked,
          " ranks, but the launcher has started ", options.ranks, "; leave -g and -t out");
  require(options.ranks % request.replicas == 0, ErrorCode::kConfig, "--replicas ",
          request.replicas, " does not divide ", options.ranks, " ranks");
  options = on_this_machine(std::move(options));
  return CollectivesRun(request, std::move(options), launcher.process == 0).run();
}

void add_sizes(CLI::App& command, CollectivesRequest& r) {
  CollectiveOptions& o = r.measure;
  command.add_option("-b,--minbytes", r.min_bytes, "smallest whole buffer: 8, 64K, 128M")
      ->type_name("SIZE");
  command.add_option("-e,--maxbytes", r.max_bytes, "largest whole buffer")->type_name("SIZE");
  command
      .add_option("-i,--stepbytes", r.step_bytes,
                  "from one size to the next, instead of a factor; 0: the factor")
      ->type_name("SIZE");
  add_number(command, "-f,--stepfactor", o.step_factor, 2, "from one size to the next", 1 << 20);
}

void add_repetitions(CLI::App& command, CollectivesRequest& r) {
  CollectiveOptions& o = r.measure;
  add_number(command, "-n,--iters", o.iterations, 1, "calls of a timing");
  add_number(command, "-w,--warmup-iters", o.warm_ups, 0,
             "calls before the first timing of a size");
  add_number(command, "--repeats", o.repeats, 1,
             "timings, in turns with those of a memcpy; the table has their mean, -J all of them");
  add_number(command, "-c,--check", r.check, 0, "1: count elements that are wrong; 0: do not");
  add_number(command, "-z,--blocking", r.blocking, 0,
             "1: calls start together on all ranks; 0: they follow each other");
  add_number(command, "-u,--unalign", o.unalign, 0,
             "elements by which buffers begin behind an aligned address; counts are ragged then");
  add_number(command, "-r,--root", o.root, 0, "root of broadcast");
  command.add_option("-o,--op", r.op, "sum")->type_name("OP");
  command
      .add_option("-d,--datatype", r.type, "float, half, bfloat16, double, int32, int64 or uint8")
      ->type_name("TYPE");
  command.add_flag("-I,--statistics", r.statistics,
                   "also min, p50, p99 and cv of calls that start together, and the fraction of "
                   "the speed of a memcpy of as many bytes by all ranks");
  command.add_option("-J,--output-file", r.json_path, "also write the results there, as JSON")
      ->type_name("FILE");
  command.add_flag("--contended", o.contended,
                   "also beside GEMMs on each rank, and how much both slow down");
}

/// A flag of nccl-tests that has one value here.
struct FixedFlag {
  const char* flags;
  std::vector<const char*> values;
  const char* help;
  const char* why;  ///< the others are refused
};

/// Adds the flags of nccl-tests that this program accepts with one value only.
void add_fixed_flags(CLI::App& command, CollectivesRequest& r) {
  const std::vector<FixedFlag> all{
      {"-m,--agg_iters", {"1"}, "1: one call at a time", "calls are not put into one launch"},
      {"-p,--parallel_init", {"0", "1"}, "ranks begin at once, always", "it is 0 or 1"},
      {"-a,--average",
       {"3"},
       "3: times are of the slowest rank",
       "times are those of the slowest rank, which is -a 3"},
      {"-G,--cudagraph",
       {"0"},
       "0: calls are no part of a CUDA graph",
       "calls are not captured in a CUDA graph; tessera train replays whole steps as one"},
      {"-C,--report_cputime",
       {"0"},
       "0: times are of the calls, not of the host",
       "the host's time is not taken"},
      {"-R,--local_register",
       {"0"},
       "0: buffers are not registered with NCCL",
       "buffers are not registered with NCCL here"},
      {"-N,--run_cycles",
       {"1"},
       "1: each size is measured once",
       "give --repeats N for so many timings of each size"},
      {"-S,--report_timestamps",
       {"0"},
       "0: rows have no time of day",
       "rows have no time of day; -J writes the time at which the run began"}};
  for (const FixedFlag& flag : all) {
    const auto check = [flag](std::string& text) {
      for (const char* const value : flag.values) {
        if (text == value) return std::string();
      }
      return concat(text, " is not built: ", flag.why, "; leave it out or give ",
                    flag.values.back());
    };
    command.add_option(flag.flags, r.unused, flag.help)
        ->check(CLI::Validator(check, ""))
        ->always_capture_default(false)
        ->type_name("N")
        ->group("Of nccl-tests, with one value each");
  }
}

void add_ranks(CLI::App& command, CollectivesRequest& r) {
  command
      .add_option("--collective", r.collective,
                  "all_gather, reduce_scatter, all_reduce, broadcast, all_to_all, sendrecv, "
                  "barrier or all")
      ->type_name("NAME");
  command
      .add_option("--group", r.group,
                  group_names() + "; the groups of an axis run at the same time")
      ->type_name("NAME");
  add_number(command, "-g,--ngpus,--ranks", r.ranks, 1,
             "ranks of this process (default 2); a launcher's are taken by themselves", kMaxRanks);
  add_number(command, "-t,--nthreads", r.threads_of_process, 1, "times as many ranks", kMaxRanks);
  add_number(command, "--replicas", r.replicas, 1,
             "copies of the sharded state, as train has it: ranks / replicas are a shard group",
             kMaxRanks);
  add_number(command, "--threads-per-rank", r.threads_per_rank, 0,
             "0: the cores divided by the ranks", kMaxRanks);
  add_number(command, "-T,--timeout", r.timeout_seconds, 0,
             "seconds that a rank waits for its peers; 0: a day", kMaxRanks);
  command.add_option("--device", r.device, "auto, cpu or cuda")->type_name("NAME");
}

}  // namespace

std::function<int()> add_bench_collectives(CLI::App& command) {
  const auto request = std::make_shared<CollectivesRequest>();
  command.option_defaults()->always_capture_default();
  add_sizes(command, *request);
  add_repetitions(command, *request);
  add_ranks(command, *request);
  add_fixed_flags(command, *request);
  command.footer(
      "Sizes, bandwidths (GB is 10^9 bytes) and columns are as nccl-tests define them. Times are "
      "of the slowest rank. The exit code is 1 if an element is wrong. Also under tessera launch, "
      "torchrun, mpirun and srun.");
  return [request] { return run_collectives(*request); };
}

}  // namespace tessera::cli
