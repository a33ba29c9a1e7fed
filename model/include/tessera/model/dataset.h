#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/autograd/layer.h"
#include "tessera/model/chat_template.h"
#include "tessera/model/sample_order.h"
#include "tessera/model/token_masking.h"
#include "tessera/model/tokenizer.h"

namespace tessera {

namespace data {
class ExampleSource;
class TokenStream;
}  // namespace data

enum class DataKind : std::uint8_t {
  kAuto,    ///< token files by their name (.bin) or header, examples by theirs (.jsonl), else text
  kText,    ///< every byte is a token, vocabulary of 256, or what a tokenizer makes of it
  kTokens,  ///< token ids made by another program
  kExamples,  ///< JSONL: prompts with completions, or texts, a sample each
};

/// "auto", "text", "tokens", "examples".
std::string_view to_string(DataKind kind);
/// Inverse of to_string. Throws Error{kConfig} naming the choices.
DataKind parse_data_kind(std::string_view name);

struct DatasetOptions {
  /// A file, a folder, or a pattern with * ? [ ] that names files.
  /// Text: a folder is searched to its depths for files that look like text, leaving out hidden
  /// ones and build output (folders build, build-*, build_*, cmake-build-*, out). Files follow each
  /// other in bytewise order of their paths, with one newline put between any two.
  /// Tokens: little-endian uint16 without a header (nanoGPT), or with llm.c's header (uint16 or
  /// uint32); a recognisable file of another program is refused. In a folder, its .bin
  /// files in bytewise order; nothing is put between them.
  /// Examples: files (.jsonl) with a JSON object in each line, {"prompt": "...", "completion":
  /// "..."}, {"text": "..."} or {"messages": [{"role": "...", "content": "..."}, ...]}, or tables
  /// (.parquet, .arrow, .feather) with such columns, where Arrow was found when this was built; of
  /// a folder its own files, in bytewise order. A sample is one example, with what the tokenizer
  /// puts in front of a text and `end_token` behind it, or as `chat_template` renders messages;
  /// longer ones are cut off at the end. Targets are the completion's tokens, all of a text, or
  /// what assistants have written (ChatTemplate::chat). Prompts and completions may be messages,
  /// too.
  std::string path;
  DataKind kind = DataKind::kAuto;
  std::int64_t sequence_length = 256;
  std::uint64_t seed = 0;            ///< of the order in which samples are read
  bool shuffle = true;               ///< false: samples are read in the order of the stream
  double validation_fraction = 0.0;  ///< the last part of the stream, held out; in [0, 1)
  std::int64_t vocab_size = 0;       ///< `fill` rejects tokens that are not below it; 0: any
  std::int64_t max_file_bytes = std::int64_t{4}
                                << 30;  ///< larger text files of a folder are left out
  /// Examples of files that are larger in all are tokenised when samples are read: in memory is
  /// where every 16 KiB of them begin. Lines are then found to be malformed by `fill`, an example
  /// without a target has the next one in its place, and counts are estimates.
  std::int64_t held_bytes = std::int64_t{256} << 20;
  /// Text is tokenised when it is opened and held in memory, 4 bytes a token; at most 1 GiB of text
  /// (`tokenize` writes larger ones to a file). Its end-of-text token, or a newline's if it has
  /// none, is put between files.
  std::optional<Tokenizer> tokenizer{};
  /// Without a tokenizer: why text is not read byte by byte, for an error; "": it is.
  std::string no_text{};
  /// Not empty: examples are texts to classify, {"text": ..., "label": ...} (or "sentence",
  /// "labels"), whose labels are these names or their numbers, from 0 on. The one target of an
  /// example is its label, at its last token; no end token is put behind it. Of longer ones the
  /// first tokens are taken, and what the tokenizer puts behind a text.
  std::vector<std::string> labels{};
  /// For an encoder: an example's label is the target of its first token instead, and samples say
  /// where documents begin also if they are not packed, for padding is a document of its own.
  bool encoder = false;
  /// Set: tokens are hidden, and they are the targets, each at its own place. A sample of a stream
  /// is tokens with what TokenMasking puts around them, and shares none with the next; examples are
  /// texts, of which longer ones are cut as those to classify. Not beside `labels`.
  std::optional<TokenMasking> masking{};
  /// Ends an example; unset: the tokenizer's end-of-text token. Bytes have none.
  std::optional<std::int32_t> end_token{};
  /// The template of examples that are messages; opened where there are some.
  std::optional<ChatTemplateOptions> chat_template{};
  /// A sample holds as many examples as fit, one behind the other, each a document of its own
  /// (see `make_gpt`). Which go together is decided once, by best fit: from the longest example to
  /// the shortest, each goes where it leaves the least room. Of more than `held_bytes` some
  /// thousand examples at a time, in the epoch's order, are packed into 64 samples; the few that
  /// do not fit are left out of that epoch.
  bool packing = false;
};

/// The counts of files of examples. `samples` have `positions` in all, of which as many as
/// `filled` hold tokens and the others padding; packing would make, or has made, `packed_samples`.
struct ExampleCounts {
  std::int64_t examples = 0, tokens = 0, targets = 0;
  std::int64_t samples = 0, positions = 0, filled = 0, packed_samples = 0;
  /// Put behind each example that does not end with it; none of chats, which end as their template
  /// has it.
  std::optional<std::int32_t> end_token{};
  /// Tokens, targets, filled and packed samples are what some of the examples make of all: the
  /// files have more than DatasetOptions::held_bytes.
  bool estimated = false;
};

/// Language modelling on a stream of tokens, or on examples of their own.
///
/// The stream is divided into samples of sequence_length + 1 tokens that overlap by one: inputs are
/// the first sequence_length of them, targets the last (but of masks: see DatasetOptions::masking).
/// Tokens left over at the end are not used. Sample i of the endless sequence is entry i %
/// samples_per_epoch() of epoch i / samples_per_epoch(), whoever asks for it. Copies share the
/// files, which are mapped into memory and must not change.
class TokenDataset : public BatchSource {
 public:
  /// Opens the files and stands for the training part.
  /// Throws Error{kNotFound}, Error{kIo} or Error{kConfig} naming the file and the remedy.
  explicit TokenDataset(DatasetOptions options);

  /// The held-out part, over the same files. Shares no token with the training part.
  /// Throws Error{kConfig} if validation_fraction is 0 or leaves less than one sample.
  TokenDataset validation() const;

  Shape input_shape(std::int64_t micro_batch) const override;  // (B, L), or (2, B, L): has_starts()
  DType input_dtype() const override { return DType::kInt32; }
  Shape target_shape(std::int64_t micro_batch) const override;  // (B, L)
  DType target_dtype() const override { return DType::kInt32; }
  /// Throws Error{kConfig} on a token outside of DatasetOptions::vocab_size and on a malformed
  /// example, naming file and line, and Error{kIo} if a file has been cut short.
  std::int64_t fill(std::int64_t first, std::int64_t micro_batch, TensorView inputs,
                    TensorView targets) const override;
  /// Writes one sample of the endless sequence to inputs (L), targets (L) and, with has_starts(),
  /// the place where the document of each place begins (L); `starts` is empty without. Returns and
  /// throws as `fill`.
  std::int64_t fill_sample(std::int64_t sample, std::span<std::int32_t> inputs,
                           std::span<std::int32_t> targets, std::span<std::int32_t> starts) const;
  /// The files' names without folders, their sizes, hashes of content and tokenizer, and the order
  /// of samples. Of more than 8 MiB in all, the content is 128 blocks of 64 KiB, the first and the
  /// last among them.
  std::vector<NamedText> identity() const override;

  /// Looks at tokens of both parts: all of a stream of up to a million, of a longer one as many,
  /// spread evenly, so that a run starts at once (`fill` checks every token that it reads). Throws
  /// Error{kConfig} naming the first one that is not below `vocab_size`, its place and the remedy.
  /// Returns at once if none can be.
  void check_vocabulary(std::int64_t vocab_size) const;

  /// Whether inputs say where documents begin: see DatasetOptions::packing and encoder.
  bool has_starts() const { return options_.packing || options_.encoder; }

  const DatasetOptions& options() const { return options_; }
  DataKind kind() const;        ///< not kAuto
  std::int64_t tokens() const;  ///< of this part; of examples, of all
  /// Nothing of a stream.
  std::optional<ExampleCounts> example_counts() const;
  std::int64_t samples_per_epoch() const { return samples_; }
  std::vector<std::string> files() const;
  /// Notes for the user: what was left out of a folder, and why.
  const std::vector<std::string>& notes() const;
  /// The format that each file was taken for, a line for each, or for all that are alike:
  /// "'train.bin' is read as uint16 without a header: 301966 tokens".
  /// Sentences like "'chats.jsonl' is read as examples, one in each line: 400, a token per byte".
  std::vector<std::string> assumptions() const;

 private:
  /// The contents of the files: one of the two.
  struct Source {
    std::shared_ptr<const data::TokenStream> stream{};
    std::shared_ptr<const data::ExampleSource> examples{};
    std::int64_t size() const;  ///< in tokens, or units of examples
  };
  static Source open(const DatasetOptions& options);
  TokenDataset(DatasetOptions options, Source source, std::int64_t begin, std::int64_t end);
  /// Writes tokens of a stream to a sample and hides some.
  std::int64_t hide(std::span<const std::uint32_t> tokens, std::int64_t sample,
                    std::span<std::int32_t> inputs, std::span<std::int32_t> targets) const;

  DatasetOptions options_;
  Source source_;
  std::int64_t begin_;  ///< this part's tokens in the stream, or units of examples
  std::int64_t end_;
  SampleOrder order_;  ///< of samples, or units of examples
  std::int64_t samples_;
};

}  // namespace tessera
