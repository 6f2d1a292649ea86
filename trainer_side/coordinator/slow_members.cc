#include "trainer_side/coordinator/slow_members.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "shared/base/planted.h"
#include "trainer_side/coordinator/decision_obligations.h"

namespace wsync::coordinator {
namespace {

bool is_staging(const Member& member, const CoordinatorRecord& record) {
  return member.joined && member.delivery.state() == DeliveryState::kStaging &&
         member.delivery.version() == record.target && !knows_newer(record, member);
}

// Whether a round without these sidecars can be decided.
bool others_suffice(const CoordinatorContext& context, const std::set<std::string>& left_out) {
  std::uint32_t sidecars = 0;
  std::uint32_t replicas = 0;
  std::uint32_t canaries = 0;
  for (const auto& [name, member] : context.roster.members()) {
    if (!member.joined || left_out.contains(name)) continue;
    ++sidecars;
    replicas += whole_replicas(member);
    canaries += whole_replicas(member, context.options.canary);
  }
  return sidecars > 0 && replicas >= std::max(1U, needed_replicas(context.options)) &&
         (context.options.canary.empty() || canaries > 0);
}

}  // namespace

bool is_finishing(const Member& member) {
  return member.finishes && member.delivery.is_under_way() &&
         member.delivery.version() == member.finishes->target;
}

std::uint32_t needed_replicas(const CoordinatorOptions& options) {
  const bool quorum = options.commit.rule == CommitRule::kQuorum;
  return std::max(options.min_replicas, quorum ? options.commit.quorum : 0);
}

std::set<std::string> SlowMembers::leave_out(CoordinatorContext& context,
                                             const CoordinatorRecord& record) {
  remove_finished(context.roster);
  if (context.options.commit.rule == CommitRule::kAll || planted("slow_member_starves")) return {};
  std::set<std::string> slow = names_;
  // The others of a canary's version wait for a promotion, which would be a decision of its own.
  const bool may_begin = record.number > 0 && !record.target.none() &&
                         record.kind != control::DecisionKind::kSwitchCanary &&
                         (names_.empty() || version_ == record.target);
  if (may_begin)
    for (const auto& [name, member] : context.roster.members())
      if (is_staging(member, record)) slow.insert(name);
  if (slow.empty()) return slow;
  if (!others_suffice(context, slow)) {
    // They are needed, so the round takes them away from their version: Announce replaces it.
    for (const std::string& name : std::exchange(names_, {}))
      context.roster.add(name).finishes.reset();
    return {};
  }
  std::shared_ptr<const CoordinatorRecord> shared;
  for (const std::string& name : slow) {
    if (names_.contains(name)) continue;
    Member& member = context.roster.add(name);
    if (!shared) shared = std::make_shared<const CoordinatorRecord>(record);
    stop_finishing(context, record, member);  // of an older version, which it has staged
    member.finishes = shared;
    if (member.decided < record.number) send_decide(context, record, member);
  }
  names_ = slow;
  version_ = may_begin ? record.target : version_;
  return slow;
}

void SlowMembers::interrupt(CoordinatorContext& context, const std::string& why) {
  names_.clear();
  for (auto& [name, member] : context.roster.change_all()) {
    if (is_finishing(member)) {
      context.send(member, control::Abort{.version = member.delivery.version(), .reason = why},
                   member.delivery.round());
      member.delivery.forget();
      member.staged_bytes = 0;
    }
    member.finishes.reset();
  }
}

Version SlowMembers::version(const Roster& roster) const {
  const bool any = std::ranges::any_of(names_, [&](const std::string& name) {
    const Member* member = roster.find(name);
    return member != nullptr && is_finishing(*member);
  });
  return any ? version_ : Version{};
}

void SlowMembers::remove_finished(const Roster& roster) {
  std::erase_if(names_, [&](const std::string& name) {
    const Member* member = roster.find(name);
    return member == nullptr || !is_finishing(*member);
  });
}

}  // namespace wsync::coordinator
