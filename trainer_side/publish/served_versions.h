// ServedVersions: the versions that a trainer serves to sidecars, by every kind of transport that
// the configuration permits.
//
// A snapshot that is held as its changes is offered as these, while its base is served, because
// sources make buckets of both. When the fleet is to serve it, it changes places with the version
// in the arena (Snapshotter::exchange()). Sources offer neither of both meanwhile, so requests
// wait. If the arena is being read, both go on being offered, and the version gets another arena.
// So it does if a sidecar wants to map it before it is decided. Without its base it is not offered
// before it is complete.
//
// Thread: the loop's. The threads of the sources serve the bytes, and versions change places on the
// worker, or beside it while it takes a snapshot: sidecars wait for the version. The loop must
// outlive this object, and so must the worker until it is stopped.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shared/base/clock.h"
#include "shared/config/trainer_config.h"
#include "shared/control/messages.h"
#include "shared/loop/loop.h"
#include "shared/loop/timer.h"
#include "shared/loop/worker.h"
#include "shared/transport/transport.h"
#include "trainer_side/publish/snapshot.h"

namespace wsync::publish {

// This class has more than 25 methods: offers, and each step of a version that becomes complete,
// have their own.
class ServedVersions {
 public:
  // A version that has become complete: in the arena of its base, or beside it.
  struct Completed {
    Version version;
    Version base;
    bool in_place = false;
    std::uint64_t bytes = 0;  // that have changed
    TimePoint begin{};
    TimePoint end{};
  };
  struct Observer {
    std::function<void(const Completed&)> on_completed = [](const Completed&) {};
    // Versions are lost. The sentence is for operators.
    std::function<void(const std::string&)> on_lost = [](const std::string&) {};
    // A version that is not decided is lost for the reason: its base has to make room for another
    // version. Whoever has its snapshot gives it up.
    // A version is served from now on of which other ranks have parts: they have to serve them.
    std::function<void(const Snapshot&)> on_parts = [](const Snapshot&) {};
    std::function<void(const Version&, const std::string&)> on_given_up = [](const Version&,
                                                                             const std::string&) {};
  };
  // Binds the addresses that other hosts can reach. Errors as make_transports() and
  // Transport::listen(). `worker`: on which the snapshots are taken.
  [[nodiscard]] static Result<std::unique_ptr<ServedVersions>> create(
      Loop& loop, const config::TrainerConfig& config, std::shared_ptr<Snapshotter> snapshotter,
      Worker& worker);
  ServedVersions(const ServedVersions&) = delete;
  ServedVersions& operator=(const ServedVersions&) = delete;
  ~ServedVersions() { *alive_ = false; }

  // Called on the loop, from its tasks. Set it before anything is served.
  void observe(Observer observer) { observer_ = std::move(observer); }

  // Binds the addresses within this host, which may be taken over from another process. Call it
  // once, before any of the following. Errors as Transport::listen().
  [[nodiscard]] Result<> listen();
  // The addresses that listen() has bound, the preferred kind first.
  [[nodiscard]] std::vector<control::TransportAddress> transports() const;

  // Serves the buckets of a snapshot that is being taken, by the kinds that copy, each when it is
  // complete. offer() follows with the complete snapshot, or withdraw().
  void offer_buckets(const CopiedSnapshot& snapshot);
  // `sums`: of its leaves.
  void bucket_complete(const Version& version, std::uint64_t bucket,
                       const std::vector<WordSum>& sums);
  // Serves this version until it is withdrawn. Even after that, its arena is not written again
  // before the last reader has released it. One that is held as its changes is served so, while its
  // base is served.
  void offer(const std::shared_ptr<const Snapshot>& snapshot);
  // The fleet is to serve this version from now on. If it is held as its changes, it becomes the
  // one in the arena of its base. It is tried again if that is being read and there is no memory
  // for another one. Does nothing for a version that is complete or not served.
  void make_complete(const Version& version);
  // Sidecars that still request the version receive `reason`.
  void withdraw(const Version& version, const std::string& reason);

  // Of the changes that are held in place of versions.
  [[nodiscard]] std::uint64_t changes_bytes() const;
  // What the keys of those who receive from here are made of; std::nullopt: no kind has keys.
  [[nodiscard]] const std::optional<transport::PairSecret>& secret() const noexcept {
    return secret_;
  }
  // Connections that were ended because of their peer. See Transport::refusals().
  [[nodiscard]] std::uint64_t refused_connections() const;
  // Bytes of weights that were sent as copies, framing included.
  [[nodiscard]] std::uint64_t copied_bytes() const;

 private:
  // Serves versions by one kind of transport.
  struct Server {
    std::unique_ptr<transport::Transport> transport;
    std::unique_ptr<transport::BucketSource> source;  // null before listen()
  };
  // A version that is to become complete.
  struct Completion {
    Version version;
    bool may_change_base = false;
    bool in_place = false;    // how it is tried next
    bool waits_long = false;  // in place: for readers
    TimePoint not_before{};
    std::chrono::milliseconds retry_after{};
  };
  // One that is becoming complete, and its base; and which of them was withdrawn meanwhile.
  struct Running {
    Version newer;
    Version older;
    bool is_newer_withdrawn = false;
    bool is_older_withdrawn = false;
  };
  ServedVersions(Loop& loop, std::shared_ptr<Snapshotter> snapshotter, Worker& worker);
  void offer_part(const std::shared_ptr<const Snapshot>& snapshot);
  void offer_changes(const Snapshot& snapshot);
  void offer_changes(const Snapshot& snapshot, const Server& server);
  // Somebody wants to map a version that is not decided: it gets another arena, because the fleet
  // needs that of its base.
  void give_arena(const Version& version);
  // Who asks for the version waits for the next offer of it.
  void let_wait(const Snapshot& snapshot);
  void complete_later(const Version& version, bool may_change_base);
  [[nodiscard]] Completion* queued(const Version& version);
  void complete_next();
  // Return false if the worker has too much to do.
  [[nodiscard]] bool begin_exchange(const std::shared_ptr<const Snapshot>& newer, bool waits_long);
  // One that has nothing to do, so that a version which the fleet waits for does not wait for a
  // snapshot.
  [[nodiscard]] Worker& idle_worker() noexcept { return worker_.is_idle() ? worker_ : beside_; }
  [[nodiscard]] bool begin_beside(const std::shared_ptr<const Snapshot>& newer);
  void give_up_both();
  // There is no memory for this version, which is held as its changes: whoever wants to map it
  // hears that, and may ask again.
  void refuse_memory(const Snapshot& snapshot, const Error& why);
  // Versions that are not to be served yet, and keep `base` from giving up its arena to `wanted`.
  void give_up_changes_from(const Version& base, const Version& wanted);
  // The served versions that are held as what changes from this one.
  [[nodiscard]] std::vector<std::shared_ptr<const Snapshot>> changes_from(
      const Version& base) const;
  // When the worker began and ended.
  struct Worked {
    TimePoint begin{};
    TimePoint end{};
  };
  void made_beside(const Snapshot& newer, Result<std::shared_ptr<Snapshot>> outcome,
                   const Worked& worked);
  void exchanged(Result<Snapshotter::Exchanged> outcome, const Worked& worked);

  Loop& loop_;
  Worker& worker_;
  const std::shared_ptr<Snapshotter> snapshotter_;  // shared with the worker's task
  Observer observer_;
  std::vector<Server> servers_;
  std::optional<transport::PairSecret> secret_;
  // Without those that are changing places.
  std::map<Version, std::shared_ptr<const Snapshot>> served_;
  Version wanted_;  // of the last make_complete()
  // Somebody has read an arena for longer than kReaderWaitLong: he hangs, and may again.
  bool readers_hang_ = false;
  std::deque<Completion> queue_;
  Worker beside_;  // where worker_ takes snapshots
  std::optional<Running> running_;
  Timer retry_;                                                 // of complete_next()
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // for what the worker posts
};

}  // namespace wsync::publish
