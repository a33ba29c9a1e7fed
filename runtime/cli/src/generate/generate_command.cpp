#include <unistd.h>
#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>

#include "commands.h"
#include "evaluate/evaluation.h"
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

/// The messages of a chat so far.
class Conversation {
 public:
  /// `system`: what its system message says; "": it has none.
  Conversation(const ChatTemplate& chat, const std::string& system);

  /// Adds what the user says; returns the whole as the text that an assistant goes on with.
  std::string ask(const std::string& text);
  /// Adds what the assistant has said.
  void answer(const std::string& text);
  /// Leaves the system message alone.
  void reset();

 private:
  const ChatTemplate& chat_;
  nlohmann::ordered_json messages_ = nlohmann::ordered_json::array();
  std::size_t first_ = 0;  ///< messages in front of the user's first
};

struct ChatRequest {
  const ChatTemplate& chat;
  std::string system{};
  GenerateOptions sampling{};            ///< its tokens and context_length are those below
  std::int64_t tokens = 0;               ///< of an answer, at most
  std::int64_t window = 0;               ///< tokens of the conversation that the model sees
  const Tokenizer* tokenizer = nullptr;  ///< null where bytes are tokens
  std::span<const std::int32_t> ends{};  ///< tokens that end an answer
  NextLogits next_logits{};
  std::function<bool()> stopped{};  ///< the last pass was told to stop
};

/// To whoever types; in a file of answers there are answers alone.
void tell(const std::string& text) {
  std::cerr << for_reader(inspect(stderr), text, 2) << std::endl;
}

/// The next line; false at the end of the input.
bool read_line(bool is_typed, std::string& line) {
  if (is_typed) std::cout << "> " << std::flush;
  if (!std::getline(std::cin, line)) {
    if (is_typed) std::cout << std::endl;  // behind the "> "
    return false;
  }
  if (line.ends_with('\r')) line.pop_back();
  return true;
}

std::string text_of(std::span<const std::int32_t> tokens, const Tokenizer* tokenizer) {
  if (tokenizer != nullptr) return tokenizer->decode(tokens, false);
  return printable(tokens);  // templates take UTF-8
}

Conversation::Conversation(const ChatTemplate& chat, const std::string& system) : chat_(chat) {
  if (!system.empty()) messages_.push_back({{"role", "system"}, {"content", system}});
  first_ = messages_.size();
}

std::string Conversation::ask(const std::string& text) {
  messages_.push_back({{"role", "user"}, {"content", text}});
  return chat_.render(messages_, true, nullptr);
}

void Conversation::answer(const std::string& text) {
  messages_.push_back({{"role", "assistant"}, {"content", text}});
}

void Conversation::reset() {
  messages_.erase(messages_.begin() + static_cast<std::ptrdiff_t>(first_), messages_.end());
}

/// A conversation: reads a line of the standard input, writes the answer to the standard output
/// with a line break behind it, and so on. "/reset" begins anew, "/exit" and the end of the input
/// end it. Ctrl-C ends an answer; while a line is awaited, the program. The n-th answer is drawn by
/// the seed plus n - 1. Returns the exit code.
int run_chat(const ChatRequest& request) {
  const bool is_typed = isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0;
  if (is_typed) tell("/reset begins anew; /exit or Ctrl-D ends; Ctrl-C ends an answer");
  Conversation conversation(request.chat, request.system);
  GenerateOptions options = request.sampling;
  options.tokens = request.tokens;
  options.context_length = request.window;
  for (std::string line; read_line(is_typed, line) && line != "/exit";) {
    if (line.empty()) continue;
    if (line == "/reset") {
      conversation.reset();
      options.seed = request.sampling.seed;
      continue;
    }
    const std::string text = conversation.ask(line);
    const std::vector<std::int32_t> prompt =
        request.tokenizer != nullptr ? request.tokenizer->encode(text) : to_byte_tokens(text);
    const InterruptGuard interrupt;
    const Continuation answer =
        write_continuation(options, prompt, request.next_logits, request.tokenizer, request.ends,
                           std::cout, [&] { return !request.stopped(); });
    std::cout << std::endl;
    if (!std::cout.good()) return kExitGood;  // nobody reads any more
    const auto tokens = static_cast<std::int64_t>(answer.tokens.size());
    if (interrupt.signal() != 0 && interrupt.signal() != SIGINT) {
      return kExitSignal + interrupt.signal();
    }
    if (tokens == request.tokens) {
      tell(concat("note: the answer was cut off after ", counted(tokens, "token"),
                  "; --tokens N allows more"));
    }
    if (static_cast<std::int64_t>(prompt.size()) + tokens > request.window) {
      tell(concat("note: the conversation is longer than the ", request.window,
                  " tokens that the model sees: its beginning is dropped; /reset begins anew"));
    }
    conversation.answer(text_of(answer.tokens, request.tokenizer));
    ++options.seed;
  }
  return kExitGood;
}

/// Settings of training that generation has, too, and their help here; "": the same.
const std::map<std::string, std::string>& shared_settings() {
  static const std::map<std::string, std::string> helps{
      {"init",
       "the model: a checkpoint, a Hugging Face folder, or a model .bin of "
       "llm.c"},
      {"adapter", "the model's adapters: a folder as PEFT writes it"},
      {"base_format", ""},
      {"tokenizer", ""},
      {"chat_template", ""},
      {"chat_template_kwargs", ""},
      {"prompt", ""},
      {"temperature", ""},
      {"top_k", ""},
      {"top_p", ""},
      {"seed", "of the tokens that are drawn: the same seed, the same text"},
      {"ranks",
       "ranks that share the model: threads of this process, or those that a launcher starts"},
      {"strategy",
       "how parameters are spread over ranks: full_shard (each has its shard, and gathers a unit "
       "at a time), hybrid_shard (the same inside a replica), no_shard (each has all), or another "
       "of train's"},
      {"replicas", ""},
      {"pipeline", ""},
      {"pipeline_split", ""},
      {"wrap", ""},
      {"prefetch_forward", ""},
      {"precision", ""},
      {"device", ""},
      {"group", ""},
      {"attention", ""},
      {"deterministic_attention", ""},
      {"gemm_table", ""},
      {"threads_per_rank", ""},
      {"memory_limit", ""},
      {"timeout", ""},
      {"check_collectives", ""}};
  return helps;
}

struct GenerateSettings {
  std::vector<Setting> flags{};
  std::vector<Setting> other{};  ///< of training, for which a file of settings may be
};

GenerateSettings generate_settings() {
  GenerateSettings all;
  for (Setting& setting : joined({model_settings(), trainer_settings(), train_only_settings()})) {
    const auto shared = shared_settings().find(setting.name);
    if (shared == shared_settings().end()) {
      all.other.push_back(std::move(setting));
      continue;
    }
    if (!shared->second.empty()) setting.help = shared->second;
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
