#include "trainer_side/plugin/rank_hub.h"

#include <chrono>
#include <utility>

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
                                                 RankGather& gather, Claim how) {
  auto hub = std::unique_ptr<RankHub>(new RankHub(loop, gather));
  hub->listener_ = WSYNC_TRY(control::UnixListener::create(
      loop, path,
      [hub = hub.get()](UniqueFd socket, const PeerCredentials& peer) {
        hub->accept(std::move(socket), peer);
      },
      how));
  return hub;
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
  for (const auto& [other, before] : peers_)
    if (other != id && before.process && before.process->rank == hello.rank)
      refuse(other, Error(ErrorCode::kFenced,
                          fmt::format("rank {} was replaced: process {} (incarnation {}) is that "
                                      "rank now, and messages of incarnation {} are refused",
                                      hello.rank, hello.pid, hello.incarnation,
                                      before.process->incarnation)));
  return {};
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
  const auto* snapshotted = std::get_if<control::Snapshotted>(&frame.message);
  if (snapshotted == nullptr)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("a rank must not send {}",
                            control::message_name(control::type_of(frame.message))));
  UniqueFd arena = frame.fds.empty() ? UniqueFd() : std::move(frame.fds.front());
  const Result<> reported = gather_.report(*peer.process, *snapshotted, std::move(arena));
  // Rank 0 sent the status of this step earlier, to the process that this one replaces.
  if (reported && notified_.step == snapshotted->step && has_snapshot(notified_))
    return peer.stream->send({}, notified_);
  if (reported) return {};
  const ErrorCode code = reported.error().code();
  if (code != ErrorCode::kRefused && code != ErrorCode::kBusy) return reported;
  // Only this step is refused; the rank may continue with the next one.
  return peer.stream->send({}, control::PublishStatus{.step = snapshotted->step,
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
  if (const auto sent = peer.stream->send(
          {}, control::ErrorReply{.code = error.code(), .message = error.message()});
      !sent)
    log_debug("rank link: {}", sent.error().message());
  peer.stream->finish(kRefusalDeadline);
}

void RankHub::drop(std::uint64_t id, const Error& error) {
  const auto found = peers_.find(id);
  if (found == peers_.end()) return;
  if (found->second.process) {
    log_info("rank {} disconnected: {}", found->second.process->rank, error.message());
    gather_.leave(*found->second.process);
  }
  peers_.erase(found);
}

void RankHub::notify(const control::PublishStatus& status) {
  if (status.step >= notified_.step) notified_ = status;
  for (auto& [id, peer] : peers_) {
    if (!peer.process) continue;
    if (const auto sent = peer.stream->send({}, status); !sent)
      log_debug("rank {}: {}", peer.process->rank, sent.error().message());
  }
}

}  // namespace wsync::plugin
