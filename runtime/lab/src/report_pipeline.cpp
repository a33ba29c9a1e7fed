#include "report_pipeline.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <set>
#include <string_view>
#include <utility>

#include "span_kinds.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

// Pixels.
constexpr double kLabel = 17.0;
constexpr double kPass = 18.0;
constexpr double kThin = 5.0;
constexpr double kRankGap = 7.0;
constexpr double kPageWidth = 1230.0;  // of a drawing on a usual screen
constexpr double kDigit = 5.0;         // of a number in a block

bool is_message(const LaneSpan& span) {
  return span.lane.starts_with("send") || span.lane.starts_with("receive");
}
bool is_collective(const LaneSpan& span) { return span.lane == "gather" || span.lane == "reduce"; }

/// A pass through the layers of a stage: adjacent work in one piece.
struct Block {
  const SpanKind* kind = nullptr;
  int stage = -1, micro_step = -1;
  std::vector<std::pair<double, double>> pieces;  ///< seconds

  double begin() const { return pieces.front().first; }
  double end() const { return pieces.back().second; }
  bool is_more_of(const SpanKind* other, const LaneSpan& span) const {
    return kind->words == other->words && stage == span.stage && micro_step == span.micro_step;
  }
  std::string words() const {
    if (micro_step < 0) return std::string(kind->words);
    return concat(kind->words, " of micro-step ", micro_step, " through stage ", stage);
  }
};

/// The passes of a pipeline rank in their order.
std::vector<Block> blocks_of(const std::vector<LaneSpan>& spans, int rank) {
  std::vector<const LaneSpan*> own;
  double last = 0.0;
  for (const LaneSpan& span : spans) {
    last = std::max(last, span.end);
    if (span.pipeline_rank != rank || span.end <= span.begin || !kind_of(span).is_block) continue;
    own.push_back(&span);
  }
  std::ranges::stable_sort(own, {}, &LaneSpan::begin);
  const double nearby = last / kPageWidth / 4.0;  // nobody sees such a gap
  std::vector<Block> blocks;
  for (const LaneSpan* const span : own) {
    const SpanKind* const kind = &kind_of(*span);
    if (blocks.empty() || !blocks.back().is_more_of(kind, *span)) {
      blocks.push_back({kind, span->stage, span->micro_step, {{span->begin, span->end}}});
    } else if (auto& pieces = blocks.back().pieces; span->begin <= pieces.back().second + nearby) {
      pieces.back().second = std::max(pieces.back().second, span->end);
    } else {
      pieces.emplace_back(span->begin, span->end);
    }
  }
  return blocks;
}

int ranks_in(const std::vector<LaneSpan>& spans) {
  int last = 0;
  for (const LaneSpan& span : spans) last = std::max(last, span.pipeline_rank);
  return last + 1;
}

/// The stages that a pipeline rank runs, in ascending order.
std::set<int> stages_of(const std::vector<Block>& blocks) {
  std::set<int> stages;
  for (const Block& block : blocks) {
    if (block.stage >= 0) stages.insert(block.stage);
  }
  return stages;
}

/// "stage 1", "stages 1, 5".
std::string name_of(int rank, const std::set<int>& stages) {
  if (stages.empty()) return concat("pipeline rank ", rank);
  std::string words = stages.size() == 1 ? "stage" : "stages";
  for (const int stage : stages) words += concat(stage == *stages.begin() ? " " : ", ", stage);
  return words;
}

/// The share of a step in which no pass and no optimizer step runs.
double idle_share(const std::vector<Block>& blocks, double end) {
  double busy = 0.0;
  for (const Block& block : blocks) {
    for (const auto& [from, to] : block.pieces) busy += to - from;
  }
  return std::max(0.0, 1.0 - busy / end);
}

/// Which of the stages of its rank a block's is.
std::ptrdiff_t shade_of(const Block& block, const std::set<int>& stages) {
  return std::distance(stages.begin(), stages.find(std::max(block.stage, 0))) % 4;
}

/// A pass in the colour of its kind, in the shade of its stage.
void draw_block(Svg& drawing, const Block& block, const std::set<int>& stages, double top,
                double end) {
  std::string css(block.kind->css);
  if (block.stage >= 0 && shade_of(block, stages) > 0) {
    css += concat(" v", shade_of(block, stages));
  }
  const std::string tip =
      concat(block.words(), ": ", short_number((block.end() - block.begin()) * 1e3), " ms");
  for (const auto& [from, to] : block.pieces) {
    drawing.bar({100.0 * from / end, top}, 100.0 * (to - from) / end, kPass, css, tip);
  }
}

/// Which passes have their numbers, every so many, if one takes so many times the room of its
/// number.
int numbered(double room) {
  for (int decade = 1;; decade *= 10) {
    for (const int every : {decade, 2 * decade, 5 * decade}) {
      if (room * every >= 1.0 || every > 1'000'000) return every;
    }
  }
}

/// The number of a pass, on its longest piece. Where there is no room for those of all, a few
/// passes forward and backward have theirs.
void draw_number(Svg& drawing, const Block& block, const std::set<int>& stages, double top,
                 double end) {
  if (block.micro_step < 0) return;
  const auto& [from, to] = *std::ranges::max_element(
      block.pieces, {}, [](const auto& piece) { return piece.second - piece.first; });
  const std::string number = std::to_string(block.micro_step);
  const int every =
      numbered((to - from) / end * kPageWidth / (kDigit * static_cast<double>(number.size())));
  const bool of_weights = block.kind->css == "c7";
  if (block.micro_step % every != 0 || (of_weights && every > 1)) return;
  const bool is_light = of_weights || shade_of(block, stages) > 0;
  drawing.text({50.0 * (from + to) / end, top + kPass - 5.5}, Anchor::kMiddle,
               is_light ? "in-block on-light" : "in-block", number);
}

/// Messages, or collectives, of a rank.
template <typename Wanted>
void draw_thin(Svg& drawing, const std::vector<LaneSpan>& spans, int rank, const Wanted& wanted,
               double top, double end) {
  drawing.bar({0.0, top}, 100.0, kThin, "lane");
  for (const LaneSpan& span : spans) {
    if (span.pipeline_rank != rank || !wanted(span) || span.end <= span.begin) continue;
    drawing.bar({100.0 * span.begin / end, top}, 100.0 * (span.end - span.begin) / end, kThin,
                kind_of(span).css,
                concat(span.name, ": ", short_number((span.end - span.begin) * 1e3), " ms"));
  }
}

/// "12 messages", from the first to the last, for a table.
template <typename Wanted>
void add_row(std::vector<std::vector<std::string>>& rows, const std::vector<LaneSpan>& spans,
             int rank, const char* what, const Wanted& wanted) {
  int count = 0;
  double begin = 0.0, end = 0.0;
  for (const LaneSpan& span : spans) {
    if (span.pipeline_rank != rank || !wanted(span) || span.end <= span.begin) continue;
    begin = count++ == 0 ? span.begin : std::min(begin, span.begin);
    end = std::max(end, span.end);
  }
  if (count == 0) return;
  rows.push_back({concat("pipeline rank ", rank), concat(count, " ", what),
                  short_number(begin * 1e3), short_number(end * 1e3)});
}

}  // namespace

bool has_stages(const std::vector<LaneSpan>& spans) { return ranks_in(spans) > 1; }

double draw_pipeline(Svg& drawing, const std::vector<LaneSpan>& spans, double top, double end) {
  const bool has_messages = std::ranges::any_of(spans, is_message);
  const bool has_collectives = std::ranges::any_of(spans, is_collective);
  double last = 0.0;
  for (const LaneSpan& span : spans) last = std::max(last, span.end);
  for (int rank = 0; rank < ranks_in(spans); ++rank) {
    const std::vector<Block> blocks = blocks_of(spans, rank);
    const std::set<int> stages = stages_of(blocks);
    const double idle = last > 0.0 ? idle_share(blocks, last) : 0.0;
    drawing.text({0.0, top + kLabel - 5.0}, Anchor::kStart, "tick", name_of(rank, stages));
    drawing.text({100.0, top + kLabel - 5.0}, Anchor::kEnd, "tick",
                 concat("idle ", short_number(100.0 * idle), " %"));
    top += kLabel;
    drawing.bar({0.0, top}, 100.0 * last / end, kPass, "lane");
    for (const Block& block : blocks) draw_block(drawing, block, stages, top, end);
    for (const Block& block : blocks) draw_number(drawing, block, stages, top, end);
    top += kPass + 1.0;
    if (has_messages) {
      draw_thin(drawing, spans, rank, is_message, top, end);
      top += kThin + 1.0;
    }
    if (has_collectives) {
      draw_thin(drawing, spans, rank, is_collective, top, end);
      top += kThin + 1.0;
    }
    top += kRankGap;
  }
  return top;
}

std::vector<std::vector<std::string>> pipeline_rows(const std::vector<LaneSpan>& spans) {
  std::vector<std::vector<std::string>> rows;
  for (int rank = 0; rank < ranks_in(spans); ++rank) {
    for (const Block& block : blocks_of(spans, rank)) {
      rows.push_back({concat("pipeline rank ", rank), block.words(),
                      short_number(block.begin() * 1e3), short_number(block.end() * 1e3)});
    }
    add_row(rows, spans, rank, "messages", is_message);
    add_row(rows, spans, rank, "collectives", is_collective);
  }
  return rows;
}

}  // namespace tessera
