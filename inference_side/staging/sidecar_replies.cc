#include "inference_side/staging/sidecar_replies.h"

#include <utility>

#include "shared/base/format.h"

namespace wsync::staging {
namespace {

control::ErrorReply error_reply(ErrorCode code, std::string message) {
  return {.code = code, .message = std::move(message)};
}

}  // namespace

bool is_notice(const control::Message& message) {
  return std::holds_alternative<control::Heartbeat>(message) ||
         std::holds_alternative<control::ErrorReply>(message);
}

std::optional<control::ErrorReply> fence_refusal(const std::string& name, const control::Fence& own,
                                                 const CoordinatorMessage& message,
                                                 FenceCheck check) {
  const control::Fence& theirs = message.envelope.fence;
  if (check == FenceCheck::kOtherFleet) {
    // Never answer a notice: two sides that answer each other's notices would never stop.
    if (is_notice(message.message)) return std::nullopt;
    return error_reply(ErrorCode::kRefused,
                       fmt::format("sidecar '{}' belongs to fleet {} and refuses the coordinator "
                                   "of fleet {}; connect it to its own coordinator, or, to move it "
                                   "permanently, stop it and remove its record from its state_dir",
                                   name, own.fleet.to_string(), theirs.fleet.to_string()));
  }
  if (std::holds_alternative<control::Heartbeat>(message.message)) return std::nullopt;
  // The fence in the envelope of this reply shows the sender that it has been replaced.
  return error_reply(
      ErrorCode::kFenced,
      fmt::format("sidecar '{}' follows fence epoch {} and refuses the message of epoch {}", name,
                  own.epoch, theirs.epoch));
}

control::Message write_refusal(const std::string& name, const CoordinatorMessage& cause,
                               const std::string& failure) {
  if (const auto* decide = std::get_if<control::Decide>(&cause.message))
    return control::Decided{
        .number = decide->number,
        .refused = true,
        .reason = fmt::format("the sidecar's record could not be written: {}", failure)};
  return error_reply(
      ErrorCode::kIo,
      fmt::format("sidecar '{}' cannot follow fence epoch {}: its record could not be written: {}",
                  name, cause.envelope.fence.epoch, failure));
}

std::optional<std::string> layout_refusal(const LayoutChecked& checked) {
  if (!checked.reason.empty()) return checked.reason;
  if (checked.layout_unknown) return "the sidecar does not know its layout";
  if (!checked.problems.empty())
    return fmt::format("{} tensors do not fit", checked.problems.size());
  return std::nullopt;
}

control::Hello hello_of(const SidecarOptions& options, const SidecarRecord& record) {
  return {.name = options.name,
          .host = options.host,
          .pid = options.pid,
          .boot_id = options.boot_id,
          .transports = options.transports,
          .decision = record.decision,
          .target = record.target,
          .withdrawn = record.withdrawn,
          .target_content = record.content,
          .origin = record.origin,
          .pid_namespace = options.pid_namespace,
          .relay_secret = options.relay_secret};
}

}  // namespace wsync::staging
