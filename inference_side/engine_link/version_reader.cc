#include "inference_side/engine_link/version_reader.h"

#include <algorithm>
#include <array>
#include <poll.h>
#include <utility>

#include "inference_side/engine_link/prepared_version.h"
#include "inference_side/engine_link/sidecar_socket.h"
#include "shared/base/format.h"
#include "shared/base/planted.h"
#include "shared/weights/bucket_plan.h"

namespace wsync::engine {
namespace {

using control::Frame;

// Between two attempts to reach a sidecar that does not listen.
constexpr std::chrono::milliseconds kRetry{50};
// A sidecar that lives accepts a connection and reads a question at once.
constexpr std::chrono::milliseconds kAskDeadline{500};

// Versions that may be released in a row before they are mapped here. An arena that cannot be
// mapped at all must not be asked for without end.
constexpr int kLateMax = 100;

void pause_until(TimePoint deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - now());
  const auto pause = std::clamp(left, std::chrono::milliseconds(0), kRetry);
  ::poll(nullptr, 0, static_cast<int>(pause.count()));
}

bool is_same(const VersionReader::Choice& a, const VersionReader::Choice& b) {
  return a.step == b.step && a.after == b.after;
}

}  // namespace

Result<std::unique_ptr<VersionReader>> VersionReader::create(std::string socket_path,
                                                             std::string name) {
  WSYNC_TRY(check_socket_path(socket_path));
  return std::unique_ptr<VersionReader>(new VersionReader(std::move(socket_path), std::move(name)));
}

Result<> VersionReader::ask(const Choice& choice, TimePoint deadline) {
  const TimePoint soon = std::min(deadline, now() + kAskDeadline);
  if (!link_) {
    auto link = control::Link::connect(socket_path_, soon);
    if (!link) return fail(link.error().code(), why_not_connected(socket_path_, link.error()));
    link_ = std::move(*link);
    is_answered_ = false;
    asked_.reset();
  }
  if (asked_ && is_same(*asked_, choice)) return {};
  const control::ReadVersion question{
      .has_step = choice.step.has_value(), .step = choice.step.value_or(0), .after = choice.after};
  if (const auto sent = link_->send({.request = ++request_, .replica = name_}, question, {}, soon);
      !sent)
    return fail(sent.error().code(), why_lost(sent.error()));
  asked_ = choice;
  return {};
}

// Until it has answered, nobody knows that the peer is a sidecar.
std::string VersionReader::why_lost(const Error& error) const {
  if (!is_answered_) return why_not_welcomed(socket_path_, link_->fd(), error.message());
  return fmt::format("the connection to the sidecar at {} is lost ({})", socket_path_,
                     error.message());
}

Error VersionReader::waited(const Choice& choice) const {
  if (!why_waiting_.empty()) return Error(ErrorCode::kDeadline, why_waiting_);
  const std::string what =
      choice.step           ? fmt::format("no version of step {} has been staged", *choice.step)
      : choice.after.none() ? std::string("no version has been published")
                            : fmt::format("no version has replaced {}", choice.after.to_string());
  return Error(ErrorCode::kDeadline,
               fmt::format("{} at the sidecar of {} yet", what, socket_path_));
}

Result<> VersionReader::map(const control::Prepare& message, std::span<const UniqueFd> fds) {
  if (fds.size() != 1)
    return fail(
        ErrorCode::kInvalidInput,
        fmt::format("the sidecar sent {} descriptors with a version, expected 1", fds.size()));
  auto manifest = WSYNC_TRY(layout_in(message));
  if (!message.is_verified)
    return fail(
        ErrorCode::kInvalidInput,
        fmt::format("the sidecar has not verified the bytes of {}", message.version.to_string()));
  const auto buckets = WSYNC_TRY(BucketPlan::create(manifest, message.bucket_bytes));
  auto plan = WSYNC_TRY(reload::LoadPlan::make(manifest, buckets, reload::whole_tensors(manifest)));
  const ArenaExpectation expected{
      .version = std::pair{std::uint64_t{message.version.epoch}, message.version.step},
      .layout = message.layout_digest};
  auto view = WSYNC_TRY(ArenaView::open(fds.front().get(), expected, 1));
  if (view.data().size() < plan.arena_bytes())
    return fail(ErrorCode::kInvalidInput,
                fmt::format("the arena of {} has {} bytes, but its layout needs {}",
                            message.version.to_string(), view.data().size(), plan.arena_bytes()));
  manifest_ = std::move(manifest);
  plan_ = std::move(plan);
  view_ = std::move(view);
  if (planted("reader_without_lease")) view_->suspend();
  return {};
}

Result<Version> VersionReader::open(const Choice& choice, TimePoint deadline) {
  if (view_)
    return fail(ErrorCode::kBusy, "a version is open: close it before another one is opened");
  for (;;) {
    if (const auto asked = ask(choice, deadline); !asked) {
      link_.reset();
      why_waiting_ = asked.error().message();
      pause_until(deadline);
      if (now() >= deadline) return fail(waited(choice));
      continue;
    }
    why_waiting_.clear();
    auto frame = link_->receive(deadline);
    if (!frame && frame.error().code() == ErrorCode::kDeadline) return fail(waited(choice));
    if (!frame) {
      const std::string why = why_lost(frame.error());
      link_.reset();
      if (frame.error().code() != ErrorCode::kPeerLost) return fail(frame.error().code(), why);
      why_waiting_ = why;
      pause_until(deadline);
      if (now() >= deadline) return fail(waited(choice));
      continue;
    }
    is_answered_ = true;
    if (const auto* refuse = std::get_if<control::Refuse>(&frame->message)) {
      asked_.reset();
      if (frame->envelope.request == 0) link_.reset();  // the connection itself was refused
      return fail(ErrorCode::kRefused, refuse->reason);
    }
    const auto* prepare = std::get_if<control::Prepare>(&frame->message);
    if (prepare == nullptr) continue;  // a question about liveness, or a message of a later release
    // The answer to a question that has been given up.
    if (frame->envelope.request != request_ || !asked_) continue;
    asked_.reset();
    const Result<> mapped = map(*prepare, frame->fds);
    if (mapped) {
      late_ = 0;
      return prepare->version;
    }
    // The version may have been released, and its arena written again, before this process had a
    // lease: if it was suspended, for example. It asks again, also when the deadline has passed.
    const bool is_late =
        mapped.error().code() == ErrorCode::kBusy || mapped.error().code() == ErrorCode::kRefused;
    if (!is_late || ++late_ > kLateMax) return fail(mapped.error());
    if (now() >= deadline) return fail(waited(choice));
  }
}

void VersionReader::close() {
  view_.reset();
  manifest_.reset();
}

std::span<const std::byte> VersionReader::tensor(std::uint32_t index) const {
  const reload::LoadTensor& planned = plan_.tensors()[index];
  const std::uint64_t shift = planted("reader_shifts") && index > 0 ? 1 : 0;
  return view_->data().subspan(planned.arena_offset - shift, planned.shard.bytes());
}

}  // namespace wsync::engine
