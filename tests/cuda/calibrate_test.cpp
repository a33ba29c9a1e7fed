#include <gmock/gmock.h>

#include <cstdlib>

#include "cli/program.h"

// tessera calibrate, and runs by the table that it writes. GPU and cuBLASLt are emulated.
namespace tessera {
namespace {

using nlohmann::json;
using test::ProgramResult;
using test::read_file;
using ::testing::AllOf;
using ::testing::HasSubstr;

class Calibrate : public test::ProgramTest {
 protected:
  void SetUp() override {
    ProgramTest::SetUp();
    setenv("TESSERA_CUDA_MODULE", TESSERA_EMULATED_MODULE, 1);
    setenv("LD_LIBRARY_PATH", TESSERA_NO_DRIVER, 1);
    // Microseconds: algorithm 5 is the fastest of a product, and no epilogue is worth it.
    setenv("FAKE_CUBLASLT_DELAYS",
           "600 600 600 600 600 60 600 600 9999 9999 9999 9999 9999 9999 9999 9999", 1);
  }
  void TearDown() override {
    for (const char* name : {"TESSERA_CUDA_MODULE", "LD_LIBRARY_PATH", "FAKE_CUBLASLT_DELAYS"}) {
      unsetenv(name);
    }
    ProgramTest::TearDown();
  }

  ProgramResult calibrate(const std::vector<std::string>& more = {},
                          const std::function<void(pid_t)>& while_running = {}) const {
    std::vector<std::string> words{"calibrate", "--gemm-table", path("t.json")};
    for (const char* word : {"--layers", "2", "--heads", "2", "--width", "16", "--context-length",
                             "16", "--micro-batch", "2", "--precision", "bf16"}) {
      words.emplace_back(word);
    }
    words.insert(words.end(), more.begin(), more.end());
    return run(words, while_running);
  }
  ProgramResult train_by_table(const std::string& log,
                               const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words{"--data",      path("data.txt"), "--steps",  "3",
                                   "--precision", "bf16",           "--device", "cuda",
                                   "--log",       path(log)};
    words.insert(words.end(), more.begin(), more.end());
    return train(words);
  }
  json table() const { return json::parse(read_file(path("t.json"))); }
  json summary(const std::string& log) const { return read_log(log).back(); }
};

TEST_F(Calibrate, WritesATableByWhichRunsGiveTheSameBits) {
  write_text();
  const ProgramResult first = calibrate();
  ASSERT_EQ(first.exit_code, 0) << first.err;
  int apart = 0;
  for (const json& row : table()["gemms"]) {
    const bool with_epilogue = row["epilogue"] != "none" && row["epilogue"] != "bias";
    EXPECT_EQ(row["way"], with_epilogue ? "separate" : "fused") << row;
    EXPECT_LE(row["microseconds"], row["heuristic_microseconds"]) << row;
    apart += with_epilogue ? 1 : 0;
  }
  EXPECT_GE(apart, 4) << "GELU, its derivative, bias gradients";
  const std::string written = read_file(path("t.json"));
  const ProgramResult second = calibrate();
  ASSERT_EQ(second.exit_code, 0) << second.err;
  EXPECT_THAT(second.out, HasSubstr("0 GEMMs to time"));
  EXPECT_EQ(read_file(path("t.json")), written);

  const std::vector<std::string> by_table{"--gemm-table", path("t.json")};
  for (const char* log : {"a.jsonl", "b.jsonl"}) {
    const ProgramResult run = train_by_table(log, by_table);
    ASSERT_EQ(run.exit_code, 0) << run.err;
  }
  ASSERT_EQ(train_by_table("c.jsonl").exit_code, 0);
  EXPECT_EQ(summary("a.jsonl")["parameters_sha256"], summary("b.jsonl")["parameters_sha256"]);
  EXPECT_NE(summary("a.jsonl")["parameters_sha256"], summary("c.jsonl")["parameters_sha256"])
      << "the heuristic's algorithms add in another order";
}

/// Whatever a step asks for is in the table of a run with these settings.
TEST_F(Calibrate, KnowsTheGemmsOfARun) {
  unsetenv("FAKE_CUBLASLT_DELAYS");
  const std::vector<std::string> settings{"--accumulate", "2", "--recompute", "selective"};
  const ProgramResult result = calibrate(settings);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  bool accumulates = false, evaluates = false;
  for (const json& row : table()["gemms"]) {
    accumulates = accumulates || row["accumulate"] == true;
    evaluates = evaluates || row["epilogue"] == "gelu_bias";
  }
  EXPECT_TRUE(accumulates && evaluates);
}

TEST_F(Calibrate, ATableOfAnotherLibraryIsRefusedByAllWhoReadIt) {
  write_text();
  unsetenv("FAKE_CUBLASLT_DELAYS");
  ASSERT_EQ(calibrate().exit_code, 0);
  json stale = table();
  stale["machine"]["cublaslt"] = "12.9.1";
  write("t.json", stale.dump());
  const ProgramResult trained = train_by_table("a.jsonl", {"--gemm-table", path("t.json")});
  const ProgramResult calibrated = calibrate();
  for (const ProgramResult& result : {trained, calibrated}) {
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, AllOf(HasSubstr("cuBLASLt 12.9.1"), HasSubstr("cuBLASLt 13.1.0")));
  }
}

TEST_F(Calibrate, WhatIsDoneStaysWhenItIsInterrupted) {
  const ProgramResult result = calibrate({}, [&](pid_t pid) {
    while (read_file(path("stdout")).find("\n2/") == std::string::npos && kill(pid, 0) == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    kill(pid, SIGINT);
  });
  EXPECT_EQ(result.exit_code, 128 + SIGINT) << result.err;
  EXPECT_THAT(result.out, HasSubstr("stopped after "));
  const std::size_t done = table()["gemms"].size();
  EXPECT_GE(done, 2U);
  const ProgramResult rest = calibrate();
  EXPECT_EQ(rest.exit_code, 0) << rest.err;
  EXPECT_THAT(rest.out, HasSubstr(std::to_string(done) + " in "));
  EXPECT_GT(table()["gemms"].size(), done);
}

TEST_F(Calibrate, SaysWhatItNeeds) {
  EXPECT_THAT(run({"calibrate", "--device", "cuda"}).err, HasSubstr("--gemm-table"));
  EXPECT_THAT(calibrate({"--device", "cpu"}).err, HasSubstr("only a GPU"));
  EXPECT_THAT(train_by_table("a.jsonl", {"--gemm-table", "/nowhere/t.json"}).err,
              HasSubstr("/nowhere/t.json"));
}

}  // namespace
}  // namespace tessera
