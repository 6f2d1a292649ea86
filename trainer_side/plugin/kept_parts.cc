#include "trainer_side/plugin/kept_parts.h"

#include <algorithm>
#include <ranges>

#include "shared/base/limits.h"

namespace wsync::plugin {

void KeptParts::ask(std::uint64_t question,
                    const std::map<std::uint32_t, control::PartWanted>& orders) {
  if (orders.empty()) return;
  Kept& kept = kept_[question];
  kept.part.step = orders.begin()->second.step;
  for (const auto& [rank, order] : orders) kept.ranks.insert(rank);
  for (const auto& [rank, order] : orders) {
    notify(rank);
    control::PartWanted wanted = order;
    wanted.question = question;
    send_(rank, std::move(wanted));
  }
}

void KeptParts::serve(const control::KeptPart& part) {
  // From the newest on: a step may have been asked for before, and have come to nothing.
  for (auto& [question, kept] : std::views::reverse(kept_)) {
    if (kept.part.step != part.step) continue;
    kept.part = part;
    for (const std::uint32_t rank : kept.ranks) notify(rank);
    return;
  }
}

void KeptParts::release(std::uint64_t question) {
  const auto released = kept_.extract(question);
  if (released.empty()) return;
  for (const std::uint32_t rank : released.mapped().ranks) notify(rank);
}

void KeptParts::notify(std::uint32_t rank) {
  control::PartsKept message;
  for (const auto& [question, kept] : kept_)
    if (kept.ranks.contains(rank) && message.parts.size() < limits::kHeldPartCount)
      message.parts.push_back(kept.part);
  send_(rank, std::move(message));
}

}  // namespace wsync::plugin
