#include "questionnaire_rows.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "tessera/compat/config_file.h"
#include "tessera/compat/questionnaire.h"
#include "tessera/core/error.h"
#include "tessera/core/text.h"
#include "tessera/trainer/trainer_options.h"

namespace tessera::questionnaire {

using nlohmann::json;

namespace {

std::int64_t number(const Answers& answers, const char* key) {
  return answer_or(answers, key, 1).get<std::int64_t>();
}

bool is_sharded(const Answers& answers) {
  return is(kUseFsdp, true)(answers) || is(kUseDeepSpeed, true)(answers);
}

/// "The mesh of 2 x 4 has 8 ranks"
std::string describe_mesh(std::int64_t replicas, std::int64_t shard) {
  return concat("The mesh of ", replicas, " x ", shard, " has ", replicas * shard, " ranks");
}

}  // namespace

Condition is(const char* key, json value) {
  return [key, value = std::move(value)](const Answers& answers) {
    return answer_or(answers, key, json()) == value;
  };
}

Condition is_other(const char* key, json value) {
  return [key, value = std::move(value)](const Answers& answers) {
    return answers.contains(key) && answers.find(key)->second != value;
  };
}

Condition both(Condition first, Condition second) {
  return [first = std::move(first), second = std::move(second)](const Answers& answers) {
    return first(answers) && second(answers);
  };
}

Question yes_or_no(const char* key, const char* text, bool fallback, Condition asked_if) {
  return {.key = key,
          .text = text,
          .kind = AnswerKind::kYesNo,
          .fallback = fallback,
          .asked_if = std::move(asked_if)};
}

Question menu(const char* key, const char* text, std::initializer_list<const char*> names,
              Condition asked_if) {
  std::vector<Choice> choices;
  for (const char* name : names) choices.push_back({name, name});
  return {.key = key,
          .text = text,
          .kind = AnswerKind::kMenu,
          .choices = std::move(choices),
          .fallback = *names.begin(),
          .asked_if = std::move(asked_if)};
}

std::string check_is_file(const json& path, const Answers&) {
  std::error_code error;
  const std::string name = path;
  if (std::filesystem::is_regular_file(name, error)) return "";
  return concat("There is no file '", name, "'; enter a path that is there.");
}

std::string check_layer_names(const json& answer, const Answers&) {
  const std::vector<std::string> known = block_class_names();
  for (std::string name : split_text(answer.get<std::string>(), ',')) {
    std::erase(name, ' ');
    if (std::ranges::find(known, name) == known.end()) {
      return concat("There is no layer class '", name, "' here; a layer is called ", joined(known),
                    ".");
    }
  }
  return "";
}

std::string check_shard_size(const json& size, const Answers& answers) {
  const std::int64_t replicas = number(answers, kReplicate);
  const auto shard = size.get<std::int64_t>();
  const std::int64_t machines = number(answers, kNumMachines);
  if (replicas * shard > kMaxRanks) {
    return concat(describe_mesh(replicas, shard), ", more than ", kMaxRanks, ".");
  }
  if (replicas * shard == 1 || replicas * shard % machines == 0) return "";
  return concat(describe_mesh(replicas, shard), ", which ", machines,
                " machines cannot share evenly.");
}

std::string check_processes(const json& answer, const Answers& answers) {
  const auto processes = answer.get<std::int64_t>();
  const std::int64_t machines = number(answers, kNumMachines);
  if (processes == 1 && !is_sharded(answers)) {
    return "Distributed training needs at least 2; for one process, start again and choose 'No "
           "distributed training'.";
  }
  if (processes % machines != 0) {
    return concat("It must be a multiple of ", machines, ", the number of machines.");
  }
  const std::int64_t replicas = number(answers, kReplicate);
  const std::int64_t shard = number(answers, kShard);
  if (replicas * shard == 1 || processes == replicas * shard) return "";
  return concat(describe_mesh(replicas, shard), "; enter ", replicas * shard,
                ", or start again for another mesh.");
}

std::string check_gpu_ids(const json& ids, const Answers& answers) {
  const std::string list = ids;
  if (const std::string problem = problem_of_gpu_ids(list); !problem.empty()) {
    return concat("Please enter 'all', or ids such as 0,1: ", problem, ".");
  }
  const std::int64_t processes = number(answers, "num_processes") / number(answers, kNumMachines);
  const std::int64_t gpus = std::ranges::count(list, ',') + 1;
  if (list == "all" || gpus >= processes) return "";
  return concat("That is ", gpus, gpus == 1 ? " GPU" : " GPUs", " for ", processes,
                " processes on this machine; name one for each, or enter 'all'.");
}

std::int64_t default_processes(const MachineFacts& machine, const Answers& answers) {
  if (const std::int64_t mesh = number(answers, kReplicate) * number(answers, kShard); mesh > 1) {
    return mesh;
  }
  const json type = answer_or(answers, kMachineType, "NO");
  if (type == json("NO")) return 1;
  const std::int64_t least = type == json("MULTI_GPU") && is_sharded(answers) ? 1 : 2;
  // On a CPU more ranks only share its cores: two are the fewest that are distributed.
  const std::int64_t here = type == json("MULTI_GPU") ? machine.gpus : 2;
  return std::max(here, least) * number(answers, kNumMachines);
}

std::int64_t default_shard_size(const MachineFacts& machine, const Answers& answers) {
  Answers without_mesh = answers;
  without_mesh.erase(kReplicate);
  return std::max<std::int64_t>(
      1, default_processes(machine, without_mesh) / number(answers, kReplicate));
}

}  // namespace tessera::questionnaire
