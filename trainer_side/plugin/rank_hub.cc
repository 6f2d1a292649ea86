#include "trainer_side/plugin/rank_hub.h"

#include <chrono>
#include <utility>
#include <vector>

#include "shared/base/format.h"
#include "shared/base/liveness.h"
#include "shared/base/log.h"

namespace wsync::plugin {
namespace {

constexpr std::chrono::milliseconds kRefusalDeadline{1'000};

// Whether a status is that of a step whose snapshot rank 0 has. The version of a snapshot that is
// held has no name yet. A step that failed without a snapshot may be published again by all ranks.
bool has_snapshot(const control::PublishStatus& status) noexcept {
  if (status.state == control::PublishState::kFailed) return !status.version.none();
  return status.state >= control::PublishState::kSnapshotted;
}

}  // namespace

Result<std::unique_ptr<RankHub>> RankHub::listen(Loop& loop, const std::string& path,
                                                 RankGather& gather, Claim how, Remote remote) {
  auto hub = std::unique_ptr<RankHub>(new RankHub(loop, gather, std::move(remote)));
  hub->listener_ = WSYNC_TRY(control::UnixListener::create(
      loop, path,
      [hub = hub.get()](UniqueFd socket, const PeerCredentials& peer) {
        hub->accept(std::move(socket), peer);
      },
      how));
  return hub;
}

RankHub::RankHub(Loop& loop, RankGather& gather, Remote remote)
    : loop_(loop),
      gather_(gather),
      remote_ranks_(std::move(remote)),
      parts_([this](std::uint32_t rank, control::Message message) {
        send_to_rank(rank, std::move(message));
      }) {}

Result<> RankHub::send(const Peer& peer, control::Message message) {
  if (peer.stream) return peer.stream->send({}, message);
  remote_ranks_.send(peer.remote, std::move(message));
  return {};
}

void RankHub::send_to_rank(std::uint32_t rank, control::Message message) {
  for (const auto& [id, peer] : peers_)
    if (peer.process && peer.process->rank == rank && !peer.stream)
      return remote_ranks_.send(peer.remote, std::move(message));
}

void RankHub::handle_remote(const std::string& peer, control::Message message) {
  auto known = remote_.find(peer);
  const bool is_hello = std::holds_alternative<control::RankHello>(message);
  if (known == remote_.end() && !is_hello)
    // It has connected before this process was rank 0, or was lost meanwhile.
    return remote_ranks_.send(
        peer, control::ErrorReply{.code = ErrorCode::kPeerLost,
                                  .message = "rank 0 does not know this connection"});
  if (known == remote_.end() && peers_.size() >= 2 * std::size_t{gather_.world_size()})
    return remote_ranks_.send(
        peer, control::ErrorReply{.code = ErrorCode::kBusy,
                                  .message = fmt::format("rank 0 has {} connections of ranks "
                                                         "already",
                                                         peers_.size())});
  if (known == remote_.end()) {
    known = remote_.emplace(peer, next_peer_++).first;
    peers_[known->second].remote = peer;
  } else if (Peer& again = peers_.at(known->second); is_hello && again.process) {
    // The same process has connected again.
    gather_.leave(*std::exchange(again.process, std::nullopt));
  }
  handle_frame(known->second, {.envelope = {}, .message = std::move(message), .fds = {}});
}

void RankHub::lose_remote(const std::string& peer, const Error& why) {
  const auto known = remote_.find(peer);
  if (known == remote_.end()) return;
  // One that stood still does not notice that it was lost. It reads this when it goes on.
  remote_ranks_.send(
      peer, control::ErrorReply{.code = ErrorCode::kPeerLost,
                                .message = "rank 0 has lost this connection: " + why.message()});
  drop(known->second, why);
}

void RankHub::accept(UniqueFd socket, const PeerCredentials& peer) {
  // A rank may reconnect before the end of its old connection is noticed, so two are allowed for
  // each.
  if (peers_.size() >= 2 * std::size_t{gather_.world_size()}) {
    log_warning("rank link: process {} is refused, because there are already {} connections",
                peer.pid, peers_.size());
    return;
  }
  const std::uint64_t id = next_peer_++;
  control::StreamCallbacks callbacks;
  callbacks.on_frame = [this, id](control::Frame frame) { handle_frame(id, std::move(frame)); };
  callbacks.on_close = [this, id](const Error& error) { drop(id, error); };
  auto stream = control::UnixStream::adopt(loop_, std::move(socket), std::move(callbacks));
  if (!stream) {
    log_warning("rank link: process {}: {}", peer.pid, stream.error().message());
    return;
  }
  auto watch = ProcessWatch::create(loop_, peer.pid, [this, id, pid = peer.pid] {
    drop(id, Error(ErrorCode::kPeerLost, fmt::format("its process {} has ended", pid)));
  });
  if (!watch && watch.error().code() == ErrorCode::kPeerLost) return;
  Peer& added = peers_[id];
  added.stream = std::move(*stream);
  if (watch) added.watch = std::move(*watch);
  added.hello = std::make_unique<Timer>(loop_, [this, id] {
    refuse(id, Error(ErrorCode::kDeadline, "the rank did not send RankHello before the deadline"));
  });
  added.hello->start(std::chrono::milliseconds(limits::kHelloDeadlineMs));
}

void RankHub::handle_frame(std::uint64_t id, control::Frame frame) {
  const auto found = peers_.find(id);
  if (found == peers_.end()) return;
  if (const Result<> taken = handle(id, found->second, frame); !taken) refuse(id, taken.error());
}

Result<> RankHub::greet(std::uint64_t id, Peer& peer, const control::RankHello& hello) {
  if (peer.process)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("rank {} sent RankHello twice", peer.process->rank));
  WSYNC_TRY(gather_.join(hello));
  peer.process = RankProcess{.rank = hello.rank, .incarnation = hello.incarnation};
  peer.hello.reset();
  log_info("rank {} of {} has connected (process {}, incarnation {})", hello.rank, hello.world_size,
           hello.pid, hello.incarnation);
  std::vector<std::uint64_t> replaced;
  for (const auto& [other, before] : peers_)
    if (other != id && before.process && before.process->rank == hello.rank)
      replaced.push_back(other);
  for (const std::uint64_t other : replaced)
    refuse(other, Error(ErrorCode::kFenced,
                        fmt::format("rank {} was replaced: process {} (incarnation {}) is that "
                                    "rank now, and messages of incarnation {} are refused",
                                    hello.rank, hello.pid, hello.incarnation,
                                    peers_.at(other).process->incarnation)));
  return {};
}

std::optional<Result<>> RankHub::handle_part(const Peer& peer, control::Message& message) {
  const bool is_serves = std::holds_alternative<control::RankServes>(message);
  if (!is_serves && !std::holds_alternative<control::PartSummed>(message)) return std::nullopt;
  if (peer.stream)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("rank {} is on the host of rank 0, so it serves no part: it must not "
                            "send {}",
                            peer.process->rank, control::message_name(control::type_of(message))));
  if (auto* summed = std::get_if<control::PartSummed>(&message))
    return gather_.part_summed(*peer.process, std::move(*summed));
  const Result<> serves = gather_.serve(*peer.process, std::get<control::RankServes>(message));
  if (serves) parts_.connected(peer.process->rank);
  return serves;
}

Result<> RankHub::handle(std::uint64_t id, Peer& peer, control::Frame& frame) {
  if (const auto* hello = std::get_if<control::RankHello>(&frame.message))
    return greet(id, peer, *hello);
  if (!peer.process)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("the first message of a rank must be RankHello, found {}",
                            control::message_name(control::type_of(frame.message))));
  if (const auto* shards = std::get_if<control::RankShards>(&frame.message))
    return gather_.describe(*peer.process, *shards);
  if (auto handled = handle_part(peer, frame.message)) return *handled;
  const auto* snapshotted = std::get_if<control::Snapshotted>(&frame.message);
  if (snapshotted == nullptr)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("a rank must not send {}",
                            control::message_name(control::type_of(frame.message))));
  UniqueFd arena = frame.fds.empty() ? UniqueFd() : std::move(frame.fds.front());
  const Result<> reported = gather_.report(*peer.process, *snapshotted, std::move(arena));
  // Rank 0 sent the status of this step earlier, to the process that this one replaces.
  if (reported && notified_.step == snapshotted->step && has_snapshot(notified_))
    return send(peer, notified_);
  if (reported) return {};
  const ErrorCode code = reported.error().code();
  if (code != ErrorCode::kRefused && code != ErrorCode::kBusy) return reported;
  // Only this step is refused; the rank may continue with the next one.
  return send(peer, control::PublishStatus{.step = snapshotted->step,
                                           .state = control::PublishState::kFailed,
                                           .code = code,
                                           .reason = reported.error().message()});
}

void RankHub::refuse(std::uint64_t id, const Error& error) {
  const auto found = peers_.find(id);
  if (found == peers_.end()) return;
  log_warning("rank link: {}", error.message());
  Peer& peer = found->second;
  peer.hello.reset();
  if (peer.process) gather_.leave(*std::exchange(peer.process, std::nullopt));
  if (const auto sent =
          send(peer, control::ErrorReply{.code = error.code(), .message = error.message()});
      !sent)
    log_debug("rank link: {}", sent.error().message());
  if (peer.stream) return peer.stream->finish(kRefusalDeadline);
  remote_.erase(peer.remote);
  peers_.erase(found);
}

void RankHub::drop(std::uint64_t id, const Error& error) {
  const auto found = peers_.find(id);
  if (found == peers_.end()) return;
  if (found->second.process) {
    const std::string text =
        fmt::format("rank {} disconnected: {}", found->second.process->rank, error.message());
    log_info("{}", text);
    if (!found->second.stream) remote_ranks_.report(text);
    gather_.leave(*found->second.process);
  }
  remote_.erase(found->second.remote);
  peers_.erase(found);
}

void RankHub::notify(const control::PublishStatus& status) {
  if (status.step >= notified_.step) notified_ = status;
  for (auto& [id, peer] : peers_) {
    if (!peer.process) continue;
    if (const auto sent = send(peer, status); !sent)
      log_debug("rank {}: {}", peer.process->rank, sent.error().message());
  }
}

}  // namespace wsync::plugin
