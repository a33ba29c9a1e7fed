#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "cli/launched_program.h"

// Evaluations: by themselves, and within a training.
namespace tessera::evaluate_command_test {
namespace {

using test::ProgramResult;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

using Words = std::vector<std::string>;

class EvaluateCommand : public test::LaunchTest {
 protected:
  static Words small_model() {
    return {"--no-default-config",
            "--layers",
            "2",
            "--heads",
            "2",
            "--width",
            "16",
            "--context-length",
            "16",
            "--micro-batch",
            "2"};
  }
  static Words joined_with(Words words, const Words& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  ProgramResult evaluate(const Words& more) const {
    return run(joined_with(joined_with({"evaluate"}, small_model()), more));
  }
  /// A text of which nothing is trained on.
  std::string write_held_out() const {
    std::string text;
    while (text.size() < 2000) text += "five boxing wizards jump quickly. ";
    return write("held_out.txt", text);
  }
  std::vector<nlohmann::json> evaluations(const std::string& name) const {
    std::vector<nlohmann::json> lines = read_log(name);
    std::erase_if(lines, [](const auto& line) { return line["kind"] != "evaluation"; });
    return lines;
  }
};

TEST_F(EvaluateCommand, TellsOfLossAndPerplexity) {
  const std::string data = write_held_out();
  const ProgramResult text = evaluate({"--eval-data", data, "--eval-tokens", "100"});
  ASSERT_EQ(text.exit_code, 0) << text.err;
  EXPECT_THAT(
      text.out,
      AllOf(HasSubstr("parameters as initialised by --seed 0\n"),
            ContainsRegex(
                "\nloss 5\\.[0-9]+, perplexity [0-9.]+, accuracy [0-9.]+ % on 112 tokens\n$")));
  const ProgramResult json = evaluate({"--eval-data", data, "--format", "json"});
  ASSERT_EQ(json.exit_code, 0) << json.err;
  const auto record = nlohmann::json::parse(json.out);
  EXPECT_EQ(record["kind"], "evaluation");
  EXPECT_EQ(record["step"], 0);
  EXPECT_EQ(record["tokens"].get<std::int64_t>() % 16, 0);
  EXPECT_GT(record["tokens"], 1900);  // all of the text, in whole samples
  const double loss = record["loss"];
  EXPECT_NEAR(record["perplexity"].get<double>(), std::exp(loss), 1e-9 * std::exp(loss));
  EXPECT_EQ(record["mean_token_accuracy"].get<double>(),
            record["correct_tokens"].get<double>() / record["tokens"].get<double>());
  EXPECT_LE(record["correct_tokens"], record["tokens"]);
  // --data is the same here; another seed is another model.
  EXPECT_EQ(evaluate({"--data", data, "--format", "json"}).out, json.out);
  EXPECT_NE(evaluate({"--data", data, "--format", "json", "--seed", "1"}).out, json.out);
}

/// Padding counts among positions, as in training's speeds.
TEST_F(EvaluateCommand, TellsOfTargetsWhereNotEveryPositionHasOne) {
  const std::string data = write("held_out.jsonl", "{\"text\": \"abc\"}\n{\"text\": \"defg\"}\n");
  const ProgramResult text = evaluate({"--eval-data", data, "--tokenizer", "bytes"});
  ASSERT_EQ(text.exit_code, 0) << text.err;
  EXPECT_THAT(text.out,
              ContainsRegex("\nloss 5\\.[0-9]+, perplexity [0-9.]+, accuracy [0-9.]+ % on [0-9]+ "
                            "targets "
                            "of (16|32) positions\n$"));
}

TEST_F(EvaluateCommand, LogsFollowEachOther) {
  const std::string data = write_held_out();
  for (const char* seed : {"0", "1"}) {
    const ProgramResult result = evaluate(
        {"--eval-data", data, "--eval-tokens", "100", "--seed", seed, "--log", path("log.jsonl")});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, ContainsRegex("\nloss [0-9]\\.[0-9]{6}, "));
  }
  const std::vector<nlohmann::json> lines = read_log("log.jsonl");
  ASSERT_EQ(lines.size(), 4U);
  EXPECT_EQ(lines[0]["kind"], "run");
  EXPECT_EQ(lines[0]["seed"], 0);
  EXPECT_EQ(lines[2]["seed"], 1);
  EXPECT_NE(lines[1]["loss"], lines[3]["loss"]);

  write("config.json", R"({"log": "training.jsonl"})");  // whose log stays as it is
  const ProgramResult quiet = evaluate({"--eval-data", data, "--config", path("config.json")});
  ASSERT_EQ(quiet.exit_code, 0) << quiet.err;
  EXPECT_FALSE(std::filesystem::exists(path("training.jsonl")));
}

TEST_F(EvaluateCommand, IsTheSameOnAnyNumberOfRanks) {
  const std::string data = write_held_out();
  const Words wanted{"--eval-data", data, "--eval-tokens", "500", "--format", "json"};
  const ProgramResult one = evaluate(wanted);
  ASSERT_EQ(one.exit_code, 0) << one.err;
  EXPECT_EQ(evaluate(joined_with(wanted, {"--ranks", "3"})).out, one.out);
  EXPECT_EQ(evaluate(joined_with(wanted, {"--ranks", "2", "--strategy", "zero1"})).out, one.out);
  // And in several processes, of which the first speaks.
  const ProgramResult launched = run(joined_with(
      joined_with({"launch", "--processes", "3", "--", "evaluate"}, small_model()), wanted));
  ASSERT_EQ(launched.exit_code, 0) << launched.err;
  std::string out = launched.out;
  for (auto at = out.find("[rank 0] "); at != out.npos; at = out.find("[rank 0] "))
    out.erase(at, 9);
  EXPECT_EQ(out, one.out);
}

TEST_F(EvaluateCommand, NeedsSomethingToEvaluateOn) {
  EXPECT_THAT(error_of(evaluate({})), HasSubstr("nothing to evaluate on: give --eval-data"));
  EXPECT_THAT(error_of(evaluate({"--eval-data", path("none.txt")})), HasSubstr("none.txt"));
  const std::string data = write_text();
  EXPECT_THAT(error_of(train({"--data", data, "--eval-every", "2"})),
              HasSubstr("--eval-every needs --eval-data"));
  EXPECT_THAT(error_of(train({"--data", data, "--eval-tokens", "64"})),
              HasSubstr("--eval-tokens needs --eval-data"));
  EXPECT_THAT(error_of(train({"--data", data, "--patience", "2"})),
              HasSubstr("--patience needs --eval-data"));
  EXPECT_THAT(error_of(train({"--data", data, "--save-best"})),
              HasSubstr("--save-best needs --eval-data"));
  EXPECT_THAT(error_of(train({"--data", data, "--eval-data", data, "--save-best"})),
              HasSubstr("--eval-every N"));
}

/// No loss falls by as much as --min-improvement asks for: the run stops after the evaluation of
/// step 2 and two more. The same in several processes, by the flags of transformers.
TEST_F(EvaluateCommand, TrainingKeepsTheBestAndStopsWhenThereIsNoBetterOne) {
  const Words wanted{"--data",
                     write_text(),
                     "--steps",
                     "20",
                     "--eval-data",
                     write_held_out(),
                     "--eval-every",
                     "2",
                     "--eval-tokens",
                     "100",
                     "--patience",
                     "2",
                     "--min-improvement",
                     "100",
                     "--save-best",
                     "--save-total-limit",
                     "1",
                     "--sample-tokens",
                     "0"};
  const ProgramResult result = train(
      joined_with(wanted, {"--ranks", "2", "--save", path("run"), "--log", path("run.jsonl")}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("stopped after step 6 of 20: no better by more than "
                                    "--min-improvement for 2 evaluations; the best is of step "));
  EXPECT_THAT(result.out, HasSubstr("/best\n"));
  EXPECT_THAT(result.err, HasSubstr("best so far"));
  const auto records = evaluations("run.jsonl");
  ASSERT_EQ(records.size(), 3U);
  const auto lowest = std::ranges::min_element(
      records, {}, [](const auto& record) { return record["loss"].template get<double>(); });
  EXPECT_EQ(records.back()["best_step"], (*lowest)["step"]);
  EXPECT_EQ(records.back()["best_loss"], (*lowest)["loss"]);
  EXPECT_EQ(records.back()["without_improvement"], 2);
  EXPECT_EQ(read_log("run.jsonl").back()["stopped_early"], true);

  const std::string best = path("run") + "/best";
  const std::string step = (*lowest)["step"].dump();
  EXPECT_THAT(run({"checkpoint", "inspect", best}).out,
              HasSubstr("step_" + step + ": step " + step));
  EXPECT_THAT(run({"checkpoint", "list", path("run")}).out, HasSubstr("best"));
  const ProgramResult loss =
      run({"evaluate", "--no-default-config", "--init", best, "--eval-data", path("held_out.txt"),
           "--eval-tokens", "100", "--micro-batch", "2", "--format", "json"});
  ASSERT_EQ(loss.exit_code, 0) << loss.err;
  EXPECT_EQ(nlohmann::json::parse(loss.out)["loss"], (*lowest)["loss"]) << "as it was trained";
  EXPECT_EQ(run({"generate", "--no-default-config", "--init", best, "--tokens", "2"}).exit_code, 0);
  EXPECT_EQ(run({"checkpoint", "convert", best, path("exported")}).exit_code, 0);
  EXPECT_THAT(train(joined_with(wanted, {"--save", path("run"), "--resume", "auto"})).out,
              HasSubstr("the run is complete"));

  Words launched{"launch", "--processes",   "2", "--",      "train", "--layers",
                 "2",      "--heads",       "2", "--width", "16",    "--context-length",
                 "16",     "--micro-batch", "2"};
  Words theirs = wanted;
  std::ranges::replace(theirs, "--patience", "--early-stopping-patience");
  std::ranges::replace(theirs, "--save-best", "--load-best-model-at-end");
  launched = joined_with(launched, theirs);
  launched = joined_with(launched, {"--save", path("launched"), "--log", path("launched.jsonl")});
  const ProgramResult several = run(launched);
  ASSERT_EQ(several.exit_code, 0) << several.err;
  EXPECT_EQ(evaluations("launched.jsonl"), records);
  EXPECT_EQ(read_log("launched.jsonl").back()["parameters_sha256"],
            read_log("run.jsonl").back()["parameters_sha256"]);
}

TEST_F(EvaluateCommand, TrainingEvaluatesAtTheRightSteps) {
  const std::string data = write_text();
  const Words wanted{"--data", data, "--steps", "5", "--ranks", "2", "--sample-tokens", "0"};
  const Words with_evaluation =
      joined_with(wanted, {"--eval-data", write_held_out(), "--eval-every", "2", "--eval-tokens",
                           "100", "--log", path("run.jsonl"), "--csv", path("run.csv"),
                           "--tensorboard", path("board")});
  const ProgramResult result = train(with_evaluation);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto records = evaluations("run.jsonl");
  ASSERT_EQ(records.size(), 3U);
  std::vector<std::int64_t> steps;
  for (const auto& record : records) {
    steps.push_back(record["step"]);
    EXPECT_EQ(record["tokens"], 112);
  }
  EXPECT_THAT(steps, ::testing::ElementsAre(2, 4, 5));
  EXPECT_THAT(result.err, AllOf(HasSubstr("\nevaluation after step 2: loss "),
                                HasSubstr("\nevaluation after step 5: loss ")));
  EXPECT_THAT(
      result.out,
      ContainsRegex(
          "\nevaluated loss [0-9.]+, perplexity [0-9.]+, accuracy [0-9.]+ % on 112 tokens\n"));
  const auto summary = read_log("run.jsonl").back();
  EXPECT_EQ(summary["kind"], "summary");
  EXPECT_EQ(summary["peak_bytes"]["predicted"], summary["peak_bytes"]["measured"]);
  EXPECT_EQ(summary["sent_bytes"]["predicted"], summary["sent_bytes"]["counted"]);

  const std::string table = test::read_file(path("run.csv"));
  EXPECT_EQ(std::ranges::count(table, '\n'), 1 + 5 + 3);
  for (const auto& record : records) {
    EXPECT_THAT(table, HasSubstr("\n" + std::to_string(record["step"].get<std::int64_t>()) +
                                 ",,,,,,,,,," + record["loss"].dump().substr(0, 12)));
  }
  std::string board;
  for (const auto& file : std::filesystem::directory_iterator(path("board"))) {
    board += test::read_file(file.path());
  }
  EXPECT_THAT(board, AllOf(HasSubstr("eval/loss"), HasSubstr("eval/perplexity")));

  // The training is what it is without.
  ASSERT_EQ(train(joined_with(wanted, {"--log", path("plain.jsonl")})).exit_code, 0);
  EXPECT_TRUE(evaluations("plain.jsonl").empty());
  EXPECT_EQ(read_log("plain.jsonl").back()["parameters_sha256"], summary["parameters_sha256"]);
  // And processes evaluate as threads do.
  Words launched = with_evaluation;
  launched.insert(launched.end(), {"--overwrite", "--quiet"});
  const ProgramResult processes = launch({"--processes", "2"}, launched);
  ASSERT_EQ(processes.exit_code, 0) << processes.err;
  EXPECT_EQ(evaluations("run.jsonl"), records);
}

TEST_F(EvaluateCommand, WithoutAnIntervalThereIsOneAfterTheLastStep) {
  const std::string data = write_text();
  ASSERT_EQ(train({"--data", data, "--steps", "3", "--quiet", "--eval-data", data, "--log",
                   path("run.jsonl")})
                .exit_code,
            0);
  const auto records = evaluations("run.jsonl");
  ASSERT_EQ(records.size(), 1U);
  EXPECT_EQ(records[0]["step"], 3);
}

TEST_F(EvaluateCommand, OptimizersAreChosenByName) {
  const std::string data = write_text();
  const auto sha256 = [&](const Words& more) {
    const ProgramResult result = train(joined_with(
        {"--data", data, "--steps", "4", "--quiet", "--overwrite", "--log", path("run.jsonl")},
        more));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    const auto summary = read_log("run.jsonl").back();
    EXPECT_EQ(summary["peak_bytes"]["predicted"], summary["peak_bytes"]["measured"]);
    return summary["parameters_sha256"].get<std::string>();
  };
  const Words sgd{"--optimizer", "sgd"};
  const Words momentum = joined_with(sgd, {"--momentum", "0.9"});
  const Words nesterov = joined_with(momentum, {"--nesterov"});
  const std::vector<std::string> all{sha256({}), sha256(sgd), sha256(momentum), sha256(nesterov)};
  EXPECT_EQ(read_log("run.jsonl").at(0)["optimizer"], "sgd");
  EXPECT_EQ(read_log("run.jsonl").at(0)["momentum"], 0.9);
  EXPECT_EQ(read_log("run.jsonl").at(0)["nesterov"], true);
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(std::ranges::count(all, all[i]), 1) << i;
  }
  const auto refused = [&](const Words& more) {
    return error_of(train(joined_with({"--data", data, "--steps", "1"}, more)));
  };
  EXPECT_THAT(refused({"--momentum", "0.9"}),
              HasSubstr("adamw has no hyperparameter 'momentum'; it has beta1, beta2, epsilon"));
  EXPECT_THAT(refused({"--optimizer", "sgd", "--beta1", "0.9"}),
              HasSubstr("sgd has no hyperparameter 'beta1'; it has momentum, nesterov"));
  EXPECT_THAT(refused({"--optimizer", "sgd", "--nesterov"}),
              HasSubstr("nesterov needs a momentum above 0"));
  EXPECT_THAT(refused({"--optimizer", "sdg"}), HasSubstr("did you mean 'sgd'"));
  EXPECT_NE(sha256({"--lr-group", "h.*.attn.*=0.1,*.bias=1:0"}), all.front());
  EXPECT_EQ(read_log("run.jsonl").at(0)["learning_rate_groups"], "h.*.attn.*=0.1,*.bias=1:0");
  EXPECT_THAT(refused({"--lr-group", "h.*.atn.*=0.1"}), HasSubstr("near names are h.*.attn.*, "));
  EXPECT_THAT(refused({"--lr-group", "h.*"}),
              HasSubstr("--learning-rate-groups: 'h.*' is no group"));
}

}  // namespace
}  // namespace tessera::evaluate_command_test
