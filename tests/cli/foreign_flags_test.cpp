#include <gmock/gmock.h>

#include <fstream>

#include "cli/launched_program.h"

// Flags that belong to Accelerate's launcher or to torchrun, given to ours.
namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

class ForeignFlags : public test::LaunchTest {
 protected:
  std::string answer(const std::string& flag) const {
    return error_of(run({"launch", flag, "--", "train"}));
  }
};

TEST_F(ForeignFlags, EveryFlagOfAcceleratesLauncherIsAnswered) {
  std::ifstream list(std::string(TESSERA_SOURCE_DIR) + "/tests/cli/accelerate_launch_flags.txt");
  int answered = 0;
  for (std::string flag; std::getline(list, flag);) {
    const bool ours = flag == "--config_file" || flag == "--gpu_ids" || flag == "--help";
    if (flag.front() == '#' || ours) continue;
    SCOPED_TRACE(flag);
    EXPECT_THAT(answer(flag),
                AllOf(AnyOf(HasSubstr("; here it is '--"), HasSubstr("belongs behind"),
                            HasSubstr("' has no counterpart: ")),
                      Not(HasSubstr("did you mean"))));
    ++answered;
  }
  EXPECT_GT(answered, 100);
}

TEST_F(ForeignFlags, TheAnswerNamesOursAndItsPlace) {
  EXPECT_THAT(answer("--num_machines=2"), HasSubstr("here it is '--nodes'\n"));
  EXPECT_THAT(answer("--mixed_precision=bf16"),
              HasSubstr("here it is '--precision', behind 'train'"));
  EXPECT_THAT(answer("--precision=bf16"), HasSubstr("'--precision'; it belongs behind 'train'"));
  EXPECT_THAT(answer("--debug"), HasSubstr("'--check-collectives', behind 'train'"));
  EXPECT_THAT(answer("--use_deepspeed"), HasSubstr("'--strategy', behind 'train'"));
  EXPECT_THAT(answer("--megatron_lm_tp_degree"), HasSubstr("not split in other ways"));
  EXPECT_THAT(answer("-m"), HasSubstr("tessera launch FLAGS -- train FLAGS"));
  EXPECT_THAT(answer("--proceses"), HasSubstr("did you mean '--processes'"));
  EXPECT_THAT(error_of(train({"--use_fsdp"})), HasSubstr("here it is '--strategy'\n"));
  EXPECT_THAT(error_of(train({"--tpu"})), HasSubstr("'--tpu' has no counterpart: TPUs"));
}

TEST_F(ForeignFlags, TransformersTrainersAreAnswered) {
  const std::pair<const char*, const char*> answers[] = {
      {"--per_device_train_batch_size", "here it is '--micro-batch'"},
      {"--gradient_accumulation_steps", "here it is '--accumulate'"},
      {"--bf16", "here it is '--precision'"},
      {"--deepspeed", "here it is '--config'"},
      {"--fsdp", "here it is '--strategy'"},
      {"--adam_beta2", "here it is '--beta2'"},
      {"--fp16", "no counterpart: computation in 16 bits is in bf16"},
      {"--num_train_epochs", "no counterpart: say how many steps: --steps"},
      {"--warmup_ratio", "no counterpart: say how many steps: --warmup-steps"},
      {"--output_dir", "no counterpart: parameters are not saved yet"},
      {"--resume_from_checkpoint", "no counterpart: parameters and state are not saved yet"},
      {"--save_steps", "no counterpart: parameters and state are not saved yet"},
  };
  for (const auto& [flag, answer] : answers) {
    EXPECT_THAT(error_of(train({flag, "1"})), HasSubstr(answer)) << flag;
  }
}

TEST_F(ForeignFlags, TorchrunsAreAnswered) {
  for (const char* flag : {"--nnodes",
                           "--nproc-per-node",
                           "--rdzv-backend",
                           "--rdzv-endpoint",
                           "--rdzv-id",
                           "--rdzv-conf",
                           "--standalone",
                           "--max-restarts",
                           "--monitor-interval",
                           "--start-method",
                           "--role",
                           "--module",
                           "--no-python",
                           "--run-path",
                           "--log-dir",
                           "--redirects",
                           "--tee",
                           "--local-ranks-filter",
                           "--master-addr",
                           "--master-port",
                           "--local-addr"}) {
    SCOPED_TRACE(flag);
    EXPECT_THAT(answer(flag),
                AnyOf(HasSubstr("; here it is '--"), HasSubstr("has no counterpart")));
  }
}

}  // namespace
}  // namespace tessera
