#include "run/progress.h"

#include <algorithm>
#include <cstdlib>

#include "output/run_report.h"
#include "tessera/compat/launcher.h"
#include "tessera/trainer/byte_size.h"

namespace tessera::cli {
namespace {

constexpr std::chrono::milliseconds kRedraw{100};
constexpr double kSmoothing = 0.2;  // weight of the newest step in the shown rate

std::string bar(double done, int width) {
  const int full = static_cast<int>(done * width);
  std::string text;
  for (int i = 0; i < width; ++i) text += i < full ? "━" : "─";
  return text;
}

std::FILE* open_bar() {
  const char* const terminal = std::getenv(kBarTerminal);
  std::FILE* const bar = terminal == nullptr ? nullptr : fdopen(std::atoi(terminal), "w");
  return bar == nullptr ? stderr : bar;
}

/// "  3 skipped", if there are any.
std::string skipped_so_far(const StepRecord& record) {
  return record.skipped_steps > 0 ? concat("  ", record.skipped_steps, " skipped") : "";
}

}  // namespace

Progress::Progress(std::int64_t steps, std::int64_t patience, bool quiet, bool verbose)
    : steps_(steps),
      patience_(patience),
      quiet_(quiet),
      verbose_(verbose),
      bar_(open_bar()),
      terminal_(inspect(bar_)),
      work_(terminal_.interactive) {}

Progress::~Progress() {
  end_line();
  if (bar_ != stderr) std::fclose(bar_);
}

void Progress::show(const StepRecord& record) {
  if (quiet_) return;
  const std::lock_guard lock(mutex_);
  if (++shown_ > 1) seconds_ += record.seconds;
  const auto smooth = [this](double& rate, double now) {
    rate = shown_ <= 2 ? now : (1.0 - kSmoothing) * rate + kSmoothing * now;
  };
  smooth(rates_.tokens, record.tokens_per_second);
  smooth(rates_.positions, record.positions_per_second);
  if (terminal_.interactive && !verbose_) {
    draw(record);
  } else {
    print(record);
  }
}

void Progress::note(const std::string& text) {
  if (quiet_) return;
  const std::lock_guard lock(mutex_);
  end_line();
  std::fprintf(stderr, "note: %s\n", text.c_str());
}

void Progress::evaluation(const EvaluationRecord& record) {
  if (quiet_) return;
  const std::lock_guard lock(mutex_);
  end_line();
  const std::string best = describe_best(record, patience_);
  const std::string text = concat("evaluation after step ", record.step, ": ",
                                  describe_evaluation(record), best.empty() ? "" : "; ", best);
  std::fprintf(stderr, "%s\n", for_reader(inspect(stderr), text, 2).c_str());
}

void Progress::checkpoint(const SaveRecord& record) {
  if (quiet_) return;
  const std::lock_guard lock(mutex_);
  end_line();
  const std::string copied = record.waited_seconds > 0.0
                                 ? concat("steps waited ", fixed(record.waited_seconds, 3), " s")
                                 : std::string("copied beside a step");
  std::fprintf(stderr, "checkpoint %s: %s, durable after %s s, %s\n", record.path.c_str(),
               format_bytes(record.bytes).c_str(), fixed(record.seconds, 2).c_str(),
               copied.c_str());
}

void Progress::end_line() {
  if (work_bar_open_) {
    std::fputs("\r\033[K", bar_);
    std::fflush(bar_);
    work_bar_open_ = false;
  }
  if (!line_open_) return;
  std::fputc('\n', bar_);
  std::fflush(bar_);
  line_open_ = false;
}

void Progress::work(const HostWork& work, Clock::time_point now) {
  if (quiet_) return;
  const std::lock_guard lock(mutex_);
  for (const WorkReport::Shown& shown : work_.at(work, now)) {
    if (!terminal_.interactive) {
      std::fprintf(stderr, "%s\n", shown.text.c_str());
      continue;
    }
    end_line();
    if (shown.is_over) continue;
    draw_work(shown);
    work_bar_open_ = true;
  }
}

void Progress::draw_work(const WorkReport::Shown& shown) {
  const int columns = inspect(bar_).columns;
  const int room = columns - columns_of(shown.text) - 3;
  std::string line = shown.text;
  if (room >= 5) {
    line += "  " + paint(terminal_, Colour::kGreen, bar(shown.share, std::min(room, 40)));
  }
  if (room < -3) line.resize(static_cast<std::size_t>(columns));
  std::fprintf(bar_, "\r\033[K%s", line.c_str());
  std::fflush(bar_);
}

void Progress::draw(const StepRecord& record) {
  const auto now = std::chrono::steady_clock::now();
  if (now - last_drawn_ < kRedraw && record.step < steps_) return;
  last_drawn_ = now;
  const double mean = shown_ > 1 ? seconds_ / static_cast<double>(shown_ - 1) : record.seconds;
  const std::string left = "step " + std::to_string(record.step) + "/" + std::to_string(steps_);
  const std::string loss = "loss " + fixed(record.loss, 4) + skipped_so_far(record);
  const std::string rate = "  " + describe_speed(rates_);
  const std::string peak = "  peak " + format_bytes(record.peak_bytes);
  const std::string eta = "  ETA " + as_clock(mean * static_cast<double>(steps_ - record.step));
  // A line that wraps cannot be rewritten: what does not fit is left out, the peak first.
  const int columns = inspect(bar_).columns;  // people resize windows
  const auto width = static_cast<std::size_t>(columns);
  std::string right = loss + rate + peak + eta;
  if (left.size() + 2 + right.size() > width) right = loss + rate + eta;
  if (left.size() + 2 + right.size() > width) right = loss + eta;
  const int room = columns - static_cast<int>(left.size() + right.size()) - 4;
  std::string line = left + "  ";
  if (room >= 5) {
    const double done = static_cast<double>(record.step) / static_cast<double>(steps_);
    line += paint(terminal_, Colour::kGreen, bar(done, std::min(room, 40))) + "  ";
  }
  line += right;
  if (room < 0) line.resize(std::min(line.size(), width));
  std::fprintf(bar_, "\r\033[K%s", line.c_str());
  std::fflush(bar_);
  line_open_ = true;
}

void Progress::print(const StepRecord& record) {
  const std::int64_t tenth = std::max<std::int64_t>(1, steps_ / 10);
  if (!verbose_ && shown_ != 1 && record.step != steps_ && record.step % tenth != 0) return;
  std::fprintf(stderr, "step %lld/%lld  loss %s%s  gradient norm %s  %s  peak %s\n",
               static_cast<long long>(record.step), static_cast<long long>(steps_),
               fixed(record.loss, 4).c_str(), skipped_so_far(record).c_str(),
               fixed(record.gradient_norm, 3).c_str(), describe_speed(rates_).c_str(),
               format_bytes(record.peak_bytes).c_str());
}

}  // namespace tessera::cli
