// VersionReceiver: stages versions on this host and releases them. Depending on the kind of
// transport it receives buckets into an arena of the store, or maps the arena of a trainer on this
// host. The store verifies every byte. Then the engines are prepared for the version, and the state
// machine is notified that it is staged. Received copies are offered to other sidecars (relay). The
// buckets may arrive while the trainer takes the snapshot; the version is complete when its content
// digest is known as well.
//
// A version of which only what changes from the target arrives needs no arena: it is held as these
// changes, and after its decision the arena of the target is changed in place (complete()): an own
// one by the store, a mapped one by the trainer.
//
// At most one version arrives at a time.
//
// Thread: the loop's. Transports and the store have their own threads and post to the loop. The
// loop and everything that the options refer to must outlive this object.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "inference_side/sidecar/offered_layouts.h"
#include "inference_side/sidecar/sidecar_metrics.h"
#include "inference_side/sidecar/switch_trace.h"
#include "inference_side/staging/received_changes.h"
#include "inference_side/staging/sidecar.h"
#include "inference_side/staging/store.h"
#include "shared/config/sidecar_config.h"
#include "shared/loop/loop.h"
#include "shared/loop/timer.h"
#include "shared/transport/transport.h"

namespace wsync::agent {

struct VersionReceiverOptions {
  const config::SidecarConfig* config = nullptr;
  const OfferedLayouts* layouts = nullptr;
  SwitchTrace* trace = nullptr;
  SidecarMetrics* metrics = nullptr;
  // The fence that the sidecar has stored. Versions are fetched and offered under this fence.
  std::function<const control::Fence&()> fence;
  // The version that the sidecar has stored as its target; 0.0 if there is none.
  std::function<Version()> target;
  // Passes an event to the sidecar's state machine. It is never called inside a call of this class.
  std::function<void(decltype(staging::SidecarEvent::what))> step;
  // Whether `changes` are of use below.
  bool keep_changes = false;
  // A version is complete and verified. The callee prepares the engines, then calls `on_ready`.
  // `changes`: by which it has come; null if it has come otherwise. `wait`: how long the
  // answers of engines are awaited.
  std::function<void(const std::shared_ptr<const staging::HeldVersion>&,
                     const std::shared_ptr<const staging::ReceivedChanges>& changes,
                     std::function<void()> on_ready, std::chrono::milliseconds wait)>
      prepare;
  // The same for a version of which only what changes from another one is here. It cannot be loaded
  // before `prepare` is called for it as well.
  std::function<void(const std::shared_ptr<const staging::HeldVersion>&,
                     const std::shared_ptr<const staging::ReceivedChanges>& changes,
                     std::function<void()> on_ready, std::chrono::milliseconds wait)>
      prepare_changes;
  // A version can no longer be loaded. `is_lent`: what leads from it to another one is kept,
  // because engines serve it.
  std::function<void(const Version&, bool is_lent)> forget;
  // Whether an engine serves from the memory of a version, which can therefore not be changed.
  std::function<bool()> serves_from_memory = [] { return false; };
  // Arenas have been freed. Who keeps mappings of arenas gives them up.
  std::function<void()> arenas_retired;
};

// This class has more than 25 methods: copied and mapped versions, and each end of a transfer, have
// their own.
class VersionReceiver {
 public:
  // Opens the transports that the configuration permits. Errors as make_transports() and
  // Transport::listen().
  [[nodiscard]] static Result<std::unique_ptr<VersionReceiver>> create(
      Loop& loop, VersionReceiverOptions options);
  ~VersionReceiver();
  VersionReceiver(const VersionReceiver&) = delete;
  VersionReceiver& operator=(const VersionReceiver&) = delete;

  [[nodiscard]] staging::Store& store() noexcept { return *store_; }
  [[nodiscard]] const staging::Store& store() const noexcept { return *store_; }
  // The kinds by which it receives versions, the preferred one first, and the addresses of its
  // relays, at which other sidecars fetch these versions.
  [[nodiscard]] std::vector<control::TransportAddress> transports() const;
  // What the keys of those who fetch from its relays are made of; empty: it has no relay with keys.
  [[nodiscard]] Bytes relay_secret() const;
  // Connections that were ended because of their peer. See Transport::refusals().
  [[nodiscard]] std::uint64_t refused_connections() const;
  // Verified bytes of the arriving version; 0 if there is none.
  [[nodiscard]] std::uint64_t staged_bytes() const;
  // How the last version came that was a copy.
  [[nodiscard]] const control::CopyReport& last_copy() const noexcept { return last_copy_; }
  // Bytes received as copies since the start.
  [[nodiscard]] std::uint64_t received_bytes() const noexcept { return received_bytes_; }

  // Whether the target is in the arena of a trainer on this host, or is about to be.
  [[nodiscard]] bool maps_target() const;
  // Whether it takes a version as what changes from the target, and lends the arena of the target
  // to the trainer, which changes it.
  [[nodiscard]] bool lends_arenas() const;

  // Commands of the state machine. StartStaging is answered by StagingDone or StagingFailed,
  // CheckCopy by CopyChecked.
  void start(const staging::StartStaging& command);
  void expect(const staging::ExpectContent& command);
  void cancel(const staging::CancelStaging& command);
  void release(const staging::ReleaseVersion& command);
  void check_copy(const staging::CheckCopy& command);
  // Answered by VersionCompleted. If somebody goes on using the memory of the base, other memory is
  // taken; if there is none, it waits for some time.
  void complete(const staging::CompleteVersion& command);
  // The bytes of a version are not those of its digest, or an engine refuses it (kRefused). If it
  // is still arriving, its staging fails.
  void unusable(const Version& version, const Error& why);
  // Offers a complete version that is held here to other sidecars, unless it is offered already,
  // and returns what is to be said of it. kNotFound: it is not held here as a whole; kRefused: this
  // sidecar has no relay.
  [[nodiscard]] Result<control::RelayReady> relay_held(const Version& version, bool with_layout);
  // Connects to the trainer by those kinds that keep a connection, so that its end is noticed.
  // A trainer that has taken the place of another one gets connections of its own.
  void watch(const control::Welcome& welcome);
  // Stops the transports. No bucket arrives afterwards. Call it before the engines' side is
  // destroyed.
  void stop();

 private:
  // The arriving version. It exists until StagingDone has been passed on.
  struct Arriving {
    std::uint64_t attempt = 0;
    Version version;
    OfferedLayout layout;  // as it was offered; a later offer may be cut otherwise
    TimePoint begin{};
    TimePoint last_received{};  // time of the last bucket
    std::vector<bool> have;
    staging::Destination destination;   // own arena only
    bool own = false;                   // it comes as a copy into an arena of the store
    std::uint64_t travelled_bytes = 0;  // of copies: less than all if changes have come
    std::size_t by_changes = 0;         // buckets of which only what changes has come
    Version base;                       // from which
    // The changes themselves, while they are of use: all buckets come so, and they are small.
    std::shared_ptr<staging::ReceivedChanges> changes;
    // It arrives as what changes from this version, and without memory; none: with memory, or as
    // a mapped arena.
    Version held_on;
    Version unlike;                 // as transport::Offer::unlike
    std::vector<bool> passed_on;    // buckets of which leaves were offered; empty: none
    staging::StartStaging command;  // the last one
    std::uint32_t part = 0;         // of the version, which is being fetched
    std::optional<staging::StartStaging> waiting;  // waits for memory
    // Set when the version is verified, while the engines are prepared for it.
    std::shared_ptr<const staging::HeldVersion> held;
  };
  // A version that is being made complete.
  struct Completing {
    staging::CompleteVersion command;
    TimePoint begin{};
    bool had_no_memory = false;             // beside its base
    bool is_mapped = false;                 // its base is, in an arena of the trainer
    bool is_fetched = false;                // from the trainer, which changes that arena
    control::Fence fence;                   // under which it was fetched first
    std::optional<TimePoint> not_given_at;  // when the trainer has first not given it
  };
  // One kind of transport.
  struct Link {
    std::unique_ptr<transport::Transport> transport;
    std::unique_ptr<transport::BucketSource> relay;  // null: a kind that maps its source
    std::unique_ptr<transport::BucketSink> sink;
    // Of a kind that maps its source: fetches versions that the trainer has made complete, while
    // another one may be arriving.
    std::unique_ptr<transport::BucketSink> completed_sink;
  };
  VersionReceiver(Loop& loop, VersionReceiverOptions options);
  [[nodiscard]] Result<> open();
  // kRefused if the configuration does not permit the kind.
  [[nodiscard]] Result<const Link*> link_of(const std::string& kind) const;
  [[nodiscard]] Result<> begin(const staging::StartStaging& command);
  [[nodiscard]] Result<> begin_job(const staging::StartStaging& command, bool own);
  [[nodiscard]] staging::Store::OnStaged when_staged();
  [[nodiscard]] Result<> begin_own(const staging::StartStaging& command);
  [[nodiscard]] bool may_hold_changes(const staging::StartStaging& command) const;
  [[nodiscard]] bool are_too_large(const BucketPlan& plan) const;
  void give_up_changes();
  // `unlike`: as StreamFailure::unlike.
  void begin_with_memory(const Error& why, const Version& unlike = {});
  void begin_mapped(ArenaView view);
  void begin_completion();
  void try_to_complete();
  // Ends the transfer of the arriving version.
  void stop_arrival();
  void fetch_completed();
  void fetch_again();
  void not_given(const Error& error);
  [[nodiscard]] static Error taken_over() {
    return {ErrorCode::kPeerLost, "another coordinator has taken over"};
  }
  void completed(const staging::Store::Completed& completed);
  void end_completion(staging::VersionCompleted outcome);
  [[nodiscard]] staging::StagingJob make_job(const control::Announce& announce);
  void memory_ready(Result<staging::Destination> memory);
  [[nodiscard]] Result<> receive(const staging::StartStaging& command);
  // What this sidecar holds of this layout, to fetch only what changes.
  [[nodiscard]] std::optional<transport::FetchBase> find_base(
      const control::Announce& announce) const;
  void keep_changes(const transport::ArrivedBucket& arrived);
  void keep_patch(std::shared_ptr<const SealedMemory> patch);
  // Fetches what is missing of the part of the version that is next, or of all of it if it has one
  // source.
  [[nodiscard]] Result<> receive_part(const staging::StartStaging& command);
  // The next part from this one on of which a bucket is missing; std::nullopt: none.
  [[nodiscard]] std::optional<std::uint32_t> next_part(const staging::StartStaging& command,
                                                       std::uint32_t from) const;
  // A part has arrived.
  void part_done(const staging::StartStaging& command);
  // Both complete the request and its callbacks.
  void expect_mapped(const staging::StartStaging& command, transport::FetchRequest& wanted,
                     transport::SinkCallbacks& callbacks);
  void expect_buckets(const staging::StartStaging& command, transport::FetchRequest& wanted,
                      transport::SinkCallbacks& callbacks);
  void staged(std::uint64_t attempt, Result<std::shared_ptr<const staging::HeldVersion>> held);
  void failed(std::uint64_t attempt, const Error& error, bool is_refused = false);
  void drop_arriving();
  void count_idle_time();
  void release_unused();
  void offer_relay(const staging::StartStaging& command);
  void offer_relay(const staging::HeldVersion& version);
  void withdraw_relay(const Version& version, const std::string& why);
  [[nodiscard]] transport::StreamKey key_of(const Version& version, const Digest& layout) const;

  Loop& loop_;
  const VersionReceiverOptions options_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::uint64_t received_bytes_ = 0;
  control::CopyReport last_copy_;
  std::optional<Arriving> arriving_;
  std::optional<Completing> completing_;
  Timer retry_;                                     // of try_to_complete()
  Timer fetch_again_;                               // of fetch_completed()
  std::vector<control::TransportAddress> trainer_;  // where it serves versions
  control::Fence watched_fence_;       // fence under which the trainer's sources were connected
  std::uint64_t watched_trainer_ = 0;  // Welcome::trainer, likewise
  std::vector<Link> links_;            // the preferred kind first
  std::optional<transport::PairSecret> secret_;  // of its relays
  // Offered by its relays, and how each is cut (Announce::parts).
  std::map<Version, SharedBytes> relayed_;
  bool tells_parts_ = true;                // the coordinator says how a version is cut
  Timer idle_;                             // fires when no version has arrived for idle_release
  std::unique_ptr<staging::Store> store_;  // declared last: it reads memory that sinks write
};

}  // namespace wsync::agent
