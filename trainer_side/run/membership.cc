#include "trainer_side/run/membership.h"

#include <array>
#include <chrono>
#include <utility>
#include <vector>

#include "shared/base/format.h"
#include "shared/base/log.h"
#include "shared/base/unix_socket.h"
#include "shared/process_group/gloo/gloo_group.h"

namespace wsync::cli {
namespace {

static_assert(config::kTrainRanks <= collective::gloo::kGlooRankCount);

// The launcher answers as soon as it knows which rank is lost. If the launcher ends, this process
// ends too, so this limit is only a safeguard.
constexpr std::chrono::hours kForTheLauncher{1};

// Returns the newest segment that the launcher has sent; an invalid descriptor if the run is over.
Result<UniqueFd> next_segment(int control, std::uint32_t rank) {
  std::vector<UniqueFd> segments;
  for (;;) {
    std::array<std::byte, 1> sign{};
    const auto received = WSYNC_TRY(receive_some(control, sign, segments));
    if (received > 0 && sign.front() == kReplacedSign)
      return fail(ErrorCode::kFenced,
                  fmt::format("rank {} was replaced: this process sent no heartbeat for longer "
                              "than heartbeat.deadline, and another process has replaced it",
                              rank));
    if (received > 0 && sign.front() == kOverSign) return UniqueFd();
    if (received > 0) continue;
    if (!segments.empty()) return std::move(segments.back());
    WSYNC_TRY(wait_readable(control, now() + kForTheLauncher));
  }
}

}  // namespace

Result<std::unique_ptr<Membership>> Membership::join(const RankStart& start) {
  std::unique_ptr<Membership> membership(new Membership(start));
  if (start.segment >= 0) {
    const UniqueFd segment(start.segment);  // inherited; mapped from here on
    if (const auto entered = membership->enter(segment.get()); !entered) {
      if (!membership->is_renewed()) return fail(entered.error());
      const auto goes_on = WSYNC_TRY(membership->rejoin(entered.error()));
      if (!goes_on)
        return fail(ErrorCode::kCancelled, "the run ended before this process had begun");
    }
    return membership;
  }
  membership->gloo_ =
      WSYNC_TRY(collective::gloo::join({.rank = start.rank,
                                        .size = start.config.parallel.pp * start.config.parallel.dp,
                                        .directory = start.config.ranks.rendezvous,
                                        .run = "wsync",
                                        .address = start.config.ranks.address},
                                       now() + start.config.deadline));
  membership->group_ = membership->gloo_.get();
  return membership;
}

Result<> Membership::enter(int segment) {
  auto attached = WSYNC_TRY(collective::memory::attach(segment, start_.rank));
  auto* const entered = attached.get();
  entered->notify(word_);
  // The heartbeat uses the former group, which regroup() releases.
  heartbeat_.reset();
  if (renewed_)
    WSYNC_TRY(renewed_->regroup(std::move(attached)));
  else
    renewed_ = std::make_unique<collective::RegroupableGroup>(std::move(attached));
  memory_ = entered;
  group_ = renewed_.get();
  heartbeat_ =
      std::make_unique<collective::memory::Heartbeat>(*entered, start_.config.heartbeat.interval);
  return {};
}

Result<bool> Membership::rejoin(const Error& why) {
  for (;;) {
    const auto segment = next_segment(start_.control, start_.rank);
    if (!segment) return fail(segment.error().code() == ErrorCode::kFenced ? segment.error() : why);
    if (!segment->valid()) return false;
    const Result<> entered = enter(segment->get());
    is_first_ = false;
    if (entered) return true;
    // This group may already be broken. The launcher then sends another one, or the end of the run.
    if (entered.error().code() != ErrorCode::kPeerLost)
      log_warning("rank {} cannot join the others: {}", start_.rank, entered.error().message());
  }
}

void Membership::notify(std::uint64_t word) noexcept {
  word_ = word;
  if (memory_ != nullptr) memory_->notify(word);
}

std::uint64_t Membership::told(std::uint32_t rank) const noexcept {
  return memory_ == nullptr ? 0 : memory_->told(rank);
}

}  // namespace wsync::cli
