#include "gradient_sums.h"

#include <algorithm>

#include "tessera/core/error.h"
#include "tessera/sharding/contents.h"
#include "tessera/sharding/operation.h"
#include "tessera/sharding/sample_division.h"

namespace tessera {
namespace {

// Addends are named by samples alone, so ranks that contribute to one sample have no names.
static_assert(kSampleAxes.contains(kGradientAxes));

std::string rounding(DType format) {
  return format == DType::kFloat32 ? std::string() : std::string(to_string(format));
}

}  // namespace

void SampleSum::push(Run run) {
  if (!runs_.empty() && runs_.back().body == run.body) {
    Run& last = runs_.back();
    const std::int64_t next = run.first - (last.first + (last.count - 1) * last.stride);
    const bool fits_last = last.count == 1 || last.stride == next;
    const bool fits_run = run.count == 1 || run.stride == next;
    if (next > 0 && fits_last && fits_run) {
      last.stride = next;
      last.count += run.count;
      return;
    }
  }
  runs_.push_back(std::move(run));
}

std::string SampleSum::relative_text(std::int64_t origin) const {
  std::string text;
  for (const Run& run : runs_) {
    if (!text.empty()) text += " + ";
    const std::int64_t first = run.first - origin;
    const bool leaf = !run.body.starts_with('(') && run.body.find('(') == run.body.npos;
    if (leaf) {
      text += concat(run.body.empty() ? "" : run.body + " ", 's', first);
      if (run.count > 1) text += concat("..s", first + (run.count - 1) * run.stride);
      if (run.count > 1 && run.stride != 1) text += concat('/', run.stride);
    } else {
      text += run.body;
      if (first != 0) text += concat(" at s", first);
      if (run.count > 1) text += concat(" x", run.count, '/', run.stride);
    }
  }
  return text;
}

std::string SampleSum::text() const { return relative_text(0); }

/// The whole sum in parentheses, as one addend of another; itself if it is one already.
SampleSum::Run SampleSum::as_addend() const {
  if (runs_.size() == 1 && runs_.front().count == 1) return runs_.front();
  return {.first = first(), .body = concat('(', relative_text(first()), ')')};
}

void SampleSum::add(const SampleSum& other) {
  if (empty()) {
    runs_ = other.runs_;
    return;
  }
  push(other.as_addend());
}

void SampleSum::add_ranks(const SampleSum& other, std::int64_t count, std::int64_t stride) {
  Run run = other.as_addend();
  if (count > 1) {
    run.count = count;
    run.stride = stride;
  }
  push(std::move(run));
}

SampleSum SampleSum::later(std::int64_t samples) const {
  SampleSum out = *this;
  for (Run& run : out.runs_) run.first += samples;
  return out;
}

SampleSum SampleSum::rounded(DType format) const {
  const std::string name = rounding(format);
  if (name.empty() || empty()) return *this;
  const bool one = runs_.size() == 1 && runs_.front().count == 1;
  if (one && runs_.front().body.starts_with(name + "(")) return *this;
  SampleSum out;
  const std::string body = one && runs_.front().body.find('(') == std::string::npos
                               ? runs_.front().body
                               : relative_text(first());
  out.runs_.push_back({.first = first(), .body = concat(name, '(', body, ')')});
  return out;
}

void SampleSum::extend(const std::string& layer, DType format) {
  require(runs_.size() == 1 && runs_.front().count == 1, ErrorCode::kInternal,
          "a layer contributes to a sum of several samples");
  std::string& body = runs_.front().body;
  body = concat(body, '+', layer);
  if (const std::string name = rounding(format); !name.empty()) body = concat(name, '(', body, ')');
}

GradientSums::GradientSums(const Schedule& schedule, Messages* messages)
    : schedule_(schedule),
      nesting_(schedule.mesh, schedule.placement),
      held_(schedule.buffers.size()),
      messages_(messages) {}

void GradientSums::contribute(const Operand& to, const Action& action) {
  const ScheduleFlat& flat = schedule_.flat(to.unit, schedule_.flats(to).front());
  const std::string& layer = schedule_.layers[static_cast<std::size_t>(action.layer)].name;
  const DType format = schedule_.buffer(to).format;
  const std::int64_t sample = divide_samples(schedule_.mesh, schedule_.micro_steps, 1)
                                  .first_sample_of(0, action.micro_step, 0);
  Parts& parts = at(to.buffer);
  if (!to.adds) parts.assign(flat.parts.size(), {});
  for (std::size_t p = 0; p < flat.parts.size(); ++p) {
    const std::vector<int>& layers = flat.parts[p].layers;
    if (std::ranges::find(layers, action.layer) == layers.end()) continue;
    if (parts[p].empty()) {
      parts[p] = SampleSum(sample, layer).rounded(format);
    } else {
      parts[p].extend(layer, format);
    }
  }
}

void GradientSums::move(const Operand& from, const Operand& to) {
  if (from.buffer == to.buffer) return;
  const DType format = schedule_.buffer(to).format;
  Parts& there = at(to.buffer);
  const Parts& parts = at(from.buffer);
  if (!to.adds) there.assign(parts.size(), {});
  for (std::size_t p = 0; p < parts.size(); ++p) {
    there[p].add(parts[p]);
    there[p] = there[p].rounded(format);
  }
}

/// Ranks are added in order of their numbers in the group: along the axes, the last fastest.
void GradientSums::reduce(const Action& action) {
  const Operand& to = action.writes.front();
  const DType format = schedule_.buffer(to).format;
  const Parts parts = at(action.reads.front().buffer);
  Parts& there = at(to.buffer);
  if (!to.adds) there.assign(parts.size(), {});
  const std::vector<Axis> axes = nesting_.order(action.axes);
  for (std::size_t p = 0; p < parts.size(); ++p) {
    // The innermost axis is one run; those outside repeat it.
    const Axis inner = axes.back();
    std::vector<std::int64_t> origins{0};
    for (std::size_t a = 0; a + 1 < axes.size(); ++a) {
      std::vector<std::int64_t> next;
      for (const std::int64_t origin : origins) {
        for (int i = 0; i < schedule_.mesh.size(axes[a]); ++i) {
          next.push_back(origin + i * sample_stride(nesting_, axes[a]));
        }
      }
      origins = std::move(next);
    }
    for (const std::int64_t origin : origins) {
      there[p].add_ranks(parts[p].later(origin), schedule_.mesh.size(inner),
                         sample_stride(nesting_, inner));
    }
    there[p] = there[p].rounded(format);
  }
}

void GradientSums::send(const Operand& gradient) {
  if (messages_ == nullptr) return;
  (*messages_)[{gradient.unit, schedule_.flats(gradient).front()}] = at(gradient.buffer);
}

/// A gradient that is not known of the sender reads "from" its unit.
void GradientSums::receive(const Operand& gradient) {
  const FlatId id{gradient.unit, schedule_.flats(gradient).front()};
  if (messages_ != nullptr && messages_->contains(id)) {
    at(gradient.buffer) = messages_->at(id);
    return;
  }
  const std::string& unit = schedule_.units[static_cast<std::size_t>(id.unit)].name;
  at(gradient.buffer).assign(schedule_.flat(id).parts.size(), SampleSum(0, "from " + unit));
}

void GradientSums::add_tied(const Operand& from, const Operand& to) {
  const FlatId mirror{from.unit, schedule_.flats(from).front()};
  const FlatId home{to.unit, schedule_.flats(to).front()};
  const std::vector<GradientPart>& parts = schedule_.flat(home).parts;
  for (std::size_t m = 0; m < at(from.buffer).size(); ++m) {
    const std::string& name = schedule_.flat(mirror).parts[m].name;
    const auto part = std::ranges::find(parts, name, &GradientPart::name);
    if (part == parts.end()) continue;
    SampleSum& sum = at(to.buffer)[static_cast<std::size_t>(part - parts.begin())];
    SampleSum both;
    both.add_ranks(at(from.buffer)[m], 1, 0);
    both.add_ranks(sum, 1, 0);
    sum = both;
  }
}

void GradientSums::use(const Operand& gradient) {
  used_[{gradient.unit, schedule_.flats(gradient).front()}] = at(gradient.buffer);
}

std::vector<GradientSum> GradientSums::result() const {
  std::vector<GradientSum> sums;
  for (const auto& [id, parts] : used_) {
    const std::string& unit = schedule_.units[static_cast<std::size_t>(id.unit)].name;
    for (std::size_t p = 0; p < parts.size(); ++p) {
      const GradientPart& part = schedule_.flat(id).parts[p];
      sums.push_back({unit, part.name, part.tensors, parts[p].text()});
    }
  }
  return sums;
}

std::vector<GradientSum> gradient_sums(const Schedule& schedule) {
  std::vector<Violation> violations;
  GradientSums sums(schedule);
  ContentWalk(schedule, violations, &sums).run();
  require(violations.empty(), ErrorCode::kInvalidArgument,
          "the sums of a broken schedule mean nothing: ",
          violations.empty() ? std::string() : violations.front().message);
  return sums.result();
}

std::uint64_t hash_of(const std::vector<GradientSum>& sums) {
  std::vector<std::string> lines;  // in any order: units may be cut otherwise
  for (const GradientSum& sum : sums) lines.push_back(concat(sum.part, '=', sum.terms));
  std::ranges::sort(lines);
  std::uint64_t hash = 0xcbf29ce484222325U;  // FNV-1a
  for (const std::string& line : lines) {
    for (const char c : line + '\n') {
      hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
    }
  }
  return hash;
}

}  // namespace tessera
