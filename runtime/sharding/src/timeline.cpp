#include "tessera/sharding/timeline.h"

#include <algorithm>
#include <utility>

namespace tessera {
namespace {

using Interval = std::pair<double, double>;

std::vector<Interval> sorted(std::vector<Interval> intervals) {
  std::ranges::sort(intervals);
  return intervals;
}

double union_seconds(std::vector<Interval> intervals) {
  std::sort(intervals.begin(), intervals.end());
  double total = 0.0;
  for (std::size_t i = 0; i < intervals.size();) {
    auto [begin, end] = intervals[i];
    for (++i; i < intervals.size() && intervals[i].first <= end; ++i) {
      end = std::max(end, intervals[i].second);
    }
    total += end - begin;
  }
  return total;
}

// Seconds of communication without computation. Sums only the gaps, so that what is hidden
// completely is exposed for exactly zero seconds, which a difference of two unions would round
// away.
double exposed_seconds(std::vector<Interval> communication, std::vector<Interval> compute) {
  std::sort(communication.begin(), communication.end());
  std::sort(compute.begin(), compute.end());
  double exposed = 0.0;
  double covered_to = communication.empty() ? 0.0 : communication.front().first;
  std::size_t next = 0;
  for (auto [begin, end] : communication) {
    begin = std::max(begin, covered_to);
    while (begin < end) {
      // Spans that end by `begin` hide nothing that follows: begins only grow.
      while (next < compute.size() && compute[next].second <= begin) ++next;
      if (next == compute.size() || compute[next].first >= end) {
        exposed += end - begin;
        begin = end;
      } else if (compute[next].first <= begin) {
        begin = std::min(end, compute[next].second);
      } else {
        exposed += compute[next].first - begin;
        begin = compute[next].first;
      }
    }
    covered_to = std::max(covered_to, end);
  }
  return exposed;
}

std::vector<Interval> intervals_of(std::initializer_list<Lane> lanes,
                                   const std::vector<ActionSpan>& spans) {
  std::vector<Interval> intervals;
  for (const ActionSpan& span : spans) {
    if (std::ranges::find(lanes, span.lane) == lanes.end()) continue;
    intervals.emplace_back(span.begin, span.end);
  }
  return intervals;
}

}  // namespace

LaneTime time_of(std::initializer_list<Lane> lanes, const std::vector<ActionSpan>& spans) {
  const std::vector<Interval> working = intervals_of(lanes, spans);
  return {union_seconds(working),
          exposed_seconds(working, intervals_of({Lane::kCompute, Lane::kOptimizer}, spans))};
}

std::vector<double> exposed_by_span(const std::vector<ActionSpan>& spans) {
  std::vector<Interval> computing;  // without overlaps, in order
  for (const Interval& next : sorted(intervals_of({Lane::kCompute, Lane::kOptimizer}, spans))) {
    if (!computing.empty() && next.first <= computing.back().second) {
      computing.back().second = std::max(computing.back().second, next.second);
    } else {
      computing.push_back(next);
    }
  }
  std::vector<double> exposed;
  for (const ActionSpan& span : spans) {
    const auto first = std::ranges::partition_point(
        computing, [&](const Interval& i) { return i.second <= span.begin; });
    const auto end = std::partition_point(first, computing.end(),
                                          [&](const Interval& i) { return i.first < span.end; });
    exposed.push_back(exposed_seconds({{span.begin, span.end}}, {first, end}));
  }
  return exposed;
}

TimelineSummary summarize(const std::vector<ActionSpan>& spans) {
  if (spans.empty()) return {};
  const auto first = std::ranges::min(spans, {}, &ActionSpan::begin).begin;
  const auto last = std::ranges::max(spans, {}, &ActionSpan::end).end;
  const LaneTime communication = time_of({Lane::kGather, Lane::kReduce, Lane::kSend, Lane::kReceive,
                                          Lane::kSendBack, Lane::kReceiveBack},
                                         spans);
  return {.step_seconds = last - first,
          .compute_seconds = time_of({Lane::kCompute, Lane::kOptimizer}, spans).busy,
          .communication_seconds = communication.busy,
          .exposed_seconds = communication.exposed};
}

}  // namespace tessera
