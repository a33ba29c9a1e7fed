#include "tessera/trainer/agreement.h"

#include <algorithm>
#include <utility>

#include "tessera/core/cpu_device.h"
#include "tessera/core/digest.h"
#include "tessera/core/error.h"
#include "tessera/trainer/gather.h"

namespace tessera {
namespace {

// An error is to be read: of many differences and values it names some.
constexpr std::size_t kMostDifferences = 6;
constexpr std::size_t kMostValues = 4;

constexpr const char* kAbsent = "not known";

/// Until all processes have got this far. One that fails here has left with what it came for.
void meet_again(World& world) {
  try {
    launch_ranks(world.groups(), [](int, ProcessGroup& group) {
      const auto device = make_cpu_device();
      const auto stream = device->create_stream({.name = "agreement"});
      group.barrier(*stream);
      stream->synchronize();
    });
  } catch (const std::exception&) {  // NOLINT: the caller has an error to tell
  }
}

// Names and values end with a zero, which no text holds.
std::string to_text(const std::vector<NamedText>& values) {
  std::string text;
  for (const NamedText& value : values) {
    (text += value.name) += '\0';
    (text += value.value) += '\0';
  }
  return text;
}

std::vector<NamedText> parse(std::string_view text) {
  std::vector<std::string> words;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\0'), text.size());
    words.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  std::vector<NamedText> values;
  for (std::size_t i = 0; i + 1 < words.size(); i += 2) values.push_back({words[i], words[i + 1]});
  return values;
}

/// "rank 3", "ranks 0-3", "ranks 0-3, 8-11".
std::string describe_ranks(const std::vector<int>& processes, int each) {
  std::string list;
  for (std::size_t i = 0; i < processes.size();) {
    std::size_t end = i + 1;
    while (end < processes.size() && processes[end] == processes[end - 1] + 1) ++end;
    const int first = processes[i] * each;
    const int last = processes[end - 1] * each + each - 1;
    list += concat(list.empty() ? "" : ", ", first);
    if (last > first) list += concat("-", last);
    i = end;
  }
  const bool one = processes.size() == 1 && each == 1;
  return (one ? "rank " : "ranks ") + list;
}

/// "--seed is 1 on ranks 0-3 and 2 on ranks 4-7", or nothing if it is the same everywhere.
std::string difference(const std::string& name, const std::vector<std::string>& value_of_process,
                       int each) {
  std::vector<std::pair<std::string, std::vector<int>>> groups;
  for (std::size_t p = 0; p < value_of_process.size(); ++p) {
    auto group =
        std::ranges::find(groups, value_of_process[p], [](const auto& g) { return g.first; });
    if (group == groups.end()) group = groups.insert(groups.end(), {value_of_process[p], {}});
    group->second.push_back(static_cast<int>(p));
  }
  if (groups.size() == 1) return "";
  std::string text = name + " is ";
  const std::size_t told = std::min(groups.size(), kMostValues);
  for (std::size_t g = 0; g < told; ++g) {
    if (g > 0) text += g + 1 == groups.size() ? " and " : ", ";
    text += concat(groups[g].first, " on ", describe_ranks(groups[g].second, each));
  }
  if (told < groups.size()) text += concat(", and ", groups.size() - told, " other values");
  return text;
}

/// All names, in the order of the first process that has them.
std::vector<std::string> names_of(const std::vector<std::vector<NamedText>>& all) {
  std::vector<std::string> names;
  for (const auto& values : all) {
    for (const NamedText& value : values) {
      if (std::ranges::find(names, value.name) == names.end()) names.push_back(value.name);
    }
  }
  return names;
}

std::string describe_differences(const std::vector<std::string>& texts, int each) {
  std::vector<std::vector<NamedText>> all;
  for (const std::string& text : texts) all.push_back(parse(text));
  std::vector<std::string> differences;
  for (const std::string& name : names_of(all)) {
    std::vector<std::string> values;
    for (const auto& of_process : all) {
      const auto found = std::ranges::find(of_process, name, &NamedText::name);
      values.push_back(found == of_process.end() ? kAbsent : found->value);
    }
    std::string text = difference(name, values, each);
    if (!text.empty()) differences.push_back(std::move(text));
  }
  std::string list;
  const std::size_t told = std::min(differences.size(), kMostDifferences);
  for (std::size_t i = 0; i < told; ++i) list += (i == 0 ? "" : "; ") + differences[i];
  if (told < differences.size()) list += concat("; and ", differences.size() - told, " more");
  return list;
}

}  // namespace

std::vector<std::string> gather_texts(const World& world, const std::string& own) {
  const std::vector<std::string> by_rank = gather_ranks(world, [&](int) { return own; });
  std::vector<std::string> texts;
  for (int p = 0; p < world.processes(); ++p) {
    texts.push_back(by_rank[static_cast<std::size_t>(p * world.local_ranks())]);
  }
  return texts;
}

void require_agreement(World& world, const std::vector<NamedText>& own) {
  if (world.processes() == 1) return;
  const std::string text = to_text(own);
  Digest digest;
  digest.add(text);
  const auto digests = gather_ranks(world, [&](int) { return digest.value(); });
  if (std::ranges::adjacent_find(digests, std::ranges::not_equal_to()) == digests.end()) return;
  const std::string differences =
      describe_differences(gather_texts(world, text), world.local_ranks());
  // All know it now. A process that leaves takes its world down, which must not reach another one
  // before that one has come to the same end.
  meet_again(world);
  fail(ErrorCode::kConfig, "the processes of this run disagree: ", differences,
       "; give all of them the same program, settings and data");
}

}  // namespace tessera
