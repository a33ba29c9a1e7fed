#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "commands.h"
#include "evaluate/evaluation.h"
#include "generate/chat.h"
#include "generate/sample.h"
#include "launch/same_run.h"
#include "output/terminal.h"
#include "run/interrupt.h"
#include "run/watchers.h"
#include "settings/command_line.h"
#include "settings/data_choice.h"
#include "settings/gpt_choice.h"
#include "settings/gpt_settings.h"
#include "tessera/compat/launcher.h"
#include "tessera/core/error.h"
#include "tessera/model/adapter.h"
#include "tessera/model/chat_template.h"
#include "tessera/model/generate.h"
#include "tessera/model/gpt_generation.h"
#include "tessera/model/hugging_face.h"
#include "tessera/model/tokenizer.h"
#include "tessera/trainer/session.h"
#include "tessera/trainer/trainer_settings.h"

namespace tessera::cli {
namespace {

/// Settings of training that generation has, too, with the same help.
constexpr std::array kShared{"base_format",
                             "tokenizer",
                             "chat_template",
                             "chat_template_kwargs",
                             "prompt",
                             "temperature",
                             "top_k",
                             "top_p",
                             "replicas",
                             "pipeline",
                             "pipeline_split",
                             "wrap",
                             "prefetch_forward",
                             "precision",
                             "device",
                             "group",
                             "attention",
                             "deterministic_attention",
                             "gemm_table",
                             "threads_per_rank",
                             "memory_limit",
                             "timeout",
                             "check_collectives"};

/// These have a help of their own here.
const std::map<std::string, std::string> kSharedUnderOtherHelp{
    {"init", "the model: a checkpoint, a Hugging Face folder, or a model .bin of llm.c"},
    {"adapter", "the model's adapters: a folder as PEFT writes it"},
    {"seed", "of the tokens that are drawn: the same seed, the same text"},
    {"ranks",
     "ranks that share the model: threads of this process, or those that a launcher starts"},
    {"strategy",
     "how parameters are spread over ranks: full_shard (each has its shard, and gathers a unit at "
     "a time), hybrid_shard (the same inside a replica), no_shard (each has all), or another of "
     "train's"}};

struct GenerateSettings {
  std::vector<Setting> flags{};
  std::vector<Setting> other{};  ///< of training, for which a file of settings may be
};

GenerateSettings generate_settings() {
  GenerateSettings all;
  for (Setting& setting : joined({model_settings(), trainer_settings(), train_only_settings()})) {
    const auto other_help = kSharedUnderOtherHelp.find(setting.name);
    if (other_help != kSharedUnderOtherHelp.end()) {
      setting.help = other_help->second;
    } else if (std::ranges::find(kShared, setting.name) == kShared.end()) {
      all.other.push_back(std::move(setting));
      continue;
    }
    if (setting.name == "seed") setting.group = "Sample";
    // All processes must come to the same text.
    if (setting.group == "Sample") setting.must_agree = MustAgree::kAll;
    all.flags.push_back(std::move(setting));
  }
  const std::vector<Setting> sample = in_group(
      "Sample",
      {{.name = "message",
        .help = "what a user says, instead of --prompt: the chat template renders it, and the "
                "model's answer is written"},
       flag_setting("chat",
                    "a conversation: reads lines, and writes the model's answer to each, by its "
                    "chat template; /reset begins anew, /exit or Ctrl-D ends"),
       {.name = "system", .help = "what the system message of --chat or --message says"},
       {.name = "context_tokens",
        .type = SettingType::kInteger,
        .help = "how many tokens of a conversation the model sees, the last ones [as many as it "
                "can, at most 4096]",
        .minimum = 1,
        .maximum = 1 << 24},
       {.name = "tokens",
        .type = SettingType::kInteger,
        .help = "length of the text in tokens, or of each answer of --chat; an end-of-text token "
                "ends it earlier [200; of --chat 1024]",
        .minimum = 1,
        .maximum = 1 << 20}});
  const Setting cache = flag_setting(
      "cache",
      "keep keys and values of the text, so that a token takes a pass over itself alone; false: "
      "over the whole text, whose rounding is another one",
      true);
  all.flags = joined({all.flags, sample, in_group("Machine", {cache})});
  return all;
}

/// Forward passes alone, over the whole window.
TrainerOptions generation_options(const Config& config, const PretrainedGpt& pretrained) {
  TrainerOptions options = passes_options(config);
  options.initial_parameters = [pretrained](TrainingState& state, Stream& stream) {
    pretrained.load(state, stream);
  };
  options.micro_batch = 1;
  options.evaluation_samples = options.ranks / options.pipeline.ranks;  // one pass of each
  return options;
}

/// The model of --init, with the adapters of --adapter.
PretrainedGpt open_generator(const Config& config) {
  PretrainedGpt model = open_model(config);
  if (config.is_null("adapter")) return model;
  const auto path = config.get<std::string>("adapter");
  require(has_adapter_weights(path), ErrorCode::kConfig, "--adapter '", path,
          "' has no adapter_model.safetensors, so there is nothing trained to generate with");
  return open_adapter_of(config, model);
}

/// The model as it is held, with the matrices of --base-format.
GptConfig held_model(Config& config, const PretrainedGpt& pretrained) {
  GptConfig gpt = pretrained.config();
  choose_base_format(config, gpt, pretrained.stored_format());
  require(gpt.adapter.is_set() || gpt.base_format == WeightFormat::kNone, ErrorCode::kConfig,
          "--base-format ", to_string(gpt.base_format),
          " is for the base of adapters; give them by --adapter");
  return gpt;
}

/// The template by which --message or --chat is rendered, if one is given.
std::optional<ChatTemplate> open_template(const Config& config) {
  const bool is_chat = config.get<bool>("chat");
  const char* const flag = is_chat ? "--chat" : "--message";
  if (!is_chat && config.is_null("message")) {
    require(config.is_null("system"), ErrorCode::kConfig,
            "--system begins a conversation; give --chat or --message TEXT, too");
    return std::nullopt;
  }
  require(!config.given("prompt"), ErrorCode::kConfig, "--prompt and ", flag,
          " both begin the text; give one of them");
  require(!is_chat || config.is_null("message"), ErrorCode::kConfig,
          "--chat reads messages, and --message is one; give one of them");
  const std::optional<ChatTemplateOptions> options = chat_template_of(config);
  require(
      options.has_value(), ErrorCode::kConfig, flag,
      " needs a chat template, and there is none beside --tokenizer or in the folder of --init; "
      "give --chat-template FILE");
  return ChatTemplate(*options);
}

/// Positions that the cache, and a pass over a whole text, have room for.
std::int64_t window_of(const Config& config, const GptConfig& gpt, std::int64_t prompt) {
  constexpr std::int64_t kMostOfChat = 4096;
  const std::int64_t most = gpt.context_length - gpt.adapter.prompt_tokens();
  if (!config.get<bool>("chat")) {
    const auto tokens = config.get<std::int64_t>("tokens");
    return std::clamp<std::int64_t>(prompt + tokens - 1, 1, most);
  }
  if (config.is_null("context_tokens")) return std::min(most, kMostOfChat);
  const auto wanted = config.get<std::int64_t>("context_tokens");
  require(wanted <= most, ErrorCode::kConfig, "--context-tokens ", wanted,
          " is more than this model takes, ", most);
  return wanted;
}

/// Prints notes that the user should see before the first token.
void print_notes(const Config& config, const PretrainedGpt& pretrained, const GptConfig& held,
                 std::int64_t text_tokens, std::int64_t window) {
  const std::string decoding =
      describe_decoding(held, pretrained, config.get<std::string>("precision"));
  if (!decoding.empty()) print_note(concat("'", pretrained.path(), "': ", decoding));
  if (text_tokens <= window) return;
  print_note(concat("prompt and text may be ", text_tokens, " tokens, and the model sees the last ",
                    window, ": once there are more, each token takes a pass over all of those"));
}

/// After a pass whose last stage some processes have: gives all of them its logits. Returns whether
/// any process asks to stop.
bool share_pass(Session& session, GptGeneration& gpt, bool stop) {
  std::string own(1, stop ? '1' : '0');
  if (gpt.has_logits()) {
    const auto bytes = std::as_bytes(gpt.logits());
    own.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  bool stopped = false;
  for (const std::string& given : session.exchange(own)) {
    stopped = stopped || given.front() == '1';
    if (given.size() == 1 || gpt.has_logits()) continue;
    std::vector<float> logits((given.size() - 1) / sizeof(float));
    std::memcpy(logits.data(), given.data() + 1, given.size() - 1);
    gpt.set_logits(logits);
  }
  return stopped;
}

int run_generate(Config config, const Launcher& launcher) {
  require(!config.is_null("init"), ErrorCode::kConfig,
          "no model to generate with: give --init a checkpoint, a Hugging Face folder or a model "
          ".bin of llm.c");
  const PretrainedGpt pretrained = open_generator(config);
  const TokenizerChoice text =
      choose_tokenizer(config, pretrained.config().vocab_size, &pretrained);
  require(text.no_text.empty(), ErrorCode::kConfig, text.no_text);
  const Tokenizer* const tokenizer = text.tokenizer ? &*text.tokenizer : nullptr;
  if (tokenizer != nullptr) config.set_effective("tokenizer", text.path);
  const bool is_chat = config.get<bool>("chat");
  if (config.is_null("tokens")) config.set_effective("tokens", is_chat ? 1024 : 200);
  const auto tokens = config.get<std::int64_t>("tokens");
  std::vector<std::int32_t> ends = end_tokens_of(pretrained.path());
  if (text.end_token) ends.push_back(*text.end_token);
  const std::optional<ChatTemplate> chat = open_template(config);
  PromptKind kind = PromptKind::kWithSpecialTokens;
  if (chat) {
    kind = PromptKind::kChat;
    const auto id =
        tokenizer == nullptr ? std::nullopt : tokenizer->id_of(chat->special_token("eos_token"));
    if (id) ends.push_back(*id);
    if (!is_chat) {
      Conversation conversation(*chat, config.text("system"));
      config.set_effective("prompt", conversation.ask(config.get<std::string>("message")));
    }
  }
  const auto prompt = static_cast<std::int64_t>(prompt_tokens(config, tokenizer, kind).size());
  const GptConfig held = held_model(config, pretrained);
  const bool caches = config.get<bool>("cache") && held.head_width_used() <= kMaxHeadWidth;
  GptGeneration gpt(held, window_of(config, pretrained.config(), prompt),
                    caches ? GptGeneration::Cache::kKeysAndValues : GptGeneration::Cache::kNone);
  TrainerOptions options = generation_options(config, pretrained);
  join_world(launcher, config, options);
  require(!is_chat || options.world == nullptr || options.world->processes() == 1,
          ErrorCode::kConfig,
          "--chat reads lines in one process; leave out the launcher, --ranks N takes threads of "
          "this process");
  require_same_run(config, options, pretrained.identity());
  std::optional<InterruptGuard> guard(std::in_place);
  const InterruptGuard& interrupt = *guard;
  if (launcher.process == 0) {
    print_notes(config, pretrained, held, is_chat ? 0 : prompt + tokens - 1, gpt.window());
  }
  options.host_work = interruptible_work();
  std::optional<Session> session;
  try {
    session.emplace(gpt.model(), gpt, options, &gpt);
  } catch (const Error& error) {
    if (!is_ended_start(error, *options.host_work)) throw;
    return kExitSignal + interrupt.signal();
  }
  bool stopped = false;
  const bool is_shared =
      options.pipeline.ranks > 1 && options.world != nullptr && options.world->processes() > 1;
  const auto next_logits = [&](std::span<const std::int32_t> context) {
    const bool stop = received_signal() != 0 || !std::cout.good();
    gpt.set_context(context, stop);
    stopped = session->evaluate().loss > 0.0;
    if (is_shared) stopped = share_pass(*session, gpt, stop);
    return gpt.logits();
  };
  if (is_chat) {
    if (interrupt.signal() != 0) return kExitSignal + interrupt.signal();
    guard.reset();  // whoever types ends the program by Ctrl-C, an answer by the same
    return run_chat({.chat = *chat,
                     .system = config.text("system"),
                     .sampling = sampling_options(config),
                     .tokens = tokens,
                     .window = gpt.window(),
                     .tokenizer = tokenizer,
                     .ends = ends,
                     .next_logits = next_logits,
                     .stopped = [&] { return stopped; }});
  }
  std::ostream nowhere(nullptr);
  write_text(config, next_logits, tokenizer, kind, ends,
             {.tokens = tokens, .context = gpt.window()},
             launcher.process == 0 ? std::cout : nowhere, [&] { return !stopped; });
  if (launcher.process == 0) std::cout << std::endl;
  return interrupt.signal() != 0 ? kExitSignal + interrupt.signal() : kExitGood;
}

}  // namespace

std::shared_ptr<SettingsCommand> add_generate_flags(CLI::App& app) {
  const GenerateSettings settings = generate_settings();
  return std::make_shared<SettingsCommand>(app, settings.flags, settings.other);
}

std::function<int()> add_generate(CLI::App& app) {
  const auto command = add_generate_flags(app);
  return [command] {
    const Launcher launcher = find_launcher(std::getenv);
    Config config = command->config(facts_of(launcher));
    adopt_launcher(launcher, config);
    return run_generate(std::move(config), launcher);
  };
}

}  // namespace tessera::cli
