// A coordinator in virtual time, with sidecars that do as they are told.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <gtest/gtest.h>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trainer_side/coordinator/coordinator.h"

namespace wsync::coordinator {

using control::Message;

inline const control::Fence kNoFence{};
inline constexpr control::FleetId kFleetId{.high = 70, .low = 7};

// Drives one coordinator: collects its commands and answers as well-behaved sidecars would when
// told to.
class Fleet {
 public:
  explicit Fleet(CoordinatorOptions options = {})
      : coordinator(with_defaults(std::move(options))) {}

  static CoordinatorOptions with_defaults(CoordinatorOptions options) {
    options.run_id = {7, 7};
    options.boot_id = "boot";
    if (options.transports.empty())
      options.transports = {{"memfd", "/run/host.sock"}, {"tcp", "tcp://127.0.0.1:1"}};
    if (options.fleet_id.none() && !options.record && !options.new_fleet_id.none())
      return options;  // a test of how the id is chosen
    options.fleet_id = options.record ? options.record->fence.fleet : kFleetId;
    return options;
  }

  void step(decltype(CoordinatorEvent::what) what) {
    std::vector<Store> stores;
    auto commands = coordinator.step({.now = now, .what = std::move(what)});
    if (check_all) {
      const Result<> holds = coordinator.invariants();
      EXPECT_TRUE(holds.has_value()) << holds.error().message();
    }
    for (auto& command : commands) {
      if (auto* sent = std::get_if<SendTo>(&command))
        sends.push_back(std::move(*sent));
      else if (auto* done = std::get_if<RoundDone>(&command))
        rounds.push_back(std::move(*done));
      else if (auto* one = std::get_if<RoundLost>(&command)) {
        // Who hears of it may publish the version again at once.
        EXPECT_NE(std::ranges::find(dropped, one->version), dropped.end())
            << "what is dropped later would be the new offer";
        lost.push_back(std::move(*one));
      } else if (auto* back = std::get_if<RollbackDone>(&command))
        rollbacks.push_back(std::move(*back));
      else if (auto* promotion = std::get_if<PromotionDone>(&command))
        promotions.push_back(std::move(*promotion));
      else if (auto* cancel = std::get_if<CancelDone>(&command))
        cancels.push_back(std::move(*cancel));
      else if (auto* forget = std::get_if<ForgetDone>(&command))
        forgets.push_back(std::move(*forget));
      else if (auto* gone = std::get_if<Forgotten>(&command))
        forgotten.push_back(gone->sidecar);
      else if (auto* drop = std::get_if<DropVersion>(&command))
        dropped.push_back(drop->version);
      else if (auto* ready = std::get_if<Ready>(&command))
        recovered = ready->target;
      else if (auto* stopped = std::get_if<Stopped>(&command))
        stop_reason = stopped->reason;
      else if (auto* told = std::get_if<Incident>(&command))
        incidents.push_back(told->text);
      else if (auto* store = std::get_if<Store>(&command))
        stores.push_back(std::move(*store));
    }
    for (Store& store : stores) {
      if (hold_stores)
        held_stores.push_back(std::move(store));
      else
        stored(store);
    }
  }
  // Answers a Store, well or not.
  void stored(const Store& store, const std::string& failure = {}, bool fenced = false) {
    if (failure.empty()) {
      record = store.record;
      step(Stored{.token = store.token, .record = store.record});
      return;
    }
    step(Stored{.token = store.token,
                .record = fail(fenced ? ErrorCode::kFenced : ErrorCode::kIo, failure)});
  }
  // Answers the first one that was held back.
  void answer_store(const std::string& failure = {}, bool fenced = false) {
    ASSERT_FALSE(held_stores.empty());
    const Store store = held_stores.front();
    held_stores.erase(held_stores.begin());
    stored(store, failure, fenced);
  }
  void from(const std::string& peer, Message message, std::uint64_t round = 0) {
    from_fence(peer, coordinator.fence(), std::move(message), round);
  }
  // The Hello of a process that follows one of the same name which is known to have ended.
  void restarted(const std::string& peer, const control::Hello& hello) {
    control::Envelope envelope;
    envelope.fence = coordinator.fence();
    control::Hello said = hello;
    if (said.origin.none()) said.origin = said.decision;
    step(
        PeerMessage{.peer = peer, .envelope = envelope, .message = said, .predecessor_gone = true});
  }
  void from_fence(const std::string& peer, control::Fence fence, Message message,
                  std::uint64_t round = 0) {
    control::Envelope envelope;
    envelope.fence = fence;
    envelope.round = round;
    // What these tests say of a decision is of one that was new when it was taken.
    if (auto* hello = std::get_if<control::Hello>(&message); hello && hello->origin.none())
      hello->origin = hello->decision;
    step(PeerMessage{.peer = peer, .envelope = envelope, .message = std::move(message)});
  }
  static control::Hello hello(const std::string& name, std::vector<Version> staged = {}) {
    control::Hello hello;
    hello.name = name;
    hello.boot_id = "boot";
    hello.transports = {{"memfd", ""},
                        {"tcp", "tcp://127.0.0.1:" + std::to_string(10 + name.back())}};
    hello.staged = std::move(staged);
    hello.replicas = {{.replica = "r-" + name, .world_size = 1, .ranks_attached = 1}};
    return hello;
  }
  // A sidecar joins: Hello, Welcome, Hello under our fence.
  void join(const std::string& name, const control::Hello& first) {
    from_fence(name, kNoFence, first);
    from(name, first);
  }
  void join(const std::string& name) { join(name, hello(name)); }
  // Several at a time, for a coordinator that waits for so many.
  void join_all(const std::vector<std::string>& names) {
    for (const std::string& name : names) from_fence(name, kNoFence, hello(name));
    for (const std::string& name : names) from(name, hello(name));
  }
  void publish(std::uint64_t request = 1, std::optional<TimePoint> deadline = {}) {
    const auto version = coordinator.next_version();
    ASSERT_TRUE(version.has_value()) << version.error().message();
    PublishRequested publish = snapshot(request, *version);
    publish.deadline = deadline;
    step(std::move(publish));
  }
  // A complete snapshot; its content depends on the step.
  static PublishRequested snapshot(std::uint64_t request, const Version& version) {
    return {.request = request,
            .version = version,
            .layout_digest = {1, 1},
            .content_digest = {2, version.step},
            .layout = Bytes(4),
            .bucket_bytes = 1,
            .arena_bytes = 100};
  }
  // The last message of a type sent to a peer, with its envelope.
  template <class T>
  std::optional<std::pair<control::Envelope, T>> last(const std::string& peer) {
    for (auto it = sends.rbegin(); it != sends.rend(); ++it)
      if (it->peer == peer)
        if (const auto* message = std::get_if<T>(&it->message))
          return std::pair{it->envelope, *message};
    return std::nullopt;
  }
  template <class T>
  std::size_t count(const std::string& peer) {
    return static_cast<std::size_t>(std::count_if(sends.begin(), sends.end(), [&](const SendTo& s) {
      return s.peer == peer && std::holds_alternative<T>(s.message);
    }));
  }
  void accept(const std::string& peer) {
    const auto announce = last<control::Announce>(peer);
    ASSERT_TRUE(announce.has_value());
    from(peer, control::Accept{announce->second.version}, announce->first.round);
  }
  void staged(const std::string& peer) {
    const auto announce = last<control::Announce>(peer);
    from(peer,
         control::Staged{.version = announce->second.version,
                         .content_digest = announce->second.content_digest,
                         .bytes = 100},
         announce->first.round);
  }
  void switched(const std::string& peer,
                control::SwitchOutcome outcome = control::SwitchOutcome::kCommitted) {
    const auto decide = last<control::Decide>(peer);
    ASSERT_TRUE(decide.has_value()) << peer;
    from(peer, control::Decided{.number = decide->second.number});
    from(peer, control::Switched{.number = decide->second.number,
                                 .target = decide->second.target,
                                 .outcomes = {{.replica = "r-" + peer,
                                               .outcome = outcome,
                                               .version = decide->second.target}}});
  }
  void full_round(const std::vector<std::string>& peers) {
    publish();
    for (const auto& p : peers) accept(p);
    for (const auto& p : peers) staged(p);
    for (const auto& p : peers) switched(p);
  }
  control::CancelReply cancel(const Version& version = {}) {
    step(CancelRequested{.request = cancels.size() + 1, .version = version});
    EXPECT_EQ(cancels.back().request, cancels.size());
    return cancels.back().reply;
  }
  void wake() {
    const auto at = coordinator.next_wake();
    ASSERT_TRUE(at.has_value());
    now = std::max(now, *at);
    step(CoordinatorTick{});
  }

  Coordinator coordinator;
  TimePoint now{1'000'000'000};
  std::vector<SendTo> sends;
  std::vector<RoundDone> rounds;
  std::vector<RoundLost> lost;
  std::vector<RollbackDone> rollbacks;
  std::vector<PromotionDone> promotions;
  std::vector<CancelDone> cancels;
  std::vector<ForgetDone> forgets;
  std::vector<std::string> forgotten;
  std::vector<Version> dropped;
  std::optional<Version> recovered;
  std::string stop_reason;
  std::vector<std::string> incidents;
  CoordinatorRecord record;  // what was stored last
  bool check_all = true;     // the rules of every member, after every event
  bool hold_stores = false;  // held_stores are answered by answer_store()
  std::vector<Store> held_stores;
};

}  // namespace wsync::coordinator
