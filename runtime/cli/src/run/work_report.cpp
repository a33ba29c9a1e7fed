#include "run/work_report.h"

#include "output/terminal.h"
#include "tessera/core/error.h"
#include "tessera/trainer/byte_size.h"

namespace tessera::cli {
namespace {

constexpr std::chrono::seconds kLong{1};
constexpr std::chrono::seconds kNextLine{10};

}  // namespace

std::vector<WorkReport::Shown> WorkReport::at(const HostWork& work, Clock::time_point now) {
  const std::optional<HostWork::Extent> current = work.current();
  std::vector<Shown> shown;
  if (!seen_ || !current || seen_->task != current->task) {
    if (is_told_) {
      const HostWork::Extent last = work.of(seen_->task);
      shown.push_back({.text = concat(to_string(last.task), ": ", format_bytes(last.total_bytes),
                                      " in ", fixed(seconds_at(now), 1), " s"),
                       .share = last.share(),
                       .is_over = true});
    }
    seen_ = current;
    began_ = now;
    is_told_ = false;
    return shown;
  }
  seen_ = current;
  if (now - began_ < kLong) return shown;
  const bool is_due = is_watched_ || !is_told_ || now - told_ >= kNextLine;
  if (!is_due) return shown;
  const double share = current->share(), seconds = seconds_at(now);
  const double left = share > 0.0 ? seconds / share - seconds : 0.0;
  shown.push_back({.text = concat(to_string(current->task), ": ", in_percent(share), " of ",
                                  format_bytes(current->total_bytes),
                                  share > 0.0 ? ", ETA " + as_clock(left) : ""),
                   .share = share});
  told_ = now;
  is_told_ = true;
  return shown;
}

}  // namespace tessera::cli
