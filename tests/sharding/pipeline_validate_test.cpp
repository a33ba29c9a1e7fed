#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include "sharding/schedule_edits.h"
#include "support/extent.h"
#include "support/happens_before.h"
#include "support/pipeline_chain.h"
#include "tessera/sharding/passes.h"

namespace tessera::test::pipeline_validate_test {
namespace {

using ::testing::HasSubstr;
using namespace operations;  // NOLINT: rows of the table

/// Three stages, of layers l0 and l1, l2, and l3, whose head is tied to l0.
PipelineSubject three_stages() {
  PipelineSubject subject{.name = "three stages", .run = {.strategy = "no_shard"}};
  subject.run.first_layers = {0, 2, 3};
  subject.run.micro_steps = 4;
  return subject;
}

/// A plan that tests break.
class BrokenPipeline : public testing::Test {
 protected:
  using Edit = std::function<void(Schedule&)>;

  const StepPlan& good() const { return chain_.step(); }
  const Schedule& good(int rank) const { return good().ranks[static_cast<std::size_t>(rank)]; }

  /// The place of a rank's message of a layer in a micro-step on a lane.
  static int message(const Schedule& s, Lane lane, int micro_step) {
    return find(s, [&](const Action& a) {
      return a.operation->is_message && a.lane == lane && a.micro_step == micro_step;
    });
  }
  /// The same of a unit.
  static int message(const Schedule& s, Lane lane) { return message(s, lane, -1); }

  static void expect_breaks(const StepPlan& step, Rule rule, const std::string& says) {
    const std::vector<Violation> violations = validate(step);
    const bool found = std::ranges::any_of(violations, [&](const Violation& violation) {
      return violation.rule == rule && violation.message.find(says) != std::string::npos;
    });
    EXPECT_TRUE(found) << "no violation of " << to_string(rule) << " says '" << says << "':\n"
                       << text_of(violations);
  }
  /// `edit` one rank's schedule.
  void expect(int rank, const Edit& edit, Rule rule, const std::string& says) const {
    StepPlan step = good();
    edit(step.ranks[static_cast<std::size_t>(rank)]);
    expect_breaks(step, rule, says);
  }
  /// The same, with the waits that the operands demand then.
  void expect_with_waits(int rank, const Edit& edit, Rule rule, const std::string& says) const {
    expect(
        rank,
        [&](Schedule& s) {
          edit(s);
          s = synchronise(std::move(s));
        },
        rule, says);
  }
  static void drop(Schedule& s, int action) {
    s.actions.erase(s.actions.begin() + action);
    for (Action& a : s.actions) a.waits.clear(), a.previous_waits.clear();
  }
  static void move(Schedule& s, int from, int to) {
    Action action = at(s, from);
    s.actions.erase(s.actions.begin() + from);
    s.actions.insert(s.actions.begin() + to, std::move(action));
    for (Action& a : s.actions) a.waits.clear(), a.previous_waits.clear();
  }

  /// Stage 1 has the first message back before its first one in its list.
  static Schedule receives_before_it_sends(Schedule s) {
    const int send = message(s, Lane::kSend, 0), receive = message(s, Lane::kReceiveBack, 0);
    EXPECT_LT(send, receive);
    move(s, receive, send);
    return synchronise(std::move(s));
  }

  const PipelineChain chain_{three_stages()};
};

TEST_F(BrokenPipeline, IsWholeToBeginWith) {
  for (const Violation& violation : validate(good())) ADD_FAILURE() << violation.message;
}

// ---- Messages ----------------------------------------------------------------------------------

TEST_F(BrokenPipeline, ThatDoesNotReceiveAMessageIsRefused) {
  StepPlan step = good();
  Schedule& s = step.ranks[1];
  const int last = message(s, Lane::kReceiveBack, 3);
  drop(s, last);
  drop(s, find(s, [&](const Action& a) {
         return a.operation == &kUnpack && s.buffer(a.writes[0]).name == "d.l2.m3";
       }));
  s = synchronise(std::move(s));
  expect_breaks(step, Rule::kMessages, "pipeline rank 2, stage 2: action ");
  expect_breaks(step, Rule::kMessages,
                "is message 3 from pipeline rank 2 to 1 on lane send-back, which the other never "
                "receives");
}

TEST_F(BrokenPipeline, ThatReceivesMoreThanIsSentIsRefused) {
  StepPlan step = good();
  Schedule& s = step.ranks[1];
  drop(s, message(s, Lane::kSend, 3));
  s = synchronise(std::move(s));
  expect_breaks(step, Rule::kMessages,
                "is message 3 from pipeline rank 1 to 2 on lane send, which the other never sends");
}

TEST_F(BrokenPipeline, ThatReceivesInAnotherOrderIsRefused) {
  // Both are ahead of their use, so that the rank by itself is whole.
  PipelineSubject subject = three_stages();
  subject.run.pipeline_order = PipelineOrder::kGPipe;
  subject.run.pipeline_prefetch = 3;
  StepPlan step = PipelineChain(subject).step();
  Schedule& s = step.ranks[2];
  const int first = message(s, Lane::kReceive, 0);
  const int second = message(s, Lane::kReceive, 1);
  std::swap(at(s, first), at(s, second));
  for (Action& a : s.actions) a.waits.clear(), a.previous_waits.clear();
  const int early = find(s, kUnpack);
  if (early < second) move(s, second, early);
  s = synchronise(std::move(s));
  EXPECT_TRUE(validate(s).empty()) << text_of(validate(s));
  expect_breaks(step, Rule::kMessages, "pipeline rank 1, stage 1: action ");
  expect_breaks(step, Rule::kMessages,
                "sends the output of l2 in micro-step 0, 72 bytes in fp32, as "
                "message 0 to pipeline rank 2 on lane send, where action ");
  expect_breaks(step, Rule::kMessages,
                "of pipeline rank 2, stage 2 receives the output of l2 in "
                "micro-step 1, 72 bytes in fp32");
}

TEST_F(BrokenPipeline, ThatExchangesTwoMicroStepsIsRefused) {
  expect(
      1,
      [](Schedule& s) {
        std::swap(at(s, message(s, Lane::kSend, 1)).micro_step,
                  at(s, message(s, Lane::kSend, 2)).micro_step);
      },
      Rule::kContents, "stage 1: action ");
  // Of all that a rank has of them: it is whole by itself.
  StepPlan step = good();
  Schedule& s = step.ranks[2];
  const auto exchange = [](int& micro_step) {
    if (micro_step == 1 || micro_step == 2) micro_step = 3 - micro_step;
  };
  for (Action& a : s.actions) exchange(a.micro_step);
  for (ScheduleBuffer& b : s.buffers) {
    if (b.kind != BufferKind::kBatch && !b.is_slot()) exchange(b.micro_step);
  }
  for (Action& a : s.actions) {
    for (Operand& operand : a.reads) {
      for (const int m : {1, 2}) {
        if (operand.buffer != good(2).find(concat("batch.m", m))) continue;
        operand.buffer = good(2).find(concat("batch.m", 3 - m));
        break;
      }
    }
  }
  s = synchronise(std::move(s));
  expect_breaks(step, Rule::kMessages, "sends the output of l2 in micro-step 1");
}

TEST_F(BrokenPipeline, WhoseMessagesCrossIsRefused) {
  // A rank that sends its gradients on the lane of activations.
  expect(
      2, [](Schedule& s) { at(s, message(s, Lane::kSendBack, 0)).lane = Lane::kSend; },
      Rule::kMessages, "which the other never");
}

TEST_F(BrokenPipeline, OfSchedulesOfAnotherStepIsRefused) {
  const auto expect_other = [&](const Edit& edit, const std::string& what) {
    StepPlan step = good();
    edit(step.ranks[1]);
    expect_breaks(
        step, Rule::kMessages,
        concat("pipeline rank 1: its schedule has other ", what, " than pipeline rank 0's"));
  };
  PipelineSubject subject = three_stages();
  const auto of_subject = [&](Schedule& s) { s = PipelineChain(subject).step().ranks[1]; };
  subject.run.first_layers = {0, 1, 3};
  expect_other(of_subject, "stages, units");
  subject = three_stages();
  subject.run.micro_steps = 3;
  expect_other(of_subject, "micro-steps");
  subject = three_stages();
  subject.run.pipeline_order = PipelineOrder::kGPipe;
  expect_other(of_subject, "stages");
  subject = three_stages();
  subject.run.dtype = DType::kBFloat16;
  expect_other(of_subject, "dtypes, units");
  subject = three_stages();
  subject.purpose = Purpose::kEvaluate;
  expect_other(of_subject, "purpose");
  subject = three_stages();
  subject.run.optimizer = "lion";
  expect_other(of_subject, "optimizer's tensors");
  subject = three_stages();
  subject.run.ranks = 2;
  expect_other(of_subject, "mesh, units");
  subject.run.accumulate_unsharded = true;
  subject.run.ranks = 1;
  expect_other(of_subject, "reduction order");
  expect_other([](Schedule& s) { s.layers[3].name = "l4"; }, "layers");
}

TEST_F(BrokenPipeline, OfSchedulesInOthersPlacesIsRefused) {
  StepPlan step = good();
  std::swap(step.ranks[0], step.ranks[1]);
  expect_breaks(step, Rule::kMessages,
                "pipeline rank 0: its place has the schedule of pipeline rank 1");
  step = good();
  step.ranks.pop_back();
  expect_breaks(step, Rule::kMessages,
                "pipeline rank 0: there are 2 schedules for 3 pipeline ranks");
}

TEST_F(BrokenPipeline, ThatMeetsTheOthersInAnotherSumIsRefused) {
  // Without the sum of losses and norms there are no results, which the rank by itself shows, too.
  StepPlan step = good();
  drop(step.ranks[1], find(step.ranks[1], kResults));
  expect_breaks(step, Rule::kMessages,
                "pipeline rank 1: as sum 1 over all ranks it has nothing, where pipeline rank 0 "
                "has action ");
}

// ---- Progress ----------------------------------------------------------------------------------

TEST_F(BrokenPipeline, ThatWaitsInACircleIsRefused) {
  // Stage 1 does not send its first output before it has the gradient that comes of it.
  StepPlan step = good();
  Schedule& s = step.ranks[1];
  s = receives_before_it_sends(std::move(s));
  at(s, message(s, Lane::kSend, 0)).waits.push_back(message(s, Lane::kReceiveBack, 0));
  EXPECT_TRUE(validate(s).empty()) << text_of(validate(s));
  expect_breaks(step, Rule::kProgress, " can never begin: it waits for action ");
  expect_breaks(step, Rule::kProgress, ", which waits for action ");
  expect_breaks(step, Rule::kProgress, "l2 m0");
  expect_breaks(step, Rule::kProgress, "of pipeline rank 1, stage 1");
}

TEST_F(BrokenPipeline, ThatWaitsInACircleOnlyIfActionsBlockIsRefused) {
  StepPlan step = good();
  Schedule& s = step.ranks[1];
  s = receives_before_it_sends(std::move(s));
  EXPECT_TRUE(validate(s).empty()) << text_of(validate(s));
  expect_breaks(step, Rule::kProgress,
                " can never begin where each action blocks its rank until it is over");
  expect_breaks(step, Rule::kProgress, "of pipeline rank 1, stage 1");
}

// ---- Form --------------------------------------------------------------------------------------

TEST_F(BrokenPipeline, WithMessagesToNobodyIsRefused) {
  const auto expect_send = [&](const std::function<void(Action&)>& edit, const std::string& says) {
    expect(
        1, [&](Schedule& s) { edit(at(s, message(s, Lane::kSend, 0))); }, Rule::kForm, says);
  };
  expect_send([](Action& a) { a.peer = 3; }, "pipeline rank 3 is no peer of 1");
  expect_send([](Action& a) { a.peer = -1; }, "pipeline rank -1 is no peer of 1");
  expect_send([](Action& a) { a.peer = 1; }, "pipeline rank 1 is no peer of 1");
  expect_send([](Action& a) { a.lane = Lane::kReceive; },
              "messages have lanes of their own, for each direction one");
  expect_send([](Action& a) { a.lane = Lane::kCompute; },
              "messages have lanes of their own, for each direction one");
  expect_send([](Action& a) { a.layer = -1, a.micro_step = -1; }, "is of no unit and no layer");
  expect_send([](Action& a) { a.layer = 9; }, "layer 9 does not exist");
  expect_send([](Action& a) { a.micro_step = 4; }, "micro-step 4 does not exist");
  expect_send([](Action& a) { a.axes = {Axis::kShard}; }, "axes mean nothing here");
  expect(
      1, [](Schedule& s) { at(s, find(s, kForward)).peer = 0; }, Rule::kForm,
      "pipeline rank 1: action ");
  expect(
      1, [](Schedule& s) { at(s, find(s, kForward)).peer = 0; }, Rule::kForm,
      "peer 0 means nothing here");
  expect(
      0,
      [](Schedule& s) {
        Action& a = at(s, message(s, Lane::kReceiveBack));
        a.layer = 0, a.micro_step = 0;
      },
      Rule::kForm, "is of a unit and of a layer");
}

TEST_F(BrokenPipeline, WithSlotsThatAreTooSmallIsRefused) {
  for (const char* const slot : {"send.x0", "send.d0", "receive.x0", "receive.d0"}) {
    expect(
        1, [&](Schedule& s) { buffer(s, slot).numel = 17; }, Rule::kForm,
        concat("slot ", slot, " holds 17 elements, but the message has 18"));
  }
}

// Kernels of a layer's passes would find activations come and go beside them.
TEST_F(BrokenPipeline, ThatPacksBesidePassesIsRefused) {
  for (const Operation* const copy : {&kPack, &kUnpack}) {
    for (const Lane lane : {Lane::kSend, Lane::kReduce}) {
      expect_with_waits(
          1, [&](Schedule& s) { at(s, find(s, *copy)).lane = lane; }, Rule::kForm,
          "layers run on the compute lane");
    }
  }
  expect(
      1,
      [](Schedule& s) {
        Action& pack = at(s, find(s, kPack));
        pack.writes[0] = {.buffer = s.find("loss")};
      },
      Rule::kForm, "loss is no activation on the device");
}

TEST_F(BrokenPipeline, WithPassesOfOtherRanksIsRefused) {
  expect(
      1, [](Schedule& s) { at(s, find(s, kForward)).layer = 0; }, Rule::kForm,
      "layer 0 is pipeline rank 0's");
}

TEST_F(BrokenPipeline, WithAContradictoryHeaderIsRefused) {
  const auto expect_header = [&](const Edit& edit, const std::string& says) {
    expect(1, edit, Rule::kForm, says);
  };
  expect_header([](Schedule& s) { s.pipeline.rank = 3; },
                "the schedule is pipeline rank 3's, of 3");
  expect_header([](Schedule& s) { s.pipeline.rank = -1; }, "pipeline rank -1's, of 3");
  expect_header([](Schedule& s) { s.pipeline.first_layers.pop_back(); },
                "2 stages cannot be spread evenly over 3 pipeline ranks");
  expect_header([](Schedule& s) { s.pipeline.first_layers[0] = 1; }, "stage 0 begins with layer 1");
  expect_header([](Schedule& s) { s.pipeline.first_layers[1] = 3; }, "stage 2 begins with layer 3");
  expect_header([](Schedule& s) { s.pipeline.first_layers[2] = 4; }, "stage 2 begins with layer 4");
  expect_header([](Schedule& s) { s.pipeline.input_numels.pop_back(); },
                "the sizes of 2 stages' inputs are given, of 3");
  expect_header([](Schedule& s) { s.pipeline.input_numels[1] = -1; },
                "a stage's input has -1 elements");
}

TEST_F(BrokenPipeline, WithMirrorsOfNothingIsRefused) {
  const int mirror = static_cast<int>(good(0).units.size()) - 1;
  ASSERT_EQ(good(0).units.back().name, "l3.l0");
  const auto expect_mirror = [&](const std::function<void(ScheduleUnit&)>& edit,
                                 const std::string& says) {
    expect(
        0, [&](Schedule& s) { edit(s.units.back()); }, Rule::kForm, says);
  };
  expect_mirror([](ScheduleUnit& u) { u.rank = 3; }, "unit l3.l0 is kept by pipeline rank 3");
  expect_mirror([](ScheduleUnit& u) { u.mirrors = 9; }, "unit l3.l0 mirrors unit 9");
  expect_mirror([=](ScheduleUnit& u) { u.mirrors = mirror; }, "which it cannot");
  expect_mirror([](ScheduleUnit& u) { u.flats[0].numel *= 2; },
                "unit l3.l0 has parameter otherwise than the unit that it mirrors");
  expect_mirror([](ScheduleUnit& u) { u.flats[0].format = DType::kBFloat16; },
                "unit l3.l0 has parameter otherwise than the unit that it mirrors");
  expect_mirror([](ScheduleUnit& u) { u.flats[0].name = "weight"; },
                "unit l3.l0 has weight otherwise than the unit that it mirrors");
}

// ---- Contents ----------------------------------------------------------------------------------

TEST_F(BrokenPipeline, ThatSendsWhatIsNotThereIsRefused) {
  expect(
      1, [](Schedule& s) { drop(s, find(s, kPack)); }, Rule::kContents,
      "pipeline rank 1, stage 1: action ");
  expect(
      1, [](Schedule& s) { drop(s, find(s, kPack)); }, Rule::kContents,
      "reads send.x0, which holds nothing at this point");
}

TEST_F(BrokenPipeline, ThatLeavesAMessageUnreadIsRefused) {
  expect(
      1, [](Schedule& s) { drop(s, find(s, kUnpack)); }, Rule::kContents,
      "which holds nothing at this point");
}

TEST_F(BrokenPipeline, ThatSendsAnotherMicroStepThanItNamesIsRefused) {
  expect(
      1, [](Schedule& s) { at(s, message(s, Lane::kSend, 0)).micro_step = 1; }, Rule::kContents,
      "sends send.x0, which holds the output of l2 in micro-step 0");
}

TEST_F(BrokenPipeline, ThatUnpacksToAnotherMicroStepIsRefused) {
  expect(
      1,
      [](Schedule& s) {
        std::swap(at(s, find(s, kUnpack, 0)).writes, at(s, find(s, kUnpack, 1)).writes);
      },
      Rule::kContents, "copies ");
}

TEST_F(BrokenPipeline, ThatSendsToTheWrongNeighbourIsRefused) {
  expect(
      1, [](Schedule& s) { at(s, message(s, Lane::kSend, 0)).peer = 0; }, Rule::kContents,
      "must be between the pipeline ranks of the layer and of the one behind it, 1 and 2");
  expect(
      1, [](Schedule& s) { at(s, message(s, Lane::kReceive, 0)).peer = 2; }, Rule::kContents,
      "must be between the pipeline ranks of the layer and of the one behind it, 0 and 1");
  expect(
      0,
      [](Schedule& s) {
        Action& a = at(s, message(s, Lane::kReceiveBack, 0));
        a.layer = 0;
      },
      Rule::kContents, "names a layer whose output stays where it is made");
}

TEST_F(BrokenPipeline, ThatCopiesBetweenTheWrongBuffersIsRefused) {
  expect(
      1,
      [](Schedule& s) {
        Action& pack = at(s, find(s, kPack));
        pack.writes[0].buffer = s.find("send.d0");
      },
      Rule::kContents, "must be between what a layer has left and a send-slot of the same role");
  expect(
      0,
      [](Schedule& s) {
        Action& pack = at(s, find(s, kPack));
        pack.reads[0].buffer = s.find("x.l0.m0");
      },
      Rule::kContents, "x.l0.m0");
  expect(
      1, [](Schedule& s) { at(s, find(s, kPack)).writes[0].adds = true; }, Rule::kContents,
      "adds where it copies");
  expect(
      1, [](Schedule& s) { at(s, find(s, kUnpack)).reads.clear(); }, Rule::kContents,
      "must read one buffer and write one");
  expect(
      1, [](Schedule& s) { at(s, message(s, Lane::kReceive, 0)).writes[0].adds = true; },
      Rule::kContents, "adds to receive.x0");
  expect(
      1,
      [](Schedule& s) {
        Action& receive = at(s, message(s, Lane::kReceive, 0));
        receive.writes[0].buffer = s.find("send.x0");
      },
      Rule::kContents, "receives to another buffer than one for messages");
  expect(
      1,
      [](Schedule& s) {
        Action& send = at(s, message(s, Lane::kSend, 0));
        send.reads[0].buffer = s.find("receive.x0");
      },
      Rule::kContents, "receive.x0");
}

TEST_F(BrokenPipeline, ThatForgetsATiedGradientIsRefused) {
  expect(
      0, [](Schedule& s) { drop(s, find(s, kAddTied)); }, Rule::kContents, "l3.l0");
  expect_with_waits(
      2, [](Schedule& s) { drop(s, message(s, Lane::kSendBack)); }, Rule::kContents,
      "the gradient for another unit of l3.l0 has not been taken");
}

TEST_F(BrokenPipeline, ThatAddsATiedGradientWronglyIsRefused) {
  const auto expect_tied = [&](const std::function<void(Schedule&, Action&)>& edit,
                               const std::string& says) {
    expect(
        0, [&](Schedule& s) { edit(s, at(s, find(s, kAddTied))); }, Rule::kContents, says);
  };
  expect_tied([](Schedule&, Action& a) { a.writes[0].adds = false; },
              "overwrites l0.gradient; it adds to it");
  expect_tied(
      [](Schedule& s, Action& a) {
        a.writes[0].buffer = s.find("l1.gradient");
        a.writes[0].unit = 1;
      },
      "receive.tied0 holds no gradient of a mirror of l1");
  expect_tied([](Schedule&, Action& a) { a.reads.clear(); }, "must read one buffer and write one");
  // Added after the norm has been taken of the sum without it.
  expect_with_waits(
      0, [](Schedule& s) { move(s, find(s, kAddTied), find(s, kAddTied) + 1); }, Rule::kContents,
      "l0");
}

TEST_F(BrokenPipeline, ThatSendsAMirrorsGradientWronglyIsRefused) {
  const auto expect_sent = [&](const std::function<void(Schedule&, Action&)>& edit,
                               const std::string& says) {
    expect(
        2, [&](Schedule& s) { edit(s, at(s, message(s, Lane::kSendBack))); }, Rule::kContents,
        says);
  };
  expect_sent([](Schedule&, Action& a) { a.peer = 1; },
              "sends the gradient of l3.l0, which is no mirror of a unit of pipeline rank 1");
  expect_sent(
      [](Schedule& s, Action& a) {
        a.reads[0].buffer = s.find("l3.gradient");
        a.reads[0].unit = 3;
      },
      "sends the gradient of l3, which is no mirror of a unit of pipeline rank 0");
  // Before the last micro-step has contributed.
  expect_with_waits(
      2,
      [](Schedule& s) {
        const int send = message(s, Lane::kSendBack);
        move(s, send, find_pass(s, kLoss, 3, 2));
      },
      Rule::kContents, "l3.l0");
}

TEST_F(BrokenPipeline, ThatSendsParametersWronglyIsRefused) {
  expect(
      0, [](Schedule& s) { at(s, message(s, Lane::kSend)).peer = 1; }, Rule::kContents,
      "pipeline rank 1 has no mirror of l0");
  expect_with_waits(
      0, [](Schedule& s) { move(s, message(s, Lane::kSend), find_of(s, kOptimizerStep, 0)); },
      Rule::kContents, "sends l0, which this step has not updated yet");
}

TEST_F(BrokenPipeline, ThatReceivesWhatIsNoMirrorsIsRefused) {
  expect(
      2,
      [](Schedule& s) {
        Action& receive = at(s, message(s, Lane::kReceive));
        receive.writes[0].buffer = s.find("l3.parameter");
        receive.writes[0].unit = 3;
      },
      Rule::kContents, "receives l3, which is no mirror of another unit");
  expect(
      2, [](Schedule& s) { at(s, message(s, Lane::kReceive)).peer = 1; }, Rule::kContents,
      "must receive the parameters of l3.l0 from the rank that updates them");
  expect(
      0, [](Schedule& s) { at(s, message(s, Lane::kReceiveBack)).peer = 1; }, Rule::kContents,
      "must receive to a buffer for messages, from the rank that has l3.l0");
  expect_with_waits(
      2, [](Schedule& s) { s.actions.push_back(at(s, message(s, Lane::kReceive))); },
      Rule::kContents, "l3.l0 was received already");
  expect_with_waits(
      2, [](Schedule& s) { drop(s, message(s, Lane::kReceive)); }, Rule::kEnd, "l3.l0");
}

// ---- Inputs that wait on the host ---------------------------------------------------------------

/// Two stages, of which the first has four layers: two micro-steps' inputs wait at a time.
PipelineChain with_inputs_on_the_host() {
  PipelineSubject subject{.name = "inputs on the host", .run = {.strategy = "no_shard"}};
  subject.layers = 5;
  subject.run.first_layers = {0, 4};
  subject.run.micro_steps = 4;
  subject.run.policy.recompute = Recompute::kFull;
  subject.run.policy.prefetch_host = 0;
  subject.run.offload_activations = true;
  return PipelineChain(subject);
}

TEST(PipelineInputs, HaveABufferForEachMicroStepThatWaitsAndNoneForLayersOfOthers) {
  const PipelineChain chain = with_inputs_on_the_host();
  const auto names = [&](std::size_t rank) {
    std::vector<std::string> found;
    for (const ScheduleBuffer& b : chain.step().ranks[rank].buffers) {
      if (b.kind == BufferKind::kInput) found.push_back(b.name);
    }
    return found;
  };
  EXPECT_EQ(names(0),
            (std::vector<std::string>{"l1.input@host", "l1.input2@host", "l2.input@host",
                                      "l2.input2@host", "l3.input@host", "l3.input2@host"}));
  EXPECT_TRUE(names(1).empty());
}

TEST(PipelineInputs, InBuffersThatDoNotFitAreRefused) {
  const auto refusal = [](const std::function<void(Schedule&)>& edit) {
    StepPlan step = with_inputs_on_the_host().step();
    edit(step.ranks[0]);
    return text_of(validate(step));
  };
  EXPECT_THAT(refusal([](Schedule& s) { buffer(s, "l1.input2@host").numel = 17; }),
              HasSubstr("l1.input2@host holds 17 elements, and l1.input@host for the same layer's "
                        "input 18"));
  EXPECT_THAT(refusal([](Schedule& s) {
                for (Action& a : s.actions) {
                  for (auto* const operands : {&a.reads, &a.writes}) {
                    for (Operand& operand : *operands) {
                      if (operand.buffer == s.find("l1.input2@host")) {
                        operand.buffer = s.find("l1.input@host");
                      }
                    }
                  }
                }
                s = synchronise(std::move(s));
              }),
              HasSubstr("overwrites l1.input@host, which is still to be copied back"));
  EXPECT_THAT(refusal([](Schedule& s) {
                for (Action& a : s.actions) {
                  for (Operand& operand : a.writes) {
                    if (operand.buffer == s.find("l1.input2@host")) {
                      operand.buffer = s.find("l2.input@host");
                    }
                  }
                }
                s = synchronise(std::move(s));
              }),
              HasSubstr("from or to another buffer than its layer's on the host"));
}

// ---- Happens-before ----------------------------------------------------------------------------

// By a second way to find out what the order of actions is, by all pairs of them.
TEST(PipelineOrder, OfEveryPlanIsThatOfAllPairsAndNeedsEachWait) {
  const std::vector<PipelineSubject> all = pipeline_subjects();
  int waits_dropped = 0;
  for (std::size_t i = 0; i < all.size(); i += runs_long_tests() ? 1 : 17) {
    SCOPED_TRACE(all[i].name);
    const PipelineChain chain(all[i]);
    for (const Schedule& schedule : chain.step().ranks) {
      const std::vector<ActionPair> conflicts = conflicts_of(schedule);
      ASSERT_TRUE(races_of(schedule, conflicts).empty());
      Schedule mutant = schedule;
      for (std::size_t a = 0; a < schedule.actions.size(); ++a) {
        for (const auto kind : {&Action::waits, &Action::previous_waits}) {
          for (std::size_t w = 0; w < (schedule.actions[a].*kind).size(); ++w) {
            auto& waits = mutant.actions[a].*kind;
            waits.erase(waits.begin() + static_cast<std::ptrdiff_t>(w));
            ++waits_dropped;
            ASSERT_FALSE(races_of(mutant, conflicts).empty())
                << describe(schedule, mutant.actions[a]);
            ASSERT_TRUE(breaks(validate(mutant), Rule::kHappensBefore))
                << describe(schedule, mutant.actions[a]);
            waits = schedule.actions[a].*kind;
          }
        }
      }
    }
  }
  EXPECT_GT(waits_dropped, 200);
}

}  // namespace
}  // namespace tessera::test::pipeline_validate_test
