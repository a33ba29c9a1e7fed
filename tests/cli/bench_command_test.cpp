#include <gmock/gmock.h>

#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include "cli/launched_program.h"
#include "cli/nccl_tests_table.h"
#include "tessera/kernels/optimizer.h"

// `tessera bench` as scripts see it: the table of nccl-tests, Google Benchmark's JSON, exit codes.
namespace tessera::bench {
namespace {

using test::NcclTestsRow;
using test::ProgramResult;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class BenchCommand : public test::LaunchTest {
 protected:
  ProgramResult bench(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), "bench");
    return run(arguments);
  }
  /// Short timings of collectives on the CPU.
  ProgramResult collectives(std::vector<std::string> more) const {
    more.insert(more.begin(), {"collectives", "--device", "cpu", "-n", "2", "-w", "0", "--repeats",
                               "1", "--threads-per-rank", "1"});
    return bench(more);
  }
  nlohmann::json json(const std::string& name) const {
    return nlohmann::json::parse(test::read_file(path(name)));
  }
};

TEST_F(BenchCommand, PrintsTheTableOfNcclTests) {
  const ProgramResult result = collectives({"-b", "1K", "-e", "4K", "-f", "2", "-g", "2"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::vector<NcclTestsRow> rows = test::read_nccl_tests(result.out);
  ASSERT_EQ(rows.size(), 6 * 3 + 1U) << result.out;  // a barrier has no sizes
  std::set<std::string> sizes;
  for (const NcclTestsRow& row : rows) {
    sizes.insert(row["size"]);
    for (const auto& place : {row.out_of_place, row.in_place}) {
      EXPECT_GT(place.at("time"), 0.0);
      EXPECT_GE(place.at("algbw"), 0.0);
      if (row["type"] != "none") {
        EXPECT_EQ(place.at("#wrong"), 0.0);
      }
    }
  }
  EXPECT_EQ(sizes, (std::set<std::string>{"0", "1024", "2048", "4096"}));
  EXPECT_EQ(rows[0]["count"], "128") << "an all-gather's count is one rank's";
  EXPECT_EQ(rows[0]["redop"], "none");
  EXPECT_EQ(rows[3]["redop"], "sum");
  EXPECT_EQ(test::nccl_tests_summary(result.out, "Out of bounds values"), 0.0);
  EXPECT_GT(test::nccl_tests_summary(result.out, "Avg bus bandwidth"), 0.0);
}

TEST_F(BenchCommand, BandwidthsFollowNcclTests) {
  const ProgramResult result =
      collectives({"-b", "1M", "-e", "1M", "-g", "4", "-J", path("all.json")});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::map<std::string, double> factors{{"all_gather", 0.75}, {"reduce_scatter", 0.75},
                                              {"all_reduce", 1.5},  {"broadcast", 1.0},
                                              {"all_to_all", 0.75}, {"sendrecv", 1.0}};
  std::size_t seen = 0;
  const nlohmann::json file = json("all.json");
  for (const auto& row : file.at("results")) {
    const auto factor = factors.find(row.at("collective").get<std::string>());
    if (factor == factors.end()) continue;
    ++seen;
    for (const char* const place : {"out_of_place", "in_place"}) {
      const auto& times = row.at(place);
      const double algbw = row.at("size").get<double>() / times.at("time").get<double>() * 1e-3;
      EXPECT_NEAR(times.at("alg_bw").get<double>(), algbw, 1e-6 * algbw);
      EXPECT_NEAR(times.at("bus_bw").get<double>(), algbw * factor->second, 1e-6 * algbw);
      EXPECT_LE(times.at("min"), times.at("p50"));
      EXPECT_LE(times.at("p50"), times.at("p99"));
      EXPECT_GT(times.at("of_memcpy"), 0.0);
    }
  }
  EXPECT_EQ(seen, factors.size());
}

TEST_F(BenchCommand, VerifiesRaggedUnalignedAndOtherTypes) {
  for (const char* const type : {"bfloat16", "int64", "uint8"}) {
    const ProgramResult result = collectives(
        {"-b", "500", "-e", "2100", "-i", "531", "-u", "1", "-d", type, "-g", "3", "-I"});
    ASSERT_EQ(result.exit_code, 0) << type << result.err;
    bool ragged = false;
    for (const NcclTestsRow& row : test::read_nccl_tests(result.out)) {
      if (row["type"] == "none") continue;
      EXPECT_EQ(row.out_of_place.at("#wrong"), 0.0) << type;
      EXPECT_EQ(row.in_place.at("#wrong"), 0.0) << type;
      EXPECT_LE(row.in_place.at("i_min"), row.in_place.at("i_p99"));
      ragged = ragged || static_cast<int>(row.number("count")) % 4 != 0;
    }
    EXPECT_TRUE(ragged);
  }
}

TEST_F(BenchCommand, RunsOverTheGroupsOfAMesh) {
  const ProgramResult result = collectives({"-b", "1K", "-e", "1K", "-g", "4", "--replicas", "2",
                                            "--group", "all", "--collective", "all-reduce"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("world, 1 group of 4 ranks"));
  EXPECT_THAT(result.out, HasSubstr("shard, 2 groups of 2 ranks"));
  EXPECT_THAT(result.out, HasSubstr("replicate, 2 groups of 2 ranks"));
  EXPECT_EQ(test::read_nccl_tests(result.out).size(), 3U);
}

TEST_F(BenchCommand, TellsHowMuchCollectivesAndGemmsSlowEachOther) {
  const ProgramResult result = collectives({"-b", "64K", "-e", "64K", "--collective", "all_gather",
                                            "--contended", "-J", path("c.json")});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("#   beside GEMMs, in place: "));
  EXPECT_EQ(test::read_nccl_tests(result.out).size(), 1U) << "the other lines are comments";
  const auto times = json("c.json").at("results").at(0).at("in_place").at("contended");
  EXPECT_GT(times.at("slowdown"), 0.0);
  EXPECT_GT(times.at("gemm_slowdown"), 0.0);
}

TEST_F(BenchCommand, RunsInSeveralProcesses) {
  const ProgramResult result =
      run({"launch", "--processes", "2", "--", "bench", "collectives", "--device", "cpu", "-b",
           "1K", "-e", "1K", "-n", "2", "--repeats", "1", "--collective", "reduce_scatter"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("world, 1 group of 2 ranks"));
  EXPECT_THAT(result.out, HasSubstr("Out of bounds values : 0 OK"));
}

TEST_F(BenchCommand, TakesTheFlagsOfNcclTests) {
  const ProgramResult result = collectives(
      {"--collective", "all_reduce", "-b", "1K", "-e", "1K", "-m", "1", "-p", "1", "-a", "3",
       "-T",           "60",         "-G", "0",  "-C", "0",  "-R", "0", "-N", "1", "-S", "0"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

TEST_F(BenchCommand, RefusesWhatItCannotMeasure) {
  const auto error_of = [&](const std::vector<std::string>& arguments) {
    const ProgramResult result = bench(arguments);
    EXPECT_EQ(result.exit_code, 2) << result.out;
    return result.err;
  };
  EXPECT_THAT(error_of({"collectives", "--collective", "gather"}),
              HasSubstr("there are: all_gather, reduce_scatter"));
  EXPECT_THAT(error_of({"collectives", "-b", "2M", "-e", "1M"}), HasSubstr("-b 2M is above -e 1M"));
  EXPECT_THAT(error_of({"collectives", "-o", "max"}), HasSubstr("-o max"));
  EXPECT_THAT(error_of({"collectives", "-g", "3", "--replicas", "2"}),
              HasSubstr("--replicas 2 does not divide 3 ranks"));
  EXPECT_THAT(error_of({"collectives", "-d", "int32", "--collective", "all_reduce"}),
              HasSubstr("all_reduce cannot sum int32"));
  // Flags of nccl-tests that have one value here.
  EXPECT_THAT(error_of({"collectives", "-m", "4"}), HasSubstr("not put into one launch"));
  EXPECT_THAT(error_of({"collectives", "-a", "1"}), HasSubstr("of the slowest rank"));
  EXPECT_THAT(error_of({"collectives", "-G", "2"}), HasSubstr("CUDA graph"));
  EXPECT_THAT(error_of({"collectives", "-N", "3"}), HasSubstr("--repeats"));
  EXPECT_THAT(error_of({"kernels", "--benchmark_nonsense=1"}), HasSubstr("--benchmark_nonsense=1"));
  EXPECT_THAT(error_of({"kernels", "--filter", "no such kernel"}), HasSubstr("no kernel"));
  EXPECT_THAT(error_of({"launch", "bench", "kernels"}), HasSubstr("launch"));
}

TEST_F(BenchCommand, CountsTheScoresOfPackedDocuments) {
  const ProgramResult result =
      bench({"kernels", "--device", "cpu", "--min-seconds", "0.001", "--filter",
             "attention_forward/bf16/length:2048/documents", "--json", path("documents.json")});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  double squares = 0.0;
  for (const double tokens : {200.0, 537.0, 874.0, 410.0, 27.0}) squares += tokens * tokens;
  const auto benchmarks = json("documents.json").at("benchmarks");
  ASSERT_FALSE(benchmarks.empty());
  for (const auto& entry : benchmarks) {
    const double flops = entry.at("GFLOP/s").get<double>() * entry.at("real_time").get<double>();
    const double counted = 2.0 * squares * 12 * 64;  // two products, causal; heads of 64
    EXPECT_NEAR(flops, counted, 0.05 * counted);
  }
}

/// The members of KernelTable that compute.
std::vector<std::string> kernels_of_the_table() {
  const std::string text = test::read_file(std::string(TESSERA_SOURCE_DIR) +
                                           "/kernels/include/tessera/kernels/kernel_table.h");
  const std::regex member(R"(KernelFunction<\w+> (\w+);)");
  std::vector<std::string> names;
  for (std::sregex_iterator found(text.begin(), text.end(), member), end; found != end; ++found) {
    const std::string name = (*found)[1];
    if (name.rfind("plan_", 0) != 0) names.push_back(name);
  }
  return names;
}

TEST_F(BenchCommand, EveryKernelHasABenchmark) {
  const ProgramResult result = bench({"kernels", "--device", "cpu", "--list"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  std::vector<std::string> names;
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) names.push_back(line);
  const std::vector<std::string> kernels = kernels_of_the_table();
  ASSERT_GT(kernels.size(), 25U);
  for (const std::string& kernel : kernels) {
    EXPECT_THAT(names, Contains(StartsWith("cpu/" + kernel + "/")));
  }
  for (const Optimizer& optimizer : optimizers()) {
    if (is_factored(optimizer)) continue;  // its steps are kernels of the table
    const std::string name(optimizer.name);
    EXPECT_THAT(names, Contains(StartsWith("cpu/optimizer_step/" + name + "/parameter:bf16")));
  }
  for (const char* const name : {"gelu_backward", "layer_norm_backward", "attention_backward"}) {
    EXPECT_THAT(names, Contains(StartsWith(std::string("cpu/") + name + "/fp32")));
    EXPECT_THAT(names, Contains(StartsWith(std::string("cpu/") + name + "/bf16")));
  }
}

TEST_F(BenchCommand, KernelsAreTimedAgainstALimit) {
  const ProgramResult result =
      bench({"kernels", "--device", "cpu", "--min-seconds", "0.001", "--benchmark_repetitions=2",
             "--filter", "relu_backward/bf16|/fill/bf16|attention_forward/fp32/length:256",
             "--json", path("kernels.json")});
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_EQ(result.err.find("DEBUG"), std::string::npos);
  const auto file = json("kernels.json");
  EXPECT_TRUE(file.at("context").contains("machine.processor"));
  std::set<std::string> rates;
  for (const auto& entry : file.at("benchmarks")) {
    if (entry.at("run_type") != "iteration") continue;
    const char* const rate = entry.contains("GB/s") ? "GB/s" : "GFLOP/s";
    rates.insert(rate);
    EXPECT_GT(entry.at("free").get<double>(), 0.0);
    EXPECT_LE(entry.at("free").get<double>(), 1.0);
    EXPECT_NEAR(entry.at("of_limit").get<double>(),
                entry.at(rate).get<double>() / entry.at("limit").get<double>(), 1e-6);
  }
  EXPECT_EQ(rates, (std::set<std::string>{"GB/s", "GFLOP/s"}));
}

/// A file as Google Benchmark writes it, with these times of one kernel.
std::string google_file(const std::vector<double>& times, const std::string& cores = "2") {
  nlohmann::json file{{"context", {{"machine.cores", cores}, {"host_name", "any"}}}};
  file["benchmarks"] = nlohmann::json::array();
  for (const double time : times) {
    file["benchmarks"].push_back({{"name", "k"},
                                  {"run_name", "k"},
                                  {"run_type", "iteration"},
                                  {"real_time", time},
                                  {"time_unit", "us"}});
  }
  return file.dump();
}

TEST_F(BenchCommand, ComparesResultsOfOneMachine) {
  const std::string a = write("a.json", google_file({100, 101, 102}));
  const std::string b = write("b.json", google_file({120, 121, 122}));
  ProgramResult result = bench({"compare", a, b});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("1.198"));
  EXPECT_THAT(result.out, HasSubstr("SLOWER"));
  EXPECT_EQ(bench({"compare", a, b, "--fail-on-regression"}).exit_code, 1);
  EXPECT_EQ(bench({"compare", b, a, "--fail-on-regression"}).exit_code, 0);
  EXPECT_EQ(bench({"compare", a, b, "--fail-on-regression", "--limit", "25"}).exit_code, 0);

  const std::string other = write("other.json", google_file({100, 101, 102}, "4"));
  result = bench({"compare", a, other});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("machine.cores: 2 and 4"));
  result = bench({"compare", a, other, "--any-machine"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("machine.cores: 2 and 4"));
}

TEST_F(BenchCommand, ComparesTablesOfCollectives) {
  for (const char* const name : {"a.json", "b.json"}) {
    const ProgramResult measured = bench({"collectives", "--device", "cpu", "-b", "1K", "-e", "1K",
                                          "-n", "2", "--warmup_iters", "0", "--repeats", "3",
                                          "--collective", "broadcast", "-J", path(name)});
    ASSERT_EQ(measured.exit_code, 0) << measured.err;
  }
  const ProgramResult result = bench({"compare", path("a.json"), path("b.json")});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("broadcast/world, 1 group of 2 ranks/float/1024/in_place"));
  const std::string kernels = write("k1.json", google_file({100, 101, 102}));
  const ProgramResult unlike = bench({"compare", path("a.json"), kernels});
  EXPECT_EQ(unlike.exit_code, 2);
  EXPECT_THAT(unlike.err, HasSubstr("a.json holds collectives, "));
  EXPECT_THAT(unlike.err, HasSubstr("k1.json kernels"));
  const ProgramResult broken = bench({"compare", path("a.json"), write("c.json", "{}")});
  EXPECT_EQ(broken.exit_code, 2);
  EXPECT_THAT(broken.err, HasSubstr("is no result of 'tessera bench'"));
}

}  // namespace
}  // namespace tessera::bench
