#include "sim_clock.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace tessera::sim {

void Clock::run() {
  for (;;) {
    while (settle()) {
    }
    if (!advance()) break;
  }
  drop_finished();
}

/// Does all that takes no time; false if there was nothing.
bool Clock::settle() {
  bool did = false;
  for (const auto& timeline : timelines_) {
    for (const auto& queue : timeline->queues) {
      while (!queue->items.empty() && settle_first(*timeline, *queue)) did = true;
    }
  }
  return did;
}

bool Clock::settle_first(Timeline& timeline, Queue& queue) {
  Item& item = queue.items.front();
  if (item.kind == Item::Kind::kWait && item.moment->to_come > 0) return false;
  if (item.kind == Item::Kind::kArrive) --item.moment->to_come;
  if (item.kind == Item::Kind::kTask) {
    if (!queue.runs) {
      queue.runs = true;
      queue.begin = now_;
      queue.speed = 1.0;
      queue.end = now_ + item.work.seconds;
      timeline.changed = true;
    }
    if (queue.end > now_) return false;
    report(timeline, queue);
    queue.runs = false;
    timeline.changed = true;
  }
  queue.items.pop_front();
  return true;
}

void Clock::report(Timeline& timeline, Queue& queue) const {
  Item& item = queue.items.front();
  const Work& work = item.work;
  timeline.spans.push_back(
      {queue.options.name, std::move(item.name), work.action, queue.begin, now_});
  if (queue.has_stream && queue.options.on_span) queue.options.on_span(work, queue.begin, now_);
}

/// To the first end of a task that runs; false if none does.
bool Clock::advance() {
  std::optional<double> next;
  for (const auto& timeline : timelines_) {
    const bool changed = std::exchange(timeline->changed, false);
    if (changed && timeline->speeds) set_speeds(*timeline);
    for (const auto& queue : timeline->queues) {
      if (queue->runs) next = std::min(next.value_or(queue->end), queue->end);
    }
  }
  if (next) now_ = *next;
  return next.has_value();
}

void Clock::set_speeds(const Timeline& timeline) const {
  std::vector<Queue*> running;
  std::vector<Work> works;
  for (const auto& queue : timeline.queues) {
    if (!queue->runs) continue;
    const Item& item = queue->items.front();
    running.push_back(queue.get());
    works.push_back(item.work);
    works.back().name = item.name;
  }
  if (running.empty()) return;
  std::vector<double> speeds(running.size(), 1.0);
  if (timeline.has_device) timeline.speeds(works, speeds);
  for (std::size_t i = 0; i < running.size(); ++i) {
    Queue& queue = *running[i];
    if (speeds[i] == queue.speed) continue;  // so that nothing is rounded again
    queue.end = now_ + (queue.end - now_) * queue.speed / speeds[i];
    queue.speed = speeds[i];
  }
}

void Clock::drop_finished() {
  for (const auto& timeline : timelines_) {
    std::erase_if(timeline->queues, [](const std::shared_ptr<Queue>& queue) {
      return !queue->has_stream && queue->items.empty();
    });
  }
  std::erase_if(timelines_, [](const std::shared_ptr<Timeline>& timeline) {
    return !timeline->has_device && timeline->queues.empty();
  });
}

Error Clock::explain(const Queue& queue) const {
  const auto task = std::ranges::find(queue.items, Item::Kind::kTask, &Item::kind);
  std::string text = concat("sim stream '", queue.options.name, "' cannot ",
                            task == queue.items.end() ? "end" : concat("begin '", task->name, "'"),
                            ": it waits for ");
  std::vector<const Queue*> passed{&queue};
  for (;;) {
    const Moment& moment = *passed.back()->items.front().moment;
    if (moment.to_submit > 0) {
      const Error overdue = moment.overdue();
      return {overdue.code(), text + overdue.what()};
    }
    const Queue& next = arriving_at(moment);
    text += concat("an event of stream '", next.options.name, "', which waits for ");
    if (std::ranges::find(passed, &next) != passed.end()) {
      return {ErrorCode::kTimeout, text + "the same again: none of them can go on"};
    }
    passed.push_back(&next);
  }
}

/// A queue that has yet to get there. It waits as well, or run() would have gone on.
const Queue& Clock::arriving_at(const Moment& moment) const {
  for (const auto& timeline : timelines_) {
    for (const auto& queue : timeline->queues) {
      const auto arrives = [&](const Item& item) {
        return item.kind == Item::Kind::kArrive && item.moment.get() == &moment;
      };
      if (std::ranges::any_of(queue->items, arrives)) return *queue;
    }
  }
  fail(ErrorCode::kInternal, "no stream arrives at an event that is not over");
}

}  // namespace tessera::sim
