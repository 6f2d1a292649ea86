// Reads a rank's weights back for `wsync verify`, some in each poll().
#include <poll.h>

#include "inference_side/engine_link/engine_link.h"
#include "shared/base/format.h"
#include "shared/base/weight_limits.h"
#include "shared/weights/content_digest.h"

namespace wsync::engine {

namespace {

using control::RankState;

// What one poll() gives to reading tensors back: little beside a step of the engine, enough that
// all of them are read while the sidecar waits.
constexpr std::chrono::milliseconds kReadBack{2};

}  // namespace

Result<Digest> EngineLink::digest_of_tensor(std::uint32_t tensor) {
  if (description_.take == control::TakeMode::kPieces)
    return tensor_digest(description_.tensors[tensor].destination);
  if (!active_hold_ && description_.take == control::TakeMode::kAdopt)
    return fail(ErrorCode::kRefused, "no version has been adopted");
  if (description_.take == control::TakeMode::kAdopt)
    return reload::expected_digest(active_hold_->layout->plan.tensors()[tensor],
                                   active_hold_->arena->data());
  const control::EngineTensor& description = description_.tensors[tensor].description;
  if (description.dtype > static_cast<std::uint8_t>(kLastDType))
    return fail(ErrorCode::kInvalidInput,
                fmt::format("tensor {} has an unknown dtype", description.name));
  auto shard = WSYNC_TRY(reload::Shard::make(dtype_bits(static_cast<DType>(description.dtype)),
                                             description.shape, description.ranges));
  std::vector<std::byte> leaf(limits::kLeafBytes);
  std::vector<Digest> leaves;
  for (std::uint64_t at = 0; at < shard.bytes(); at += leaf.size()) {
    const auto part =
        std::span(leaf).first(std::min<std::uint64_t>(leaf.size(), shard.bytes() - at));
    WSYNC_TRY(engine_->read_tensor(tensor, at, part));
    leaves.push_back(wsync::digest_of(part));
  }
  return tensor_digest(shard.bytes(), leaves);
}

void EngineLink::on_read_digests(const control::Envelope& envelope) {
  reading_ = Reading{.request = envelope, .reply = {.version = active_}};
}

bool EngineLink::has_more_to_do() const {
  pollfd link{.fd = epoll_.get(), .events = POLLIN, .revents = 0};
  return ::poll(&link, 1, 0) > 0;
}

// Not one tensor for each poll(): an engine that polls once for each of its steps would then need
// as many steps as it has tensors, and the sidecar does not wait that long.
void EngineLink::read_tensors() {
  const TimePoint until = now() + kReadBack;
  do read_some();
  while (reading_ && now() < until && !has_more_to_do());
  if (reading_) wake();
}

// One, or on a GPU as many as are worth a batch.
Result<std::vector<Digest>> EngineLink::digests_from(std::uint32_t tensor) {
  if (weights_) return weights_->digests(tensor);
  auto digest = WSYNC_TRY(digest_of_tensor(tensor));
  return std::vector<Digest>{digest};
}

void EngineLink::read_some() {
  control::Digests& reply = reading_->reply;
  const auto next = static_cast<std::uint32_t>(reply.tensors.size());
  if (state_ != RankState::kServing && state_ != RankState::kPaused) {
    reply.failure = fmt::format("a rank that is {} holds no version", state_name(state_));
  } else if (active_ != reply.version) {
    reply.failure = fmt::format("it went on to {} while {} was read", active_.to_string(),
                                reply.version.to_string());
  } else if (next < description_.tensors.size()) {
    const auto digests = digests_from(next);
    if (digests) {
      for (const Digest& digest : *digests) {
        const control::EngineTensor& tensor =
            description_.tensors[reply.tensors.size()].description;
        const auto shard = reload::Shard::make(dtype_bits(static_cast<DType>(tensor.dtype)),
                                               tensor.shape, tensor.ranges);
        reply.tensors.push_back(
            {.name = tensor.name, .digest = digest, .bytes = shard ? shard->bytes() : 0});
      }
      return;
    }
    reply.failure = digests.error().message();
  }
  if (!reply.failure.empty()) reply.tensors.clear();
  Reading done = *std::exchange(reading_, std::nullopt);
  send(done.request, std::move(done.reply));
}

}  // namespace wsync::engine
