#include "compare/compared_cells.h"

#include <algorithm>

#include "tessera/core/error.h"
#include "tessera/lab/comparison_figures.h"

namespace tessera::cli {
namespace {

/// "steps 3 instead of 4" of the first that differs, or "".
template <typename Value>
std::string unlike(const char* name, const Value& earlier, const Value& planned) {
  return earlier == planned ? "" : concat(name, " '", earlier, "' instead of '", planned, "'");
}

/// "steps '3' instead of '4'" of the first text that one of both has and the other has not.
std::string unlike(const std::vector<NamedText>& earlier, const std::vector<NamedText>& planned) {
  const auto value_in = [](const std::vector<NamedText>& texts, const std::string& name) {
    const auto found = std::ranges::find(texts, name, &NamedText::name);
    return found == texts.end() ? std::string() : found->value;
  };
  for (const auto* texts : {&earlier, &planned}) {
    for (const NamedText& text : *texts) {
      const std::string words =
          unlike(text.name.c_str(), value_in(earlier, text.name), value_in(planned, text.name));
      if (!words.empty()) return words;
    }
  }
  return "";
}

std::string unlike_matrix(const Comparison& earlier, const Comparison& planned) {
  for (const std::string& words :
       {unlike("model", earlier.model, planned.model), unlike("data", earlier.data, planned.data),
        unlike("profile", earlier.profile, planned.profile),
        unlike("steps", earlier.steps, planned.steps),
        unlike("untimed steps", earlier.warmup_steps, planned.warmup_steps),
        earlier.repeats < planned.repeats ? ""  // which --resume adds
                                          : unlike("repeats", earlier.repeats, planned.repeats),
        unlike("cells", earlier.cells.size(), planned.cells.size())}) {
    if (!words.empty()) return words;
  }
  for (std::size_t i = 0; i < planned.cells.size(); ++i) {
    const std::string words = unlike(earlier.cells[i].settings, planned.cells[i].settings);
    if (!words.empty()) return concat("in cell ", i + 1, " ", words);
    auto was = earlier.cells[i].predicted;
    const auto& is = planned.cells[i].predicted;
    // A profile that is measured meanwhile predicts no times before.
    if (was && is && planned.profile == kMeasuredProfile && !is->time) was->time.reset();
    if (was && is && *was != *is) return concat("another prediction of cell ", i + 1);
  }
  return earlier.axes == planned.axes ? "" : "other axes";
}

}  // namespace

std::string difference(const Comparison& earlier, const Comparison& planned) {
  if (const auto words = unlike("version", earlier.version, planned.version); !words.empty()) {
    return concat("is of another version of tessera: ", words);
  }
  if (const auto words = unlike(earlier.machine, planned.machine); !words.empty()) {
    return concat("is of another machine: ", words);
  }
  const std::string words = unlike_matrix(earlier, planned);
  return words.empty() ? "" : concat("is of another matrix: ", words);
}

Comparison gone_on(const Comparison& earlier, Comparison planned) {
  planned.date = earlier.date;
  if (earlier.repeats == planned.repeats) planned.command = earlier.command;
  for (std::size_t i = 0; i < planned.cells.size(); ++i) {
    const ComparedCell& was = earlier.cells[i];
    if (was.runs.empty()) continue;
    planned.cells[i] = was;
    const bool is_done = std::ssize(was.runs) >= planned.repeats;
    if (was.state == CellState::kDone && is_done) continue;
    planned.cells[i].state = CellState::kMissing;
    planned.cells[i].why.clear();
  }
  return planned;
}

}  // namespace tessera::cli
