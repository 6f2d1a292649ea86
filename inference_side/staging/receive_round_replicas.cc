// A Sidecar's replicas: their events, what their switches want, and the copies that they could not
// load.
#include <algorithm>
#include <utility>

#include "inference_side/staging/receive_round.h"

namespace wsync::staging {

void Sidecar::on(const ReplicaEvent& event) {
  const auto* hello = std::get_if<reload::RankAttached>(&event.what);
  auto found = replicas_.find(event.replica);
  const bool other_size = found != replicas_.end() && hello != nullptr &&
                          found->second.world_size() != event.world_size;
  if (other_size && found->second.attached() == 0 && !found->second.owes()) {
    replicas_.erase(found);  // it came back with another number of ranks
    found = replicas_.end();
  } else if (other_size || (found == replicas_.end() && hello == nullptr)) {
    ++dropped_;
    return;
  }
  if (found == replicas_.end()) {
    reload::SwitchOptions options = options_.replica;
    options.replica = event.replica;
    options.world_size = event.world_size;
    replicas_.emplace(event.replica, reload::ReplicaSwitch(std::move(options)));
    switch_step(event.replica, {.now = now_, .what = reload::StagedSet{held_versions()}});
    switch_step(event.replica, {.now = now_, .what = reload::WithdrawnSet{record_.withdrawn}});
    if (!record_.target.none())
      switch_step(event.replica, {.now = now_, .what = target_event(false)});
  }
  std::visit([&](const auto& what) { switch_step(event.replica, {.now = now_, .what = what}); },
             event.what);
}

void Sidecar::switch_step(const std::string& name, const reload::SwitchEvent& event) {
  for (reload::SwitchCommand& command : replicas_.at(name).step(event)) {
    if (const auto* done = std::get_if<reload::Done>(&command)) {
      if (collecting_ && done->decision == record_.decision)
        collecting_->outcomes.push_back(done->outcome);
    } else if (const auto* suspect = std::get_if<reload::CopySuspect>(&command)) {
      // The engines may be at fault as well: only a copy that has changed is let go.
      if (find(suspect->version) == nullptr || checking_.contains(suspect->version)) continue;
      checking_[suspect->version] = ++checks_;
      out_.push_back(CheckCopy{.check = checks_, .version = suspect->version});
    } else {
      out_.push_back(ForReplica{.replica = name, .command = std::move(command)});
    }
  }
}

void Sidecar::tell_withdrawn() {
  std::vector<std::string> names;
  for (const auto& [name, replica] : replicas_) names.push_back(name);
  for (const std::string& name : names)
    switch_step(name, {.now = now_, .what = reload::WithdrawnSet{record_.withdrawn}});
}

void Sidecar::report_switched() {
  if (!collecting_) return;
  for (const auto& [name, replica] : replicas_)
    if (replica.owes()) return;
  switched_ = *std::exchange(collecting_, std::nullopt);
  reply(decision_envelope_.round, decision_envelope_.request, *switched_);
}

void Sidecar::on(const CopyChecked& event) {
  const auto at = std::ranges::find_if(
      checking_, [&](const auto& entry) { return entry.second == event.check; });
  if (at == checking_.end()) {
    ++dropped_;
    return;
  }
  const Version version = at->first;
  checking_.erase(at);
  if (event.intact) return;
  // It is not what it was: let it go, and ask for it again.
  std::erase_if(held_, [&](const HeldCopy& copy) { return copy.version == version; });
  out_.push_back(ReleaseVersion{version});
  hello_due_ = true;
  staged_changed_ = true;
  if (incoming_ && incoming_->announce.version == version) incoming_.reset();
}

}  // namespace wsync::staging
