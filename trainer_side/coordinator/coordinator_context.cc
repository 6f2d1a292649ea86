#include "trainer_side/coordinator/coordinator_context.h"

#include <utility>

#include "shared/base/planted.h"

namespace wsync::coordinator {

void CoordinatorContext::send(const Member& member, control::Message message, std::uint64_t round,
                              std::uint64_t request) {
  if (member.peer.empty()) return;
  control::Envelope envelope;
  envelope.fence = fence;
  envelope.round = round;
  envelope.request = request;
  envelope.capabilities =
      planted("unnamed_fields_are_sent") ? control::kCapabilities : member.capabilities;
  emit(SendTo{.peer = member.peer, .envelope = std::move(envelope), .message = std::move(message)});
}

void CoordinatorContext::send_refusal(const std::string& peer, std::string reason) {
  control::Envelope envelope;
  envelope.fence = fence;
  emit(SendTo{
      .peer = peer,
      .envelope = std::move(envelope),
      .message = control::ErrorReply{.code = ErrorCode::kRefused, .message = std::move(reason)}});
}

}  // namespace wsync::coordinator
