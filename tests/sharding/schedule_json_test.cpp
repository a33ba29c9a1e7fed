#include "tessera/sharding/schedule_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sharding/schedule_edits.h"
#include "tessera/kernels/exact_sum.h"
#include "tessera/kernels/layer_arguments.h"

namespace tessera {
namespace {

using namespace test;  // NOLINT: plans
using Json = nlohmann::ordered_json;
using ::testing::HasSubstr;

/// Through text and back, as a file would.
Schedule through_json(const Schedule& schedule) {
  return schedule_from_json(Json::parse(to_json(schedule).dump()));
}

TEST(ScheduleJson, ReadsBackEveryPlan) {
  for_each_plan(
      [](const Schedule& s, const std::string& what) {
        ASSERT_EQ(through_json(s), s) << what << '\n' << to_json(s).dump(1);
      },
      5);
}

TEST(ScheduleJson, ReadsBackAnEvaluation) {
  const Strategy& strategy = find_strategy("hybrid_shard");
  const Schedule s = plan(small_layout(4), {.purpose = Purpose::kEvaluate,
                                            .mesh = grid(2, 2),
                                            .placement = strategy.placement,
                                            .parameter_dtype = DType::kBFloat16});
  EXPECT_EQ(through_json(s), s);
}

TEST(ScheduleJson, ReadsBackCountedClasses) {
  for (const bool batch : {true, false}) {
    ModelLayout layout = small_layout(2);
    layout.layers.back().counted_classes = 3;
    layout.layers.back().reads_batch = batch;
    for (const bool splits : {false, true}) {
      const Schedule s = plan(layout, {.purpose = Purpose::kEvaluate,
                                       .mesh = grid(1, 2),
                                       .placement = find_strategy("zero2").placement,
                                       .policy = {.split_backward = splits}});
      EXPECT_EQ(s.layers.back().counted_classes, 3);
      EXPECT_EQ(through_json(s), s);
      const int loss = s.find(BufferKind::kLoss);
      EXPECT_EQ(s.buffers.at(static_cast<std::size_t>(loss)).numel, kExactSumWords + hit_words(3));
      std::string text = to_string(s);
      const std::string known = "classes 3";
      text.replace(text.find(known), known.size(), "classes 0");
      EXPECT_THROW(parse_schedule(text), Error);
    }
  }
}

TEST(ScheduleJson, ReadsBackAnyName) {
  ModelLayout layout = small_layout(2);
  const char* const names[] = {"-", "two words\n", "", "+a=b/shard \\2d \"quoted\"", "größe"};
  for (std::size_t i = 0; i < layout.units.size(); ++i) {
    layout.units[i].name = layout.layers[i].name = names[i];
    layout.units[i].flats[0].tensors[0].spec.name = names[i];
  }
  const Strategy& strategy = find_strategy("full_shard");
  const Schedule s = plan(layout, {.mesh = grid(1, 2), .placement = strategy.placement});
  EXPECT_EQ(through_json(s), s) << to_json(s).dump(1);
}

TEST(ScheduleJson, NamesFieldsAndOperands) {
  const Json json = to_json(planned("zero1", grid(1, 2)));
  EXPECT_EQ(json["purpose"], "train");
  EXPECT_EQ(json["mesh"]["shard"], 2);
  EXPECT_EQ(json["placement"]["optimizer"], "shard");
  EXPECT_EQ(json["units"][2]["flats"][1]["numel"], 2 * frozen_per_rank(2));
  EXPECT_EQ(json["units"][0]["flats"][0]["parts"][0]["layers"], Json({"head", "embedding"}));
  EXPECT_EQ(json["layers"][4]["forward_reads"], Json({"head", "embedding"}));
  EXPECT_EQ(json["layers"][4]["reads_batch"], true);
  EXPECT_EQ(json["layers"][3]["reads_batch"], false);
  EXPECT_EQ(json["buffers"][0]["name"], "embedding.parameter");
  EXPECT_EQ(json["buffers"][0]["persistent"], true);
  EXPECT_EQ(json["actions"][0], (Json{{"lane", "reduce"},
                                      {"operation", "count-tokens"},
                                      {"reads", Json::array()},
                                      {"writes", {"tokens", "loss", "norm"}},
                                      {"after", Json::array()},
                                      {"previous", Json::array()}}));
  EXPECT_EQ(json["actions"].back(), (Json{{"lane", "gather"},
                                          {"operation", "all-gather"},
                                          {"over", "shard"},
                                          {"reads", {"head.parameter/shard"}},
                                          {"writes", {"head.parameter"}},
                                          {"after", {json["actions"].size() - 2}},
                                          {"previous", Json::array()}}));
}

TEST(ScheduleJson, RefusesWhatIsNoSchedule) {
  const Json good = to_json(planned("full_shard", grid(1, 2)));
  const auto expect = [&](const std::function<void(Json&)>& change, const std::string& says) {
    Json json = good;
    change(json);
    try {
      schedule_from_json(json);
      ADD_FAILURE() << "accepted; wanted " << says;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kConfig);
      EXPECT_THAT(error.what(), HasSubstr(says));
    }
  };
  expect([](Json& j) { j = Json::array(); }, "the JSON is no schedule");
  expect([](Json& j) { j.erase("mesh"); }, "'mesh' not found");
  expect([](Json& j) { j["mesh"] = 3; }, "the JSON is no schedule");
  expect([](Json& j) { j["micro_steps"] = 1.5; }, "1.5 is no name, number or list");
  expect([](Json& j) { j["micro_steps"] = -1; }, "'-1' is not a number of at least 0");
  expect([](Json& j) { j["purpose"] = "train hard"; }, "'train hard' is not one word");
  expect([](Json& j) { j["buffers"][0]["persistent"] = "yes"; }, "the JSON is no schedule");
  expect([](Json& j) { j["actions"][1]["operation"] = "all-together"; },
         "unknown operation 'all-together'");
  expect([](Json& j) { j["actions"][1]["reads"][0] = "h.9.parameter"; },
         "there is no buffer 'h.9.parameter'");
  expect([](Json& j) { j["actions"][1]["reads"][0] = "p0 -> p0"; }, "is not one word");
  expect([](Json& j) { j["layers"][0]["forward_reads"][0] = "h.9"; }, "there is no unit 'h.9'");
}

}  // namespace
}  // namespace tessera
