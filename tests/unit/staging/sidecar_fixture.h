// A sidecar's core, which a test drives by events and whose commands it reads.
#pragma once

#include <gtest/gtest.h>
#include <string>
#include <utility>
#include <vector>

#include "inference_side/staging/sidecar.h"
#include "tests/support/versions.h"

namespace wsync::staging {

using control::Envelope;
using control::Fence;

inline const Fence kOld{.epoch = 1};
inline const Fence kNow{.epoch = 2};
inline const Fence kNext{.epoch = 3};

inline Digest content_of(const Version& version) { return {.low = version.step, .high = 9}; }

class SidecarTest : public testing::Test {
 protected:
  template <class T>
  void step(T what) {
    now = now + std::chrono::milliseconds(1);
    last = sidecar.step({.now = now, .what = std::move(what)});
  }
  void message(const Fence& fence, std::uint64_t round, control::Message m) {
    Envelope envelope;
    envelope.fence = fence;
    envelope.round = round;
    step(CoordinatorMessage{.envelope = envelope, .message = std::move(m)});
  }
  template <class T>
  [[nodiscard]] const T* command() const {
    for (const SidecarCommand& c : last)
      if (const T* found = std::get_if<T>(&c)) return found;
    return nullptr;
  }
  template <class T>
  [[nodiscard]] const T* replied() const {
    for (const SidecarCommand& c : last)
      if (const auto* r = std::get_if<Reply>(&c))
        if (const T* found = std::get_if<T>(&r->message)) return found;
    return nullptr;
  }
  template <class T>
  [[nodiscard]] const T* to_replica() const {
    for (const SidecarCommand& c : last)
      if (const auto* r = std::get_if<ForReplica>(&c))
        if (const T* found = std::get_if<T>(&r->command)) return found;
    return nullptr;
  }
  void persisted(std::string failure = "") {
    const auto* persist = command<Persist>();
    ASSERT_NE(persist, nullptr);
    step(Persisted{.token = persist->token, .failure = std::move(failure)});
  }
  void ask_for_hello(const Fence& fence) {
    message(fence, 0, control::Welcome{});
    if (command<Persist>() != nullptr) persisted();
  }
  void answer_hello(const Fence& fence) {
    for (const SidecarCommand& c : last)
      if (const auto* r = std::get_if<Reply>(&c);
          r != nullptr && std::holds_alternative<control::Hello>(r->message))
        return step(CoordinatorMessage{.envelope = {.fence = fence, .request = r->envelope.request},
                                       .message = control::Welcome{}});
  }
  void welcome(const Fence& fence) {
    ask_for_hello(fence);
    answer_hello(fence);
  }
  void announce(std::uint64_t round, const Version& version) {
    message(kNow, round,
            control::Announce{.version = version,
                              .layout_digest = {.low = 1},
                              .content_digest = content_of(version)});
  }
  // `fits_beside`: the memory allows one copy more than versions_held.
  void stage(std::uint64_t round, const Version& version, bool fits_beside = false) {
    announce(round, version);
    step(LayoutChecked{.round = round, .fits_beside = fits_beside});
    message(kNow, round, control::Stage{.version = version, .source = "a"});
    if (const auto* start = command<StartStaging>())
      step(StagingDone{.attempt = start->attempt,
                       .content_digest = content_of(version),
                       .base = as_changes ? start->base : Version{}});
  }
  void decide(std::uint64_t number, const Version& version, std::vector<Version> withdrawn = {}) {
    message(kNow, 7,
            control::Decide{.number = number,
                            .kind = withdrawn.empty() ? control::DecisionKind::kSwitch
                                                      : control::DecisionKind::kRollback,
                            .target = version,
                            .withdrawn = std::move(withdrawn),
                            .content_digest = content_of(version)});
  }
  // One replica of one rank that serves `version`.
  void engine(const Version& version) {
    step(ReplicaEvent{
        .replica = "r",
        .world_size = 1,
        .what = reload::RankAttached{
            .rank = 0,
            .leader = true,
            .state = version.none() ? control::RankState::kLoading : control::RankState::kServing,
            .active = version}});
  }
  // Answers what the replica is asked until nothing is asked.
  void run_switch() {
    for (int i = 0; i < 20; ++i) {
      RankEvent answer;
      if (const auto* pause = to_replica<reload::SendPause>())
        answer = reload::RankPaused{.rank = 0, .request = pause->request};
      else if (const auto* load = to_replica<reload::BeginLoad>())
        answer = reload::RankLoaded{
            .rank = 0, .request = load->request, .version = load->version, .bytes = 1};
      else if (const auto* commit = to_replica<reload::SendCommit>())
        answer = reload::RankCommitted{
            .rank = 0, .request = commit->request, .version = commit->version};
      else if (const auto* resume = to_replica<reload::SendResume>())
        answer = reload::RankResumed{.rank = 0, .request = resume->request};
      else
        return;
      step(ReplicaEvent{.replica = "r", .what = answer});
    }
  }
  void serve(const Version& version) {
    welcome(kNow);
    stage(1, version);
    decide(1, version);
    persisted();
    engine({});
    run_switch();
  }

  // Serves V1 and is to switch to V2; two loads of it fail. The check that is asked for.
  std::uint64_t fail_to_load_v2() {
    serve(kV1);
    stage(2, kV2);
    decide(2, kV2);
    persisted();
    std::uint64_t check = 0;
    const auto* pause = to_replica<reload::SendPause>();
    if (pause == nullptr) return check;
    step(ReplicaEvent{.replica = "r",
                      .what = reload::RankPaused{.rank = 0, .request = pause->request}});
    for (int i = 0; i < 2; ++i) {
      const auto* load = to_replica<reload::BeginLoad>();
      EXPECT_EQ(load->version, kV2);
      step(ReplicaEvent{
          .replica = "r",
          .what = reload::RankLoaded{.rank = 0, .request = load->request, .failure = "no memory"}});
      EXPECT_EQ(command<ReleaseVersion>(), nullptr);
    }
    if (const auto* asked = command<CheckCopy>()) check = asked->check;
    EXPECT_NE(check, 0U);
    return check;
  }

  bool as_changes = false;  // stage() stages versions as what changes, if they have a base
  Sidecar sidecar{{.name = "s"}};
  TimePoint now{1};
  std::vector<SidecarCommand> last;
};

}  // namespace wsync::staging
