#include "inference_side/sidecar/patch_shelf.h"

#include <algorithm>
#include <utility>

#include "shared/base/format.h"
#include "shared/base/log.h"
#include "shared/base/planted.h"
#include "shared/base/units.h"
#include "shared/observe/trace/progress.h"

namespace wsync::agent {

PatchShelf::PatchShelf(Loop& loop, PatchOptions options)
    : loop_(loop),
      options_(std::move(options)),
      worker_(std::make_unique<Worker>(loop, WorkerOptions{.name = "patches", .max_queued = 8})) {}

PatchShelf::~PatchShelf() {
  *alive_ = false;
  for (Entry& entry : entries_) entry.stop.request_stop();
  worker_->stop();
}

bool PatchShelf::make(const Held& base, const Held& target, std::function<void()> on_done,
                      std::shared_ptr<const staging::ReceivedChanges> changes) {
  if (!options_.enabled || base->identity().layout != target->identity().layout) return false;
  if (!options_.compares && !staging::HeldPatch::is_known(*base, *target, changes.get()))
    return false;
  const auto found = std::ranges::find_if(entries_, [&](const Entry& entry) {
    return entry.base == base->version() && entry.target == target->version();
  });
  if (found != entries_.end()) {
    if (found->patch)
      loop_.post(std::move(on_done));
    else
      found->waiting.push_back(std::move(on_done));
    return true;
  }
  // The way back is the first to make room.
  if (options_.room() / 2 < worth(*target)) drop(leads_back);
  return submit(base->version(), target->version(), max_bytes(*target), std::move(on_done),
                [base, target, changes = std::move(changes)](const staging::PatchLimits& limits) {
                  return staging::HeldPatch::make(base, target, limits, changes.get());
                });
}

void PatchShelf::make_back(const std::shared_ptr<const staging::HeldPatch>& forward,
                           const Held& base) {
  const Version from = forward->target().version();
  const auto is_here = [&](const Entry& entry) {
    return entry.base == from && entry.target == base->version();
  };
  const std::uint64_t max = max_bytes(*base);
  if (std::ranges::any_of(entries_, is_here) || forward->bytes() > max) return;
  (void)submit(
      from, base->version(), max, [] {},
      [forward, base](const staging::PatchLimits& limits) {
        return staging::HeldPatch::make_back(*forward, *base, limits);
      });
}

std::uint64_t PatchShelf::worth(const staging::HeldVersion& target) const {
  return static_cast<std::uint64_t>(options_.max_share *
                                    static_cast<double>(target.manifest()->total_bytes()));
}

// While it is written to the memory that is shared, it is there twice.
std::uint64_t PatchShelf::max_bytes(const staging::HeldVersion& target) const {
  return std::min(worth(target), options_.room() / 2);
}

bool PatchShelf::submit(const Version& base, const Version& target, std::uint64_t max_bytes,
                        std::function<void()> on_done,
                        std::function<Outcome(const staging::PatchLimits&)> make) {
  Entry entry{.base = base,
              .target = target,
              .number = next_++,
              .stop = {},
              .patch = nullptr,
              .waiting = {}};
  auto outcome = std::make_shared<Outcome>(fail(ErrorCode::kCancelled, "not made"));
  const auto submitted = worker_->submit(
      [outcome, make = std::move(make),
       limits = staging::PatchLimits{.max_bytes = max_bytes,
                                     .threads = options_.threads,
                                     .value_cost = options_.value_cost,
                                     .stop = entry.stop.get_token()}]() mutable {
        *outcome = std::exchange(make, nullptr)(limits);
      },
      [this, alive = alive_, number = entry.number, outcome, begin = now()] {
        if (*alive) made(number, *outcome, begin);
      });
  if (!submitted) {
    log_debug("no patch from {} to {}: {}", entry.base.to_string(), entry.target.to_string(),
              submitted.error().message());
    return false;
  }
  entry.waiting.push_back(std::move(on_done));
  entries_.push_back(std::move(entry));
  return true;
}

void PatchShelf::made(std::uint64_t number, const Outcome& outcome, TimePoint begin) {
  const auto found = std::ranges::find(entries_, number, &Entry::number);
  if (found == entries_.end()) return;
  const std::vector<std::function<void()>> waiting = std::move(found->waiting);
  const Version base = found->base;
  const Version target = found->target;
  const bool has_room = outcome && (*outcome)->bytes() <= options_.room();
  if (has_room) {
    found->patch = *outcome;
    log_info("patch from {} to {}: {} of {}", base.to_string(), target.to_string(),
             trace::format_bytes((*outcome)->bytes()),
             trace::format_bytes((*outcome)->target().manifest()->total_bytes()));
  } else {
    if (!outcome && outcome.error().code() == ErrorCode::kDigestMismatch)
      log_warning("no patch from {} to {}: {}", base.to_string(), target.to_string(),
                  outcome.error().message());
    else
      log_debug("no patch from {} to {}: {}", base.to_string(), target.to_string(),
                outcome ? "there is no room for it" : outcome.error().message());
    entries_.erase(found);
  }
  options_.on_made(base, target, has_room ? outcome->get() : nullptr, begin, now());
  options_.on_bytes(bytes(), bytes_back());
  for (const auto& done : waiting) done();
}

template <class Predicate>
void PatchShelf::drop(const Predicate& predicate) {
  const auto dropped = std::erase_if(entries_, [&](Entry& entry) {
    if (!predicate(entry)) return false;
    entry.stop.request_stop();
    // Unmapping takes long. If the queue is full, it is done here.
    (void)worker_->submit([patch = std::move(entry.patch)] {});
    // made() does not find the entry any more. A version must not wait for a patch that never
    // comes.
    if (!planted("dropped_patch_keeps_waiting"))
      for (auto& done : entry.waiting) loop_.post(std::move(done));
    return true;
  });
  if (dropped != 0) options_.on_bytes(bytes(), bytes_back());
}

void PatchShelf::drop_back() { drop(leads_back); }

void PatchShelf::forget(const Version& version) {
  // Nobody waits for what leads to a version that is gone.
  for (Entry& entry : entries_)
    if (entry.target == version) entry.waiting.clear();
  drop([&](const Entry& entry) { return entry.base == version || entry.target == version; });
}

void PatchShelf::keep_only(const std::set<Version>& bases) {
  drop([&](const Entry& entry) { return !bases.contains(entry.base); });
}

std::shared_ptr<const staging::HeldPatch> PatchShelf::find(const Version& base,
                                                           const Version& target) const {
  for (const Entry& entry : entries_)
    if (entry.base == base && entry.target == target) return entry.patch;
  return nullptr;
}

std::vector<std::shared_ptr<const staging::HeldPatch>> PatchShelf::all() const {
  std::vector<std::shared_ptr<const staging::HeldPatch>> patches;
  for (const Entry& entry : entries_)
    if (entry.patch) patches.push_back(entry.patch);
  return patches;
}

template <class Predicate>
std::uint64_t PatchShelf::bytes_of(const Predicate& predicate) const {
  std::uint64_t total = 0;
  for (const Entry& entry : entries_)
    if (entry.patch && predicate(entry)) total += entry.patch->bytes();
  return total;
}

std::uint64_t PatchShelf::bytes() const {
  return bytes_of([](const Entry&) { return true; });
}

std::uint64_t PatchShelf::bytes_back() const { return bytes_of(leads_back); }

}  // namespace wsync::agent
