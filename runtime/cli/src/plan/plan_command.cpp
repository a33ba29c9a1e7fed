#include <algorithm>
#include <array>
#include <cstdio>
#include <iostream>
#include <memory>
#include <optional>

#include "commands.h"
#include "output/run_report.h"
#include "output/terminal.h"
#include "output/text_output.h"
#include "plan/planned_run.h"
#include "settings/command_line.h"
#include "settings/gpt_settings.h"
#include "settings/option_names.h"
#include "settings/sweep.h"
#include "tessera/sharding/account.h"
#include "tessera/sharding/gradient_sums.h"
#include "tessera/sharding/groups.h"
#include "tessera/sharding/passes.h"
#include "tessera/sharding/pipeline_csv.h"
#include "tessera/trainer/byte_size.h"
#include "tessera/trainer/gpu_overhead.h"
#include "tessera/trainer/log.h"
#include "tessera/trainer/same_bits.h"
#include "tessera/trainer/trainer_settings.h"
#include "tessera/trainer/training_plan.h"

namespace tessera::cli {
namespace {

// The shown lines of a long schedule: enough to see how forward gets going and how the step ends.
constexpr std::size_t kShownFirst = 24;
constexpr std::size_t kShownLast = 16;

std::string action_line(const Schedule& schedule, std::size_t index) {
  const Action& action = schedule.actions[index];
  std::string line = std::to_string(index);
  line.insert(0, line.size() < 6 ? 6 - line.size() : 0, ' ');
  std::string lane(to_string(action.lane));
  lane.resize(std::max<std::size_t>(lane.size(), 8), ' ');
  line += "  " + lane + "  " + describe(schedule, action);
  for (std::size_t i = 0; i < action.waits.size(); ++i) {
    line += (i == 0 ? "  | after " : ", ") + std::to_string(action.waits[i]);
  }
  for (std::size_t i = 0; i < action.previous_waits.size(); ++i) {
    const std::string first = action.waits.empty() ? "  | after " : " and ";
    line +=
        (i == 0 ? first + "the previous step's " : ", ") + std::to_string(action.previous_waits[i]);
  }
  return line;
}

void print_actions(std::ostream& out, const Schedule& schedule, bool all) {
  const std::size_t count = schedule.actions.size();
  const bool elide = !all && count > kShownFirst + kShownLast + 1;
  for (std::size_t i = 0; i < count; ++i) {
    if (elide && i == kShownFirst) {
      const std::size_t skipped = count - kShownFirst - kShownLast;
      out << "        ... " << skipped << " more actions; --actions shows all ...\n";
      i += skipped;
    }
    print_line(stdout, action_line(schedule, i), 20);
  }
}

void print_header(std::ostream& out, const TrainingPlan& plan) {
  out << describe_model(plan) << "\n";
  print_paragraph(out, describe_ranks(plan.options), 2);
  print_paragraph(out, "schedule  " + describe_shape(plan.schedule()), 10);
}

std::string hex(std::uint64_t number) {
  std::array<char, 17> text{};
  std::snprintf(text.data(), text.size(), "%016llx", static_cast<unsigned long long>(number));
  return text.data();
}

/// The terms with `g` for the layer, if the part has one only.
std::string short_terms(const Schedule& schedule, const GradientSum& sum) {
  for (const ScheduleUnit& unit : schedule.units) {
    for (const ScheduleFlat& flat : unit.flats) {
      for (const GradientPart& part : flat.parts) {
        if (unit.name != sum.unit || part.name != sum.part || part.layers.size() != 1) continue;
        const std::string& layer =
            schedule.layers[static_cast<std::size_t>(part.layers.front())].name;
        std::string terms = sum.terms;
        for (auto at = terms.find(layer); at != terms.npos; at = terms.find(layer, at + 1)) {
          terms.replace(at, layer.size(), "g");
        }
        return terms;
      }
    }
  }
  return sum.terms;
}

/// The sums of gradients in their short form: parts that are added up alike are one line, in which
/// `g` is the contribution of the part's own layer.
void print_sums(std::ostream& out, const TrainingPlan& plan) {
  struct Line {
    std::string example;
    std::int64_t parts = 0, tensors = 0;
  };
  const std::vector<GradientSum> sums = gradient_sums(plan.step);
  std::vector<std::pair<std::string, Line>> lines;
  for (const GradientSum& sum : sums) {
    const std::string terms = short_terms(plan.schedule(), sum);
    auto line = std::ranges::find(lines, terms, &std::pair<std::string, Line>::first);
    if (line == lines.end()) line = lines.insert(lines.end(), {terms, {.example = sum.part}});
    ++line->second.parts;
    line->second.tensors += sum.tensors;
  }
  out << "gradients are added up as (hash " << hex(hash_of(sums)) << ")\n";
  for (const auto& [terms, line] : lines) {
    out << wrapped(concat("  ", terms), kColumns, 6) << "\n      "
        << counted(line.tensors, "tensor") << " (" << line.example
        << (line.tensors > 1 ? ", ..." : "") << ")\n";
  }
  print_paragraph(
      out,
      "where s0, s1, ... are the contributions of the step's samples: of its "
      "micro-batches in order, of all ranks; a..b adds those from a to b one after the "
      "other, and a..b/n each n-th of them; (...) xk/n adds k such sums, each n samples "
      "further on; g stands for the tensor's own layer, x+y for what two layers "
      "contribute to a sample; bf16(...) rounds. Strategies with the same bits add in "
      "the same way, others do not");
  const BitsByStrategy bits = compare_bits(plan.inputs.model, plan.options);
  print_paragraph(out, "same bits  " + tessera::joined(bits.same), 11);
  if (!bits.others.empty()) {
    print_paragraph(out, "others     " + tessera::joined(bits.others), 11);
  }
}

}  // namespace

std::vector<Setting> plan_only_settings() {
  std::vector<std::string> passes, summaries;
  for (const PlanPass& pass : plan_passes()) {
    passes.emplace_back(pass.name);
    summaries.push_back(concat(pass.name, ": ", pass.summary));
  }
  return in_group(
      "Output", MustAgree::kNone,
      {
          {.name = "format",
           .fallback = "text",
           .help =
               "text: words; summary: without the actions; schedule: the schedule alone, as it can "
               "be parsed again; pipeline-csv: the passes of all pipeline ranks, as "
               "--pipeline-schedule reads them; json",
           .choices = {"text", "summary", "schedule", "pipeline-csv", "json"}},
          {.name = "after",
           .help = "show the schedule as it is after this pass of planning, as --format schedule "
                   "does (" +
                   tessera::joined(summaries, "; ") + ")",
           .choices = passes},
          {.name = "sweep",
           .fallback = "",
           .help = "print the memory of every combination instead: --sweep \"ranks=8,64 "
                   "strategy=zero2,full_shard\"; any setting of the run can be swept"},
          flag_setting("actions", "show all actions, however many"),
          flag_setting(
              "sums",
              "show how gradients are added up, with every rounding, and which strategies add "
              "alike: those give the same bits"),
      });
}

namespace {

/// A line for each combination of --sweep.
int print_sweep(const Config& config, const std::vector<Swept>& sweep) {
  std::vector<std::string> heading;
  for (const Swept& swept : sweep) heading.push_back(swept.name);
  for (const char* const column : {"mesh", "device", "host", "disk"}) heading.emplace_back(column);
  TextTable table(heading);
  const bool with_stages = config.get<std::int64_t>("pipeline") > 1 ||
                           std::ranges::find(sweep, "pipeline", &Swept::name) != sweep.end();
  auto runs = nlohmann::ordered_json::array();
  const auto use = [&](Config own, std::vector<std::string> row) {
    const PlannedRun run(own, [](TrainerOptions&, const RunInputs&) {});
    const Mesh mesh = mesh_of(run.plan.options);
    nlohmann::ordered_json json = nlohmann::ordered_json::object();
    for (std::size_t i = 0; i < sweep.size(); ++i) json[sweep[i].name] = row[i];
    json.update({{"peak_bytes", to_json(run.plan.memory)},
                 {"device_bytes", device_bytes(run.plan)},
                 {"host_bytes", run.plan.host_memory.total},
                 {"disk_bytes", run.plan.disk_bytes}});
    runs.push_back(std::move(json));
    row.insert(row.end(),
               {describe_mesh(mesh, with_stages), format_bytes(device_bytes(run.plan)),
                format_bytes(run.plan.host_memory.total), format_bytes(run.plan.disk_bytes)});
    table.add(std::move(row));
  };
  const std::vector<LeftOut> left_out = each_combination(config, sweep, use);
  note_left_out(left_out, runs.empty(), "planned");
  if (config.get<std::string>("format") == "json") {
    write_json(std::cout, {{"kind", "plans"}, {"runs", runs}});
  } else {
    table.print(std::cout);
  }
  return kExitGood;
}

int run_plan(Config config) {
  const std::vector<Swept> sweep =
      parse_sweep(config.get<std::string>("sweep"), config.table(), "plan");
  if (!sweep.empty()) return print_sweep(config, sweep);
  const FittedPlan fitted = plan_fitted(config);
  const std::optional<FitRequest>& request = fitted.request;
  const std::optional<FitChoice>& fit = fitted.choice;
  if (request) note_noise(request->cluster.profile);
  const TrainingPlan& plan = fitted.run->plan;
  const TrainerOptions& options = plan.options;
  for (const std::string& note : plan.notes) print_note(note);
  if (options.memory_limit_bytes > 0 && plan.memory.total > options.memory_limit_bytes) {
    print_note(concat("each rank needs ", format_bytes(device_bytes(plan)),
                      ", more than its limit of ", format_bytes(options.memory_limit_bytes),
                      ": training will refuse this"));
  }
  if (config.get<bool>("sums")) {
    print_sums(std::cout, plan);
    return kExitGood;
  }
  std::ostream& out = std::cout;
  if (!config.is_null("after")) {
    const PlanOptions planned = plan_options(plan.options, plan.inputs, plan.layout);
    out << to_string(plan_step(plan.layout, planned, config.get<std::string>("after")));
    return kExitGood;
  }
  const auto format = config.get<std::string>("format");
  if (format == "json") {
    write_json(out, to_json(config, fitted));
  } else if (format == "schedule") {
    out << to_string(plan.step);
  } else if (format == "pipeline-csv") {
    out << pipeline_csv(plan.schedule());
  } else {
    if (fit) {
      print_fit(out, *fit, *request);
      out << "\n";
    }
    print_header(out, plan);
    if (format == "text") {
      for (const Schedule& schedule : plan.step.ranks) {
        out << "\n";
        if (plan.stages.size() > 1) {
          out << rank_in_words(schedule, schedule.pipeline.rank) << "\n";
        }
        print_actions(out, schedule, config.get<bool>("actions"));
      }
    }
    out << "\n";
    print_stages(out, plan);
    print_memory(out, plan);
    print_gpu_overhead(out, plan);
    out << "\n";
    print_traffic(out, plan.traffic);
    if (const std::int64_t bytes = account_gradient_sums(plan.schedule()); bytes > 0) {
      out << "\n";
      print_paragraph(out, concat("Adding up the gradients of micro-steps moves ",
                                  format_bytes(bytes), " within a rank's memory per step."));
    }
  }
  return kExitGood;
}

}  // namespace

std::vector<Setting> plan_settings() {
  return joined({model_settings(), trainer_settings(), fit_settings(), plan_only_settings()});
}

std::function<int()> add_plan(CLI::App& app) {
  std::vector<Setting> of_train = train_only_settings();
  std::erase_if(of_train, [](const Setting& setting) {
    return find_setting(fit_settings(), setting.name) != nullptr;
  });
  const auto command = std::make_shared<SettingsCommand>(app, plan_settings(), of_train);
  return [command] {
    Config config = command->config(kForAnyMachine);
    print_announcements(config);
    return run_plan(std::move(config));
  };
}

}  // namespace tessera::cli
