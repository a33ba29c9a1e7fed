#include "streamed_examples.h"

#include <algorithm>
#include <cmath>
#include <list>
#include <utility>

#include "example_packing.h"
#include "tessera/core/error.h"

namespace tessera::data {
namespace {

constexpr std::int64_t kProbes = 512;  // examples looked at when files are opened
constexpr std::int64_t kWindowSamples = 64;

/// "about 3 %", "less than 1 %".
std::string about(std::int64_t part, std::int64_t whole) {
  const auto percent = std::lround(100.0 * static_cast<double>(part) / static_cast<double>(whole));
  return percent == 0 ? "less than 1 %" : concat("about ", percent, " %");
}

ExampleView view_of(const Example& example) { return {example.tokens, example.targets}; }

}  // namespace

/// A packed window.
struct StreamedExamples::Window {
  std::vector<Example> examples{};
  std::vector<std::int64_t> records{};  ///< of each example
  Packed samples{};
};

/// The windows that were read last: ranks read samples of the same ones.
class StreamedExamples::Windows {
 public:
  struct Key {
    std::int64_t begin, units, epoch, window;
    bool shuffle;
    std::uint64_t seed;
    bool operator==(const Key&) const = default;
  };

  /// The window, which `make` makes if it is not there. Others that ask for it wait.
  template <typename Make>
  std::shared_ptr<const Window> get(const Key& key, const Make& make) {
    const std::shared_ptr<Entry> entry = entry_of(key);
    const std::lock_guard lock(entry->mutex);
    if (entry->window == nullptr) entry->window = make();
    return entry->window;
  }

 private:
  struct Entry {
    Key key;
    std::mutex mutex{};
    std::shared_ptr<const Window> window{};
  };

  std::shared_ptr<Entry> entry_of(const Key& key) {
    constexpr std::size_t kMost = 4;
    const std::lock_guard lock(mutex_);
    auto found =
        std::ranges::find_if(entries_, [&](const auto& entry) { return entry->key == key; });
    if (found == entries_.end()) {
      entries_.push_front(std::make_shared<Entry>(key));
      if (entries_.size() > kMost) entries_.pop_back();
    } else {
      entries_.splice(entries_.begin(), entries_, found);
    }
    return entries_.front();
  }

  std::mutex mutex_;
  std::list<std::shared_ptr<Entry>> entries_;  ///< the last used first
};

StreamedExamples::~StreamedExamples() = default;

StreamedExamples::StreamedExamples(const DatasetOptions& options, ExampleRecords all)
    : ExampleSource(options, std::move(all)),
      length_(options.sequence_length),
      packing_(options.packing),
      windows_(std::make_unique<Windows>()) {
  probe(options);
}

/// Looks at some examples, evenly spread, and takes the others to be like them.
void StreamedExamples::probe(const DatasetOptions& options) {
  const std::int64_t all = records().size();
  const std::int64_t probes = std::min(all, kProbes);
  std::vector<std::size_t> places;  // of those with targets
  std::int64_t tokens = 0, targets = 0, truncated = 0, across = 0;
  for (std::int64_t i = 0; i < probes; ++i) {
    const std::int64_t record = probes == 1 ? 0 : all / probes * i + all % probes * i / probes;
    const Example example = read(record);
    if (example.truncated) ++truncated;
    if (example.across) ++across;
    if (example.targets.empty()) continue;
    places.push_back(view_of(example).places());
    tokens += std::ssize(example.tokens);
    for (const auto& [first, second] : example.targets) targets += second - first;
    const std::int32_t largest = std::ranges::max(example.tokens);
    if (largest > largest_token_) {
      largest_token_ = largest;
      largest_record_ = record;
    }
  }
  const auto with = std::ssize(places);
  require(with > 0, ErrorCode::kConfig, "'", options.path, "': none of ", probes,
          " examples that were looked at has a target within the sequence length ", length_,
          "; raise the sequence length, or give lines such as {\"prompt\": \"...\", "
          "\"completion\": \"...\"}");
  const auto share = [&](std::int64_t count) {
    return std::llround(static_cast<double>(count) / static_cast<double>(probes) *
                        static_cast<double>(all));
  };
  const std::int64_t counted = share(with);
  window_samples_ = kWindowSamples;
  const auto examples_of_window = [&] {
    return examples_for(places, static_cast<std::size_t>(length_),
                        static_cast<std::size_t>(window_samples_)) *
           probes / with;
  };
  window_examples_ = examples_of_window();
  while (window_examples_ > all && window_samples_ > 1) {
    window_samples_ /= 2;
    window_examples_ = examples_of_window();
  }
  window_examples_ = std::min(window_examples_, all);
  counts_ = {.examples = all,
             .tokens = share(tokens),
             .targets = share(targets),
             .samples = packing_ ? samples_of(all) : all,
             .filled = share(tokens) - counted,
             .packed_samples = all / window_examples_ * window_samples_,
             .end_token = reader().end_token(),
             .estimated = true};
  counts_.positions = counts_.samples * length_;
  const std::string of = concat(" of the examples of ", records().name());
  if (truncated > 0) {
    notes_.push_back(
        concat(about(truncated, probes), of, " are cut off at the sequence length ", length_));
  }
  if (with < probes) {
    notes_.push_back(concat(about(probes - with, probes), of,
                            packing_ ? " are left out" : " have the next one in their place",
                            ": no target is within the sequence length ", length_));
  }
  if (across > 0) {
    notes_.push_back(concat(about(across, probes), of,
                            " have a prompt with other tokens alone than before its completion; "
                            "end prompts where words end"));
  }
}

std::int64_t StreamedExamples::samples_of(std::int64_t units) const {
  if (!packing_) return units;
  return units / window_examples_ * window_samples_;
}

std::string StreamedExamples::describe() const {
  return concat(counts_.examples, ", tokenised as they are read");
}

std::string StreamedExamples::unit_name() const {
  if (!packing_) return "examples";
  return concat("windows of ", window_examples_, " examples packed into ", window_samples_,
                " samples, examples");
}

/// Example `unit` of the part, or the next one that has a target.
std::pair<std::int64_t, Example> StreamedExamples::with_target(const Part& part,
                                                               std::int64_t unit) const {
  constexpr std::int64_t kMost = 1000;
  const std::int64_t units = part.order.samples();
  for (std::int64_t i = 0; i < std::min(units, kMost); ++i) {
    const std::int64_t record = part.begin + (unit - part.begin + i) % units;
    Example example = read(record);
    if (!example.targets.empty()) return {record, std::move(example)};
  }
  fail(ErrorCode::kConfig, "from ", records().place(unit), " on, ", std::min(units, kMost),
       " examples have no target within the sequence length ", length_,
       "; raise the sequence length, or leave them out");
}

std::int64_t StreamedExamples::fill(const Part& part, std::int64_t sample, std::int64_t vocab_size,
                                    const SampleRow& row) const {
  if (packing_) return fill_packed(part, sample, vocab_size, row);
  const std::int64_t samples = part.order.samples();
  const auto [record, example] = with_target(part, part.unit(sample / samples, sample % samples));
  const std::int32_t largest = std::ranges::max(example.tokens);
  if (vocab_size > 0 && largest >= vocab_size) {
    fail_vocabulary(record, largest, largest, vocab_size);
  }
  const ExampleView view = view_of(example);
  return write_sample({&view, 1}, row);
}

std::unique_ptr<const StreamedExamples::Window> StreamedExamples::read_window(
    const Part& part, std::int64_t epoch, std::int64_t number) const {
  auto window = std::make_unique<Window>();
  std::vector<std::size_t> places;
  for (std::int64_t i = 0; i < window_examples_; ++i) {
    const std::int64_t record = part.unit(epoch, number * window_examples_ + i);
    Example example = read(record);
    if (example.targets.empty()) continue;
    places.push_back(view_of(example).places());
    window->examples.push_back(std::move(example));
    window->records.push_back(record);
  }
  window->samples = pack_into(places, static_cast<std::size_t>(length_),
                              static_cast<std::size_t>(window_samples_));
  return window;
}

std::int64_t StreamedExamples::fill_packed(const Part& part, std::int64_t sample,
                                           std::int64_t vocab_size, const SampleRow& row) const {
  const std::int64_t samples = samples_of(part.order.samples());
  const std::int64_t epoch = sample / samples, position = sample % samples;
  const std::int64_t number = position / window_samples_;
  const Windows::Key key{part.begin, part.order.samples(), epoch,
                         number,     part.shuffle,         part.order.seed()};
  const std::shared_ptr<const Window> window =
      windows_->get(key, [&] { return read_window(part, epoch, number); });
  // Best fit makes samples of long examples first.
  const SampleOrder within(window_samples_, part.order.seed());
  std::int64_t s = position % window_samples_;
  if (part.shuffle) s = within.index(sample / window_samples_, s);
  std::vector<ExampleView> views;
  for (const std::size_t e : window->samples[static_cast<std::size_t>(s)]) {
    views.push_back(view_of(window->examples[e]));
    const std::int32_t largest = std::ranges::max(views.back().tokens);
    if (vocab_size > 0 && largest >= vocab_size) {
      fail_vocabulary(window->records[e], largest, largest, vocab_size);
    }
  }
  require(!views.empty(), ErrorCode::kConfig, "of ", window_examples_, " examples, one of them ",
          records().place(part.unit(epoch, number * window_examples_)),
          ", too few have a target within the sequence length ", length_,
          " to be packed; raise the sequence length, or leave the others out");
  return write_sample(views, row);
}

void StreamedExamples::check_vocabulary(std::int64_t vocab_size) const {
  if (vocab_size > 0 && largest_token_ >= vocab_size) {
    fail_vocabulary(largest_record_, largest_token_, largest_token_, vocab_size);
  }
}

}  // namespace tessera::data
